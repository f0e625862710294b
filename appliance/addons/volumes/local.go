package volumes

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// Local gives others the folders of this device's volumes: the move of a claim's data,
// and what is lent to other clusters. The Controller shares it, so that nothing is removed
// under a transfer.
type Local struct {
	folders folders
	node    string
	holds   *holds
}

// NewLocal returns that of a device, of which there is one in a process. dir is where the
// folders are; it is made if need be.
func NewLocal(dir, node string) *Local {
	return &Local{folders{filepath.Clean(dir)}, node, &holds{patience: patience, all: map[string]*hold{}}}
}

// Node is the device's node.
func (l *Local) Node() string { return l.node }

// Folder returns where the files of a volume are.
func (l *Local) Folder(v *corev1.PersistentVolume) (string, error) {
	name, err := l.name(v)
	if err != nil {
		return "", err
	}
	if !l.folders.exists(name) {
		return "", l.missing(name, v)
	}
	return l.folders.path(name), nil
}

func (l *Local) name(v *corev1.PersistentVolume) (string, error) {
	if !isOn(v, l.node) {
		return "", fmt.Errorf("volume %s is not a folder of this device; only such can be carried", v.Name)
	}
	return l.folders.nameOf(v)
}

func (l *Local) missing(name string, v *corev1.PersistentVolume) error {
	return fmt.Errorf("the folder %s of volume %s is not there; see: rivulet status", l.folders.path(name), v.Name)
}

// Capacity is the size of the disk on which they are, in bytes.
func (l *Local) Capacity() (int64, error) {
	if err := l.folders.prepare(); err != nil {
		return 0, err
	}
	total, _, err := l.folders.space()
	return int64(total), err
}

// Fresh makes an empty folder for a volume that will be made for the claim. What an
// earlier try has left in it is removed.
func (l *Local) Fresh(namespace, claim, volume string) (string, error) {
	name := folderName(namespace, claim, volume)
	if err := errors.Join(l.folders.prepare(), l.Discard(namespace, claim, volume)); err != nil {
		return "", err
	}
	return l.folders.path(name), l.folders.make(name)
}

// Discard removes that folder. It is no error if it is gone.
func (l *Local) Discard(namespace, claim, volume string) error {
	return l.remove(context.Background(), folderName(namespace, claim, volume))
}

// Volume is the object for that folder, bound to the next claim of that name. class may
// be nil.
func (l *Local) Volume(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, volume string) *corev1.PersistentVolume {
	return newVolume(claim, class, volume, l.folders.path(folderName(claim.Namespace, claim.Name, volume)), l.node)
}
