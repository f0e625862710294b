package tree

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// line is what counts of one entry. Where two trees have the same lines they are the
// same; how a file system lays out their data is no part of it.
type line struct {
	Path   string            `json:"p"`
	Mode   fs.FileMode       `json:"m"`
	UID    uint32            `json:"u"`
	GID    uint32            `json:"g"`
	Size   int64             `json:"s,omitempty"`
	Time   int64             `json:"t,omitempty"` // of files, nanoseconds
	Link   string            `json:"l,omitempty"` // where a link leads, hard or symbolic
	Xattrs map[string]string `json:"x,omitempty"`
	Data   []byte            `json:"d,omitempty"` // SHA-256
}

// SumUp reads all that is in the folder.
func SumUp(dir string) (s Sum, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return s, err
	}
	defer root.Close()
	all, seen := sha256.New(), links{}
	lines := json.NewEncoder(all) // map keys are sorted
	err = walk(root, func(path string, fi fs.FileInfo) error {
		l, err := describe(root, seen, path, fi)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if path != "." {
			s.Files++
		}
		if len(l.Data) > 0 {
			s.Bytes += l.Size
		}
		return lines.Encode(l)
	})
	s.Digest = hex.EncodeToString(all.Sum(nil))
	return s, err
}

func describe(root *os.Root, seen links, path string, fi fs.FileInfo) (l line, err error) {
	l = line{Path: path, Mode: fi.Mode()}
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		l.UID, l.GID = st.Uid, st.Gid
	}
	switch {
	case fi.Mode().Type() == fs.ModeSymlink:
		l.Link, err = root.Readlink(path)
		return l, err
	case fi.Mode().Type() == fs.ModeNamedPipe:
		return l, nil
	}
	if l.Link = seen.first(path, fi); l.Link != "" {
		return l, nil
	}
	f, err := open(root, path)
	if err != nil {
		return l, err
	}
	defer f.Close()
	if l.Xattrs, err = xattrs(f); err != nil || fi.IsDir() {
		return l, err
	}
	data := sha256.New()
	if _, err := io.Copy(data, f); err != nil {
		return l, err
	}
	l.Size, l.Time, l.Data = fi.Size(), fi.ModTime().UnixNano(), data.Sum(nil)
	return l, nil
}
