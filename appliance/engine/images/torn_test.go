package images

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/bbolt"
)

func TestTornLayers(t *testing.T) {
	dir := t.TempDir()
	synced := time.Now().Add(-time.Hour)
	if torn, err := Torn(dir, synced); torn != nil || err != nil {
		t.Errorf("nothing there: %v %v", torn, err)
	}
	db, err := bbolt.Open(filepath.Join(dir, "metadata.db"), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		v1, _ := tx.CreateBucket([]byte("v1"))
		all, err := v1.CreateBucket([]byte("snapshots"))
		if err != nil {
			return err
		}
		for id, kind := range map[uint64]byte{1: committed, 2: committed, 3: 2, 4: committed} {
			s, err := all.CreateBucket(fmt.Appendf(nil, "k8s.io/%d/sha256:x", id))
			if err != nil {
				return err
			}
			if err := s.Put([]byte("kind"), []byte{kind}); err != nil {
				return err
			}
			if err := s.Put([]byte("id"), binary.AppendUvarint(nil, id)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	db.Close()
	for id, at := range map[int]time.Time{1: synced.Add(-time.Hour), 2: synced.Add(time.Second), 3: synced.Add(time.Second)} {
		path := filepath.Join(dir, "snapshots", fmt.Sprint(id))
		if err := os.MkdirAll(path, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
	torn, err := Torn(dir, synced) // 2 is younger, 3 a container's own, 4 is missing
	if err != nil || len(torn) != 2 {
		t.Errorf("%v %v", torn, err)
	}
}
