package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"rivulet/offload/nodeagent/filetree"
)

// heldDir is below the parent of the folders. A folder is there while its files are transferred: a kubelet that mounts
// it for a pod finds nothing at its path, reports that on the pod, and retries. No order of events lets a pod in.
const heldDir = ".carried"

// patience is how long a transfer may take to end when its volume is needed, and a volume to be unmounted after its pod
// is deleted.
const patience = 10 * time.Second

// holds are the folders in exclusive use by this process.
type holds struct {
	patience time.Duration

	mu  sync.Mutex // also guards moves to and from heldDir
	all map[string]*hold
}

type hold struct {
	end  context.CancelFunc
	over chan struct{}
}

// take gives the caller exclusive use of a folder until done, and ends the use by an earlier caller; ctx2 ends with
// ctx, and when another caller takes it.
func (h *holds) take(ctx context.Context, name string) (ctx2 context.Context, done func(), err error) {
	late := time.After(h.patience)
	for {
		h.mu.Lock()
		other := h.all[name]
		if other == nil {
			break
		}
		h.mu.Unlock()
		other.end()
		select {
		case <-other.over:
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		case <-late:
			return nil, nil, filetree.ErrBusy
		}
	}
	defer h.mu.Unlock()
	ctx2, cancel := context.WithCancel(ctx)
	mine := &hold{cancel, make(chan struct{})}
	h.all[name] = mine
	return ctx2, func() {
		cancel()
		h.mu.Lock()
		delete(h.all, name)
		h.mu.Unlock()
		close(mine.over)
	}, nil
}

// Hold moves the folder of a volume away until release, so that no pod gets it; files are its content. held ends with
// ctx, when the volume is held again, and when it is to be removed. The error for a volume in use by a pod is
// filetree.ErrInUse.
func (l *Local) Hold(ctx context.Context, v *corev1.PersistentVolume) (held context.Context, files filetree.Tree, release func(), err error) {
	held, dir, release, err := l.hold(ctx, v)
	if err != nil {
		return nil, nil, nil, err
	}
	if files, err = filetree.OpenFolder(dir, v.Spec.Capacity.Storage().Value()); err != nil {
		release()
		return nil, nil, nil, err
	}
	return held, files, release, nil
}

// hold returns the path where the folder is meanwhile.
func (l *Local) hold(ctx context.Context, v *corev1.PersistentVolume) (held context.Context, dir string, release func(), err error) {
	name, err := l.name(v)
	if err != nil {
		return nil, "", nil, err
	}
	held, done, err := l.holds.take(ctx, name)
	if err != nil {
		return nil, "", nil, fmt.Errorf("volume %s: %w", v.Name, err)
	}
	release = func() {
		_ = l.putBack(name) // the next hold or start finds it
		done()
	}
	if err = l.takeAway(name); errors.Is(err, fs.ErrNotExist) {
		err = l.missing(name, v)
	}
	if err == nil {
		err = l.holds.unmounted(held, v.Name)
	}
	if err != nil {
		release()
		return nil, "", nil, err
	}
	return held, l.folders.heldPath(name), release, nil
}

func (f folders) heldPath(name string) string { return filepath.Join(f.dir, heldDir, name) }

// takeAway moves a folder to heldDir; it may be there since a crash.
func (l *Local) takeAway(name string) error {
	l.holds.mu.Lock()
	defer l.holds.mu.Unlock()
	if l.folders.exists(filepath.Join(heldDir, name)) && !l.folders.exists(name) {
		return nil
	}
	if err := os.Mkdir(l.folders.path(heldDir), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return withCure(err)
	}
	return withCure(unix.Renameat2(unix.AT_FDCWD, l.folders.path(name), unix.AT_FDCWD, l.folders.heldPath(name), unix.RENAME_NOREPLACE))
}

func (l *Local) putBack(name string) error {
	l.holds.mu.Lock()
	defer l.holds.mu.Unlock()
	return l.folders.putBack(name)
}

func (f folders) putBack(name string) error {
	err := unix.Renameat2(unix.AT_FDCWD, f.heldPath(name), unix.AT_FDCWD, f.path(name), unix.RENAME_NOREPLACE)
	_ = os.Remove(f.path(heldDir)) // if it is empty
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return withCure(err)
}

// recover moves back the folders that an earlier process had taken away.
func (l *Local) recover() error {
	l.holds.mu.Lock()
	defer l.holds.mu.Unlock()
	entries, err := os.ReadDir(l.folders.path(heldDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if l.holds.all[e.Name()] == nil {
			err = errors.Join(err, l.folders.putBack(e.Name()))
		}
	}
	return err
}

// remove removes a folder and its content, wherever it is, and ends transfers of it.
func (l *Local) remove(ctx context.Context, name string) error {
	ctx, done, err := l.holds.take(ctx, name)
	if err != nil {
		return err
	}
	defer done()
	if err := l.putBack(name); err != nil {
		return err
	}
	return l.folders.remove(ctx, name)
}

// unmounted waits until no pod uses a volume. The kubelet mounts it below the pod's folder, and may do so for a moment
// after the pod's object is gone.
func (h *holds) unmounted(ctx context.Context, name string) error {
	late := time.After(h.patience)
	for {
		at, err := firstMount(givenAs(name))
		if err != nil || at == "" {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-late:
			return fmt.Errorf("volume %s: %w: it is mounted at %s", name, filetree.ErrInUse, at)
		case <-time.After(100 * time.Millisecond):
		}
	}
}
