package volumes

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	corev1 "k8s.io/api/core/v1"

	"rivulet/offload/nodeagent/filetree"
)

// nameMax is the longest name that Linux file systems accept, bytes.
const nameMax = 255

// folders are those of volumes. Every access goes through an os.Root: no name, and nothing that a pod creates in its
// folder, leads out of it.
type folders struct{ dir string }

// folderName contains namespace and claim for people; the volume's name makes it unique. It is no path: names of
// Kubernetes objects contain neither slash nor underscore.
func folderName(namespace, claim, volume string) string {
	rest := len(namespace) + len(volume) + 2
	return namespace + "_" + claim[:min(len(claim), max(0, nameMax-rest))] + "_" + volume
}

// nameOf returns the folder of this provisioner's volume, or why its path is not valid.
func (f folders) nameOf(v *corev1.PersistentVolume) (string, error) {
	if v.Spec.Local == nil {
		return "", fmt.Errorf("volume %s is not of type local; it was not made here", v.Name)
	}
	path := v.Spec.Local.Path
	name := filepath.Base(path)
	if filepath.Join(f.dir, name) != path || !strings.HasSuffix(name, "_"+v.Name) {
		return "", fmt.Errorf("volume %s has the path %s, which is not a folder of it below %s", v.Name, path, f.dir)
	}
	return name, nil
}

func (f folders) path(name string) string { return filepath.Join(f.dir, name) }

// prepare creates the parent of the folders. Only root may enter it, because the folders themselves are open to every
// user.
func (f folders) prepare() error {
	err := os.MkdirAll(f.dir, 0o700)
	if err == nil {
		err = f.within(func(root *os.Root) error { return root.Chmod(".", 0o700) })
	}
	if err != nil {
		return fmt.Errorf("storage: no volumes can be made: %w; look at the disk (space, read-only mount), it is tried again", err)
	}
	return nil
}

func (f folders) within(do func(*os.Root) error) error {
	root, err := os.OpenRoot(f.dir)
	if err != nil {
		return err
	}
	defer root.Close()
	return do(root)
}

// make creates a folder to which users of any ID may write, and syncs it before it returns. An existing one is kept.
func (f folders) make(name string) error {
	return f.within(func(root *os.Root) error {
		if err := root.Mkdir(name, 0o777); err != nil && !errors.Is(err, fs.ErrExist) {
			return withCure(err)
		}
		if fi, err := root.Lstat(name); err != nil || !fi.IsDir() {
			return errors.Join(err, fmt.Errorf("%s is not a folder", f.path(name)))
		}
		if err := root.Chmod(name, 0o777); err != nil { // the process may have a umask
			return err
		}
		return flush(root)
	})
}

// remove removes a folder and its content, without following links or crossing file systems. A missing one is no error.
func (f folders) remove(ctx context.Context, name string) error {
	if at, err := firstMount(below(f.path(name))); err != nil || at != "" {
		return errors.Join(err, fmt.Errorf("something is mounted at %s; umount it, its files are not this volume's", at))
	}
	if f.exists(name) {
		if err := filetree.Clear(ctx, f.path(name)); err != nil {
			return withCure(err)
		}
	}
	return f.within(func(root *os.Root) error {
		if err := root.RemoveAll(name); err != nil { // a file, if another program has put one there
			return withCure(err)
		}
		return flush(root)
	})
}

// removeEmpty removes a folder if it is empty, and reports whether it did.
func (f folders) removeEmpty(name string) (gone bool, err error) {
	err = f.within(func(root *os.Root) error {
		// Remove would take a file as well.
		if fi, err := root.Lstat(name); err != nil || !fi.IsDir() {
			return err
		}
		switch err := root.Remove(name); {
		case errors.Is(err, syscall.ENOTEMPTY):
			return nil
		case err != nil:
			return err
		}
		gone = true
		return flush(root)
	})
	return gone, err
}

func (f folders) exists(name string) bool {
	fi, err := os.Lstat(f.path(name))
	return err == nil && fi.IsDir()
}

// list returns the names of all folders.
func (f folders) list() ([]string, error) {
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		return nil, fmt.Errorf("storage: %w", err)
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// space returns the file system of the folders.
func (f folders) space() (filetree.Disk, error) {
	d, err := filetree.DiskOf(f.dir)
	if err != nil {
		return d, fmt.Errorf("storage: %w", err)
	}
	return d, nil
}

// flush syncs the names in a folder.
func flush(root *os.Root) error {
	d, err := root.Open(".")
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// withCure adds the cure to errors of the disk.
func withCure(err error) error {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("%w; free space or inodes on the device's disk", err)
	case errors.Is(err, syscall.EROFS):
		return fmt.Errorf("%w; the device's disk is mounted read-only, look at the kernel's log for why", err)
	case errors.Is(err, syscall.EPERM):
		return fmt.Errorf("%w; a file may be immutable: chattr -R -i on the folder", err)
	}
	return err
}

// below matches mount points at or below path.
func below(path string) func(string) bool {
	return func(at string) bool { return at == path || strings.HasPrefix(at, path+"/") }
}

// givenAs matches the path where the kubelet mounts a volume of type local for a pod.
func givenAs(volume string) func(string) bool {
	return func(at string) bool { return strings.HasSuffix(at, "/volumes/kubernetes.io~local-volume/"+volume) }
}

// firstMount returns the first mount point that matches, or "".
func firstMount(is func(at string) bool) (string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	defer f.Close()
	return firstMountOf(f, is)
}

func firstMountOf(mountinfo io.Reader, is func(at string) bool) (string, error) {
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	s := bufio.NewScanner(mountinfo)
	for s.Scan() {
		// ID parent major:minor root mount-point options …
		fields := strings.Fields(s.Text())
		if len(fields) < 5 {
			continue
		}
		if at := unescape.Replace(fields[4]); is(at) {
			return at, nil
		}
	}
	return "", s.Err()
}
