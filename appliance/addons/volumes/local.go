package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"rivulet/offload/nodeagent/filetree"
)

// Local gives access to the folders of this device's volumes: for transfers of a claim's data, and for volumes of other
// clusters. The Controller shares it, so that nothing is removed during a transfer.
type Local struct {
	folders folders
	node    string
	holds   *holds
}

// NewLocal returns the Local of a device, of which there is one in a process. dir is the parent of the folders; it is
// created if needed.
func NewLocal(dir, node string) *Local {
	return &Local{folders{filepath.Clean(dir)}, node, &holds{patience: patience, all: map[string]*hold{}}}
}

// Node is the device's node.
func (l *Local) Node() string { return l.node }

// Files are those of a volume. They are not kept from pods.
func (l *Local) Files(v *corev1.PersistentVolume) (filetree.Tree, error) {
	name, err := l.name(v)
	if err != nil {
		return nil, err
	}
	l.holds.mu.Lock()
	defer l.holds.mu.Unlock()
	dir := l.folders.path(name)
	if !l.folders.exists(name) {
		if !l.folders.exists(filepath.Join(heldDir, name)) {
			return nil, l.missing(name, v)
		}
		dir = l.folders.heldPath(name)
	}
	return filetree.OpenFolder(dir, v.Spec.Capacity.Storage().Value())
}

func (l *Local) name(v *corev1.PersistentVolume) (string, error) {
	if !IsOn(v, l.node) {
		return "", fmt.Errorf("volume %s is not a folder of node %s; only such can be carried", v.Name, l.node)
	}
	return l.folders.nameOf(v)
}

func (l *Local) missing(name string, v *corev1.PersistentVolume) error {
	return fmt.Errorf("the folder %s of volume %s: %w; see: rivulet status", l.folders.path(name), v.Name, fs.ErrNotExist)
}

// Capacity is the size of their disk, bytes.
func (l *Local) Capacity() (int64, error) {
	if err := l.folders.prepare(); err != nil {
		return 0, err
	}
	disk, err := l.folders.space()
	return disk.Size, err
}

// NodeOf is the device's node for a volume that is on it, otherwise "".
func (l *Local) NodeOf(v *corev1.PersistentVolume) string {
	if IsOn(v, l.node) {
		return l.node
	}
	return ""
}

// Usage reads the disk of the device's node, and what these volumes take of it, for an equal part of the time that ctx
// leaves each. Those that are not here, or are held, are left out.
func (l *Local) Usage(ctx context.Context, node string, of []*corev1.PersistentVolume) (filetree.Usage, error) {
	if node != l.node {
		return filetree.Usage{}, fmt.Errorf("storage: node %s is another device; see: rivulet nodes", node)
	}
	u := filetree.Usage{Volumes: map[string]filetree.Taken{}}
	for i, v := range of {
		name, err := l.name(v)
		if err != nil || !l.folders.exists(name) {
			continue
		}
		within, cancel := ctx, context.CancelFunc(func() {})
		if end, bounded := ctx.Deadline(); bounded {
			within, cancel = context.WithTimeout(ctx, time.Until(end)/time.Duration(len(of)-i))
		}
		u.Volumes[v.Name] = filetree.Take(within, l.folders.path(name))
		cancel()
	}
	var err error
	u.Disk, err = l.folders.space() // as it is after that
	return u, err
}

// Fresh creates an empty folder for a future volume of the claim. It removes content of an earlier attempt.
func (l *Local) Fresh(namespace, claim, volume string) (string, error) {
	name := folderName(namespace, claim, volume)
	if err := errors.Join(l.folders.prepare(), l.Discard(namespace, claim, volume)); err != nil {
		return "", err
	}
	return l.folders.path(name), l.folders.make(name)
}

// Discard removes that folder. A missing one is no error.
func (l *Local) Discard(namespace, claim, volume string) error {
	return l.remove(context.Background(), folderName(namespace, claim, volume))
}

// Volume is the object for that folder, bound to the next claim of that name. class may be nil.
func (l *Local) Volume(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, volume string) *corev1.PersistentVolume {
	return newVolume(claim, class, volume, l.folders.path(folderName(claim.Namespace, claim.Name, volume)), l.node)
}
