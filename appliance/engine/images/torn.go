package images

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"go.etcd.io/bbolt"

	"rivulet/appliance/state/boltcheck"
)

// containerd syncs the blobs of an image, but not the layers unpacked from them. A power cut within the next 30 s
// leaves files with their names and sizes but without their content, in an image that counts as complete for ever.

// committed is containerd's number for the snapshot kind of an image's layer.
const committed = 3

// unsure is how long the unpacking of a layer may take after it got its number.
const unsure = time.Minute

// newestLayer is the highest number of a layer in an overlayfs snapshotter's folder. The snapshotter counts up, and gives
// no number twice.
func newestLayer(snapshotter string) (n uint64, err error) {
	entries, err := os.ReadDir(filepath.Join(snapshotter, "snapshots"))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	for _, e := range entries {
		if id, err := strconv.ParseUint(e.Name(), 10, 64); err == nil {
			n = max(n, id)
		}
	}
	return n, err
}

// Torn returns the layers in an overlayfs snapshotter's folder that may lack content after a power cut: those above the
// newest that is on the disk for sure, and missing ones. Versions that have not recorded its number have the time of the
// last sync instead, synced.
func Torn(snapshotter string, sure uint64, synced time.Time) (layers []string, err error) {
	meta := filepath.Join(snapshotter, "metadata.db")
	if _, err := os.Stat(meta); errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	db, err := boltcheck.Open(meta)
	if err != nil {
		return nil, fmt.Errorf("images: %s: %w", meta, err)
	}
	defer db.Close()
	err = db.View(func(tx *bbolt.Tx) error {
		v1 := tx.Bucket([]byte("v1"))
		if v1 == nil || v1.Bucket([]byte("snapshots")) == nil {
			return nil
		}
		all := v1.Bucket([]byte("snapshots"))
		return all.ForEachBucket(func(key []byte) error {
			s := all.Bucket(key)
			if kind := s.Get([]byte("kind")); len(kind) != 1 || kind[0] != committed {
				return nil
			}
			id, _ := binary.Uvarint(s.Get([]byte("id")))
			dir := filepath.Join(snapshotter, "snapshots", fmt.Sprint(id))
			at, err := os.Stat(dir)
			if err != nil || id > sure && at.ModTime().After(synced.Add(-unsure)) {
				layers = append(layers, dir)
			}
			return nil
		})
	})
	return layers, err
}
