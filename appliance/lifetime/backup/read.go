package backup

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"rivulet/appliance/engine/datastore"
	"rivulet/appliance/state/archive"
	"rivulet/appliance/state/bolt"
)

// stage unpacks a stream into the empty folder dir, and checks all of it. Errors describe a defect of the stream or the
// disk.
func stage(ctx context.Context, in io.Reader, passphrase, ourKubernetes, dir string) (m Manifest, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return m, fmt.Errorf("backup: %w", err)
	}
	defer root.Close()
	s := &stager{root: root, kubernetes: ourKubernetes, links: map[string]bool{}}
	names, err := archive.Read(ctx, in, passphrase, s.member)
	var wrong *archive.Error
	if errors.As(err, &wrong) {
		return m, unusable("%w", err)
	}
	if err != nil {
		return m, err
	}
	for _, name := range []string{storeName, s.manifest.objects(), passwordName, path.Join(serverDir, "token"), path.Join(serverDir, "tls/server-ca.key")} {
		if !names[name] {
			return m, unusable("%s is missing in it; take another backup file", name)
		}
	}
	return s.manifest, checkContent(ctx, dir, s.manifest)
}

// Verify reads a backup that was just written to its end, and returns an error if a restore would refuse it as damaged.
func Verify(ctx context.Context, in io.Reader, passphrase string) error {
	_, err := archive.Read(ctx, in, passphrase, func(h *tar.Header, _ io.Reader) error {
		if !known(h.Name) {
			return fmt.Errorf("%q has no place in a backup", h.Name)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("the backup was written, and cannot be read back: %w", err)
	}
	return nil
}

// checkContent opens both databases as their owners would.
func checkContent(ctx context.Context, dir string, m Manifest) error {
	if m.SQL != "" {
		if c, err := datastore.LoadSQLCluster(dir); err != nil || c.Token == "" {
			return unusable("its %s is damaged; take another backup file", sqlName)
		}
	} else if err := sound(ctx, filepath.Join(dir, datastoreName)); err != nil {
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

// stager unpacks the members of a stream one by one.
type stager struct {
	root       *os.Root
	kubernetes string
	manifest   Manifest
	links      map[string]bool
}

// maxManifest bounds the manifest, bytes.
const maxManifest = 1 << 20

func (s *stager) member(h *tar.Header, content io.Reader) error {
	first := s.manifest.Format == 0
	switch {
	case first && h.Name != manifestName:
		return unusable("it does not begin with a manifest, so it is not a rivulet backup; look at the file's name")
	case !known(h.Name):
		return unusable("%q has no place in a backup; take another copy of the file", h.Name)
	case first:
		if err := json.NewDecoder(io.LimitReader(content, maxManifest)).Decode(&s.manifest); err != nil {
			return unusable("its manifest cannot be read: %w; take another copy of the file", err)
		}
		return s.manifest.check(s.kubernetes) // before anything else is read
	}
	return s.unpack(h, content)
}

// known reports whether name is valid in this format.
func known(name string) bool {
	name = strings.TrimSuffix(name, "/")
	if name != path.Clean(name) || !filepath.IsLocal(name) {
		return false
	}
	if slices.Contains([]string{manifestName, storeName, datastoreName, sqlName, gatewayName, deviceName, passwordName}, name) {
		return true
	}
	first, _, below := strings.Cut(name, "/")
	return below && slices.Contains([]string{serverDir, configDir, storageDir, vclustersDir}, first)
}

// unpack writes one member below the root, which nothing in the stream can escape, with its owner, permissions and
// times.
func (s *stager) unpack(h *tar.Header, content io.Reader) error {
	name := strings.TrimSuffix(h.Name, "/")
	disk := func(err error) error {
		return fmt.Errorf("backup: unpack %s: %w; look at the disk (space, read-only mount); nothing was changed", name, err)
	}
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if s.links[dir] {
			return unusable("%s is behind a link; take another copy of the file", name)
		}
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
		s.links[name] = true
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
	if err == nil {
		_, err = io.Copy(f, content)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return fmt.Errorf("backup: %w; look at the disk (space, read-only mount); nothing was changed", err)
	}
	return nil
}
