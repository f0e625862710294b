package bundle

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

const (
	current    = "current"
	lockFile   = ".lock"
	unfinished = ".new-" // prefix of a bundle that is being unpacked
)

type source struct {
	id   string // SHA-256 of data, hex
	data string
}

func unpack(root string, src source, log *slog.Logger) (Dir, error) {
	var disk unix.Statfs_t
	cure := func(err error) error {
		return fmt.Errorf("bundle: %w: see that %s is on a writable file system with 100 MB free, then start again", err, root)
	}
	if err := os.MkdirAll(root, 0o755); err != nil {
		return Dir{}, cure(err)
	}
	release, err := lock(filepath.Join(root, lockFile))
	if err != nil {
		return Dir{}, cure(err)
	}
	defer release()
	// Programs are started from here. The kernel answers "permission denied" then, which names no cause.
	if err := unix.Statfs(root, &disk); err == nil && disk.Flags&unix.ST_NOEXEC != 0 {
		return Dir{}, fmt.Errorf("bundle: %s is on a file system that is mounted noexec, and programs are started from there: mount -o remount,exec $(findmnt -nro TARGET -T %s), and take noexec out of /etc/fstab", root, root)
	}
	if err := removeUnfinished(root); err != nil {
		return Dir{}, cure(err)
	}
	dir := Dir{root: root, id: src.id}
	if err := ensure(root, src, log); err != nil {
		return Dir{}, cure(err)
	}
	before, err := pointCurrent(root, src.id)
	if err != nil {
		return Dir{}, cure(err)
	}
	if before != src.id {
		if err := removeOld(root, src.id, before); err != nil {
			log.Warn("old helpers are left on disk", "dir", root, "err", err)
		}
	}
	return dir, nil
}

// ensure makes sure that the complete bundle is at its place.
func ensure(root string, src source, log *slog.Logger) error {
	place := filepath.Join(root, src.id)
	damage := error(nil)
	switch _, err := os.Lstat(place); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case checked(place):
		return nil
	default:
		if damage = verify(place); damage == nil {
			return markChecked(place)
		}
		log.Warn("helpers on disk are damaged; unpacking them again", "dir", place, "err", damage)
	}
	fresh := filepath.Join(root, unfinished+src.id)
	if err := extract(src, fresh); err != nil {
		return err
	}
	if damage == nil {
		if err := os.Rename(fresh, place); err != nil {
			return err
		}
	} else if err := replace(fresh, place); err != nil {
		return err
	}
	log.Info("helpers unpacked", "dir", place)
	return syncDir(root)
}

// replace puts fresh in the place of place. On a file system that cannot exchange two folders in one step, there is
// none for a moment.
func replace(fresh, place string) error {
	if unix.Renameat2(unix.AT_FDCWD, fresh, unix.AT_FDCWD, place, unix.RENAME_EXCHANGE) != nil {
		if err := os.RemoveAll(place); err != nil {
			return err
		}
		return os.Rename(fresh, place)
	}
	return os.RemoveAll(fresh)
}

// replace moves fresh to place and removes what was there. On a file system that cannot exchange two folders in one
// step, there is none for a moment.
func extract(src source, dir string) error {
	sum := sha256.New()
	// In pieces, so that 13 MB are not copied.
	if _, err := io.Copy(sum, io.LimitReader(strings.NewReader(src.data), int64(len(src.data)))); err != nil {
		return err
	}
	if hex.EncodeToString(sum.Sum(nil)) != src.id {
		return errors.New("the helpers inside the rivulet binary are damaged: install it again")
	}
	// One goroutine and a small window: this runs once, with nothing else, on boards with little memory.
	plain, err := zstd.NewReader(strings.NewReader(src.data), zstd.WithDecoderConcurrency(1))
	if err != nil {
		return err
	}
	defer plain.Close()
	for archive := tar.NewReader(plain); ; {
		h, err := archive.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		if err := extractOne(dir, h, archive); err != nil {
			return err
		}
	}
	if err := verify(dir); err != nil {
		return err
	}
	if err := markChecked(dir); err != nil {
		return err
	}
	return filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() {
			return err
		}
		return syncDir(path)
	})
}

func extractOne(dir string, h *tar.Header, content io.Reader) error {
	if !filepath.IsLocal(h.Name) {
		return fmt.Errorf("%q leads out of the bundle", h.Name)
	}
	path := filepath.Join(dir, h.Name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeReg:
		return writeSynced(path, content, h.FileInfo().Mode())
	case tar.TypeSymlink:
		return os.Symlink(h.Linkname, path)
	}
	return fmt.Errorf("%q is neither a file nor a link", h.Name)
}

func writeSynced(path string, content io.Reader, mode fs.FileMode) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	return errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()) // chmod: whatever the umask is
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// pointCurrent makes the link point to id and returns the previous target.
func pointCurrent(root, id string) (before string, err error) {
	link := filepath.Join(root, current)
	before, err = os.Readlink(link)
	if err == nil && before == id {
		return before, nil
	}
	fresh := filepath.Join(root, unfinished+current)
	if err = os.Symlink(id, fresh); err == nil {
		err = os.Rename(fresh, link)
	}
	if err != nil {
		return "", err
	}
	return before, syncDir(root)
}

func removeUnfinished(root string) error {
	left, err := filepath.Glob(filepath.Join(root, unfinished+"*"))
	for _, path := range left {
		err = errors.Join(err, os.RemoveAll(path))
	}
	return err
}

// removeOld removes all bundles except these two.
func removeOld(root, id, before string) error {
	entries, err := os.ReadDir(root)
	for _, e := range entries {
		name := e.Name()
		if name != id && name != before && e.IsDir() && len(name) == 2*sha256.Size && strings.Trim(name, "0123456789abcdef") == "" {
			err = errors.Join(err, os.RemoveAll(filepath.Join(root, name)))
		}
	}
	return err
}

// lock waits until no other process unpacks. The lock ends with the process.
func lock(path string) (release func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}
