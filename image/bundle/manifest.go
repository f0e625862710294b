package bundle

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sync/errgroup"
)

const (
	manifestFile = "manifest.json"
	checkedFile  = ".checked"
)

// Manifest lists the files of a bundle. The packer writes it as the last file.
type Manifest struct {
	Files []File `json:"files"`
}

type File struct {
	Name string      `json:"name"` // relative, with slashes
	Mode fs.FileMode `json:"mode"`
	// Size (bytes) and SHA256 (hex) of a regular file.
	Size   int64  `json:"size,omitempty"`
	SHA256 string `json:"sha256,omitempty"`
	// Link is the target of a symbolic link.
	Link string `json:"link,omitempty"`
}

func readManifest(dir string) (Manifest, error) {
	data, err := os.ReadFile(filepath.Join(dir, manifestFile))
	if err != nil {
		return Manifest{}, err
	}
	var m Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return Manifest{}, fmt.Errorf("%s: %w", manifestFile, err)
	}
	if len(m.Files) == 0 {
		return Manifest{}, fmt.Errorf("%s names no files", manifestFile)
	}
	return m, nil
}

// verify compares every file below dir with the manifest, hashes included.
func verify(dir string) error {
	m, err := readManifest(dir)
	if err != nil {
		return err
	}
	var all errgroup.Group
	all.SetLimit(4)
	for _, f := range m.Files {
		all.Go(func() error { return f.verify(dir) })
	}
	return all.Wait()
}

func (f File) verify(dir string) error {
	path := filepath.Join(dir, f.Name)
	if f.Link != "" {
		if link, err := os.Readlink(path); err != nil || link != f.Link {
			return fmt.Errorf("%s is not a link to %s", f.Name, f.Link)
		}
		return nil
	}
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("%s: %w", f.Name, err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return fmt.Errorf("%s: %w", f.Name, err)
	}
	if info.Mode() != f.Mode || info.Size() != f.Size {
		return fmt.Errorf("%s is %s of %d bytes, want %s of %d", f.Name, info.Mode(), info.Size(), f.Mode, f.Size)
	}
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return fmt.Errorf("%s: %w", f.Name, err)
	}
	if hex.EncodeToString(hash.Sum(nil)) != f.SHA256 {
		return fmt.Errorf("%s has other content than when it was built", f.Name)
	}
	return nil
}

// checked reports whether the files below dir have the attributes they had when they were last hashed. Any write to a
// file changes them.
func checked(dir string) bool {
	before, err := os.ReadFile(filepath.Join(dir, checkedFile))
	if err != nil {
		return false
	}
	now, err := inspect(dir)
	return err == nil && bytes.Equal(before, now)
}

func markChecked(dir string) error {
	now, err := inspect(dir)
	if err != nil {
		return err
	}
	return writeSynced(filepath.Join(dir, checkedFile), bytes.NewReader(now), 0o644)
}

// inspect describes the files below dir without reading them.
func inspect(dir string) ([]byte, error) {
	m, err := readManifest(dir)
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	for _, f := range append(m.Files, File{Name: manifestFile}) {
		info, err := os.Lstat(filepath.Join(dir, f.Name))
		if err != nil {
			return nil, err
		}
		s, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return nil, fmt.Errorf("no inode known of %s", f.Name)
		}
		fmt.Fprintf(&text, "%s %o %d %d %d.%09d %d.%09d\n", f.Name, s.Mode, s.Size, s.Ino, s.Mtim.Sec, s.Mtim.Nsec, s.Ctim.Sec, s.Ctim.Nsec)
	}
	return text.Bytes(), nil
}
