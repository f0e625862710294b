package boltcheck

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/bbolt"
)

func TestCheck(t *testing.T) {
	path := filepath.Join(t.TempDir(), "meta.db")
	if err := Check(path); err != nil {
		t.Errorf("no file: %v", err)
	}
	db, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		b, err := tx.CreateBucket([]byte("v1"))
		if err != nil {
			return err
		}
		for i := range 500 {
			if err := b.Put([]byte(strings.Repeat("k", i+1)), make([]byte, 100)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := Check(path); err != nil {
		t.Errorf("in use: %v", err)
	}
	db.Close()
	if err := Check(path); err != nil {
		t.Errorf("sound: %v", err)
	}
	sound, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{
		"empty": {}, "garbage": []byte(strings.Repeat("garbage!", 9000)), "cut off": sound[:5*os.Getpagesize()],
	} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		for range 2 { // the first look does not keep the file's lock
			if err := Check(path); !errors.Is(err, ErrDamaged) || errors.Unwrap(err) == nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}
