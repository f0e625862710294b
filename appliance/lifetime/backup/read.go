package backup

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/klauspost/compress/zstd"

	"rivulet/appliance/state/bolt"
	"rivulet/appliance/state/durable"
)

// stage unpacks a stream into dir, which is empty, and checks all of it. Any error
// says what is wrong with the stream or the disk.
func stage(ctx context.Context, in io.Reader, passphrase, ourKubernetes, dir string) (m Manifest, err error) {
	plain, err := unseal(in, passphrase)
	if err != nil {
		return m, err
	}
	unpacked, err := zstd.NewReader(plain, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(64<<20))
	if err != nil {
		return m, unusable("it cannot be unpacked: %w; take another copy of the file", err)
	}
	defer unpacked.Close()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return m, fmt.Errorf("backup: %w", err)
	}
	defer root.Close()
	s := &stager{root: root, kubernetes: ourKubernetes, sums: map[string]string{}}
	for archive := tar.NewReader(unpacked); ; {
		if err := ctx.Err(); err != nil {
			return m, err
		}
		h, err := archive.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return m, cut(err)
		}
		if err := s.member(h, archive); err != nil {
			return m, err
		}
	}
	// To the very end: the last bytes carry checksums of their own.
	if n, err := io.Copy(io.Discard, unpacked); err != nil || n > 0 {
		return m, cut(err)
	}
	if !s.ended {
		return m, unusable("it ends too early; take another copy of the file")
	}
	for _, name := range []string{storeName, datastoreName, passwordName, path.Join(serverDir, "token"), path.Join(serverDir, "tls/server-ca.key")} {
		if _, ok := s.sums[name]; !ok {
			return m, unusable("%s is missing in it; take another backup file", name)
		}
	}
	return s.manifest, checkContent(ctx, dir, s.manifest)
}

// cut names what a reader's error mostly means.
func cut(err error) error {
	if err == nil || errors.Is(err, io.ErrUnexpectedEOF) {
		return unusable("it ends too early; take another copy of the file")
	}
	return unusable("it is damaged: %w; take another copy of the file", err)
}

// checkContent opens both databases as their owners would.
func checkContent(ctx context.Context, dir string, m Manifest) error {
	if err := sound(ctx, filepath.Join(dir, datastoreName)); err != nil {
		return unusable("%w; take another backup file", err)
	}
	st, err := bolt.Open(filepath.Join(dir, storeName))
	if err != nil {
		return unusable("its state.db is damaged; take another backup file")
	}
	defer st.Close()
	if name, err := st.NodeName(); err != nil || name != m.Node {
		return unusable("its state.db is of node %q, its manifest of %q; take another backup file", name, m.Node)
	}
	return nil
}

// stager takes the members of a stream one by one.
type stager struct {
	root       *os.Root
	kubernetes string
	manifest   Manifest
	sums       map[string]string // of the regular files so far
	ended      bool              // the last member was seen
}

func (s *stager) member(h *tar.Header, content io.Reader) error {
	first := s.manifest.Format == 0
	switch {
	case s.ended:
		return unusable("something follows its end; take another copy of the file")
	case first && h.Name != manifestName:
		return unusable("it does not begin with a manifest, so it is not a rivulet backup; look at the file's name")
	case !known(h.Name):
		return unusable("%q has no place in a backup; take another copy of the file", h.Name)
	}
	if _, again := s.sums[h.Name]; again {
		return unusable("%s is in it twice; take another copy of the file", h.Name)
	}
	switch h.Name {
	case manifestName, sumsName:
		raw, err := io.ReadAll(io.LimitReader(content, 64<<20))
		if err != nil {
			return cut(err)
		}
		if h.Name == sumsName {
			return s.end(raw)
		}
		sum := sha256.Sum256(raw)
		s.sums[h.Name] = hex.EncodeToString(sum[:])
		if err := json.Unmarshal(raw, &s.manifest); err != nil {
			return unusable("its manifest cannot be read: %w; take another copy of the file", err)
		}
		return s.manifest.check(s.kubernetes) // before anything else is read
	}
	return s.unpack(h, content)
}

// known reports whether name is a place of this format.
func known(name string) bool {
	name = strings.TrimSuffix(name, "/")
	if name != path.Clean(name) || !filepath.IsLocal(name) {
		return false
	}
	if slices.Contains([]string{manifestName, sumsName, storeName, datastoreName, passwordName}, name) {
		return true
	}
	first, _, below := strings.Cut(name, "/")
	return below && slices.Contains([]string{serverDir, configDir, storageDir}, first)
}

// end compares the sums of the last member with those of what was unpacked.
func (s *stager) end(raw []byte) error {
	want := map[string]string{}
	for lines := bufio.NewScanner(bytes.NewReader(raw)); lines.Scan(); {
		sum, name, ok := strings.Cut(lines.Text(), "  ")
		if !ok {
			return unusable("its list of checksums cannot be read; take another copy of the file")
		}
		if plain, err := strconv.Unquote(name); err == nil {
			name = plain
		}
		want[name] = sum
	}
	for name, sum := range s.sums {
		if want[name] != sum {
			return unusable("%s has another checksum than it should have; take another copy of the file", name)
		}
	}
	for name := range want {
		if _, ok := s.sums[name]; !ok {
			return unusable("%s is missing in it; take another copy of the file", name)
		}
	}
	s.ended = true
	return nil
}

// unpack writes one member below the root, which nothing in the stream can lead
// out of, with its owner, rights and times.
func (s *stager) unpack(h *tar.Header, content io.Reader) error {
	name := strings.TrimSuffix(h.Name, "/")
	disk := func(err error) error {
		return fmt.Errorf("backup: unpack %s: %w; look at the disk (space, read-only mount); nothing was changed", name, err)
	}
	if err := s.root.MkdirAll(path.Dir(name), 0o700); err != nil {
		return disk(err)
	}
	mode := fs.FileMode(h.Mode).Perm()
	special := h.FileInfo().Mode() & (fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky)
	switch h.Typeflag {
	case tar.TypeDir:
		if err := s.root.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return disk(err)
		}
	case tar.TypeSymlink:
		if err := s.root.Symlink(h.Linkname, name); err != nil {
			return disk(err)
		}
		if err := s.root.Lchown(name, h.Uid, h.Gid); err != nil {
			return disk(err)
		}
		return nil
	case tar.TypeReg:
		if err := s.file(name, content); err != nil {
			return err
		}
	default:
		return unusable("%s is neither a file, a folder nor a link; take another copy of the file", name)
	}
	if err := s.root.Lchown(name, h.Uid, h.Gid); err != nil {
		return disk(err)
	}
	if err := s.root.Chmod(name, mode|special); err != nil { // after the owner, which clears set-uid
		return disk(err)
	}
	if err := s.root.Chtimes(name, h.ModTime, h.ModTime); err != nil {
		return disk(err)
	}
	return nil
}

func (s *stager) file(name string, content io.Reader) error {
	f, err := s.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("backup: %w; look at the disk (space, read-only mount); nothing was changed", err)
	}
	defer f.Close()
	sum := sha256.New()
	w := &durable.Writer{Writer: f}
	if _, err := io.Copy(io.MultiWriter(w, sum), content); err != nil {
		if w.Err != nil {
			return fmt.Errorf("backup: %w; look at the disk (space, read-only mount); nothing was changed", w.Err)
		}
		return cut(err)
	}
	s.sums[name] = hex.EncodeToString(sum.Sum(nil))
	return f.Close()
}
