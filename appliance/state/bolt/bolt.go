// Package bolt stores what is needed before and without Kubernetes in one bbolt file: identity, peers, the node's name.
// Every write is synced before it returns. Only one process may have it open; the error for a second one names the
// first.
//
// Each write also refreshes a second file, PATH.copy, before it returns, so acknowledged data are in two places.
// Recover replaces a damaged or missing store by the copy; the damaged file is set aside, never deleted.
package bolt

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"rivulet/appliance/state/boltcheck"
	"rivulet/appliance/state/durable"
	"rivulet/fabric/peer"
)

var (
	bucketIdentity = []byte("identity")
	bucketPeers    = []byte("peers")
	bucketNode     = []byte("node")
	bucketNotes    = []byte("notes")
	keyIdentity    = []byte("key")
	keyName        = []byte("name")
)

// ErrInUse is returned by Open when another process has the store open.
var ErrInUse = errors.New("store: in use by another process")

// ErrDamaged is returned by Open when the file is not a sound bbolt database.
var ErrDamaged = errors.New("store: damaged")

// Store is the open database.
type Store struct {
	db   *bbolt.DB
	path string

	copyMu  sync.Mutex
	copyErr error // of the last refresh of the copy
}

// MakeFolder creates the state folder; Open does so too.
func MakeFolder(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("store: %w; choose a folder that root can write to with --state", err)
	}
	return nil
}

// Open opens or creates the database. It never changes a file that it cannot read.
func Open(path string) (*Store, error) {
	if err := MakeFolder(filepath.Dir(path)); err != nil {
		return nil, err
	}
	file, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		if _, err := os.Stat(CopyOf(path)); err == nil {
			return nil, damaged(path, errors.New("the file is gone, yet its copy is there"))
		}
		if err := create(path); err != nil {
			return nil, fmt.Errorf("store: %w; look at the disk (space, read-only mount), then start again", err)
		}
	case err != nil:
		return nil, fmt.Errorf("store: %w; look at the disk, then start again", err)
	case file.Mode().IsRegular() && file.Size() == 0:
		// bbolt would accept it as a new one. This store never was empty: see create.
		return nil, damaged(path, errors.New("the file is empty"))
	}
	s, err := open(path)
	if err != nil {
		return nil, err
	}
	s.refreshCopy()
	return s, nil
}

// create creates an empty database at path in one step, so that a full disk or a power cut leaves no partial file,
// which would count as damage.
func create(path string) error {
	fresh := path + ".new"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	db, err := bbolt.Open(fresh, 0o600, &bbolt.Options{Timeout: time.Second})
	if err != nil {
		os.Remove(fresh)
		return err
	}
	err = buckets(db)
	if cerr := db.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Link(fresh, path) // keeps one that another process has created meanwhile
		if errors.Is(err, os.ErrExist) {
			err = nil
		}
	}
	os.Remove(fresh)
	if err != nil {
		return err
	}
	return durable.SyncDir(filepath.Dir(path))
}

func buckets(db *bbolt.DB) error {
	return db.Update(func(tx *bbolt.Tx) error {
		for _, b := range [][]byte{bucketIdentity, bucketPeers, bucketNode, bucketNotes} {
			if _, err := tx.CreateBucketIfNotExists(b); err != nil {
				return err
			}
		}
		return nil
	})
}

func open(path string) (*Store, error) {
	db, err := boltcheck.Open(path)
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		return nil, fmt.Errorf("%w: %s", ErrInUse, path)
	case errors.Is(err, os.ErrPermission):
		return nil, fmt.Errorf("store: %w; run as root", err)
	case errors.Is(err, boltcheck.ErrDamaged):
		return nil, damaged(path, errors.Unwrap(err))
	case err != nil:
		return nil, fmt.Errorf("store: %w; look at the disk (space, read-only mount), then start again", err)
	}
	if err := buckets(db); err != nil {
		db.Close()
		return nil, fmt.Errorf("store: %w; look at the disk (space, read-only mount), then start again", err)
	}
	return &Store{db: db, path: path}, nil
}

// damageError is ErrDamaged with its cause.
type damageError struct {
	path  string
	cause error
}

func damaged(path string, cause error) error { return &damageError{path, cause} }

func (d *damageError) Unwrap() []error { return []error{ErrDamaged, d.cause} }

func (d *damageError) Error() string {
	return fmt.Sprintf("%v: %s: %v; nothing was changed. Restore it from a backup, or move it and its copy away "+
		"(mkdir %[2]s.away; mv %[2]s %[2]s.copy %[2]s.away): the device then starts as a new cluster, its pods are kept, its peers have to be paired again",
		ErrDamaged, d.path, d.cause)
}

// Close releases the file.
func (s *Store) Close() error { return s.db.Close() }

// Identity returns the stored identity, nil if there is none.
func (s *Store) Identity() (blob []byte, err error) {
	err = s.db.View(func(tx *bbolt.Tx) error {
		if v := tx.Bucket(bucketIdentity).Get(keyIdentity); v != nil {
			blob = append([]byte{}, v...)
		}
		return nil
	})
	return blob, err
}

// PutIdentity stores the identity.
func (s *Store) PutIdentity(blob []byte) error {
	return s.put(bucketIdentity, keyIdentity, blob)
}

// NodeName returns the name of this device's node, empty before the first start.
func (s *Store) NodeName() (name string, err error) {
	err = s.db.View(func(tx *bbolt.Tx) error {
		name = string(tx.Bucket(bucketNode).Get(keyName))
		return nil
	})
	return name, err
}

// PutNodeName stores the name of this device's node.
func (s *Store) PutNodeName(name string) error { return s.put(bucketNode, keyName, []byte(name)) }

// Note returns what PutNote stored under a name, nil if there is nothing.
func (s *Store) Note(name string) (blob []byte, err error) {
	err = s.db.View(func(tx *bbolt.Tx) error {
		blob = bytes.Clone(tx.Bucket(bucketNotes).Get([]byte(name)))
		return nil
	})
	return blob, err
}

// PutNote stores data of one component, which chooses name and form. An empty blob deletes the note.
func (s *Store) PutNote(name string, blob []byte) error {
	if len(blob) > 0 {
		return s.put(bucketNotes, []byte(name), blob)
	}
	return s.update(func(tx *bbolt.Tx) error { return tx.Bucket(bucketNotes).Delete([]byte(name)) })
}

// PutPeer stores a peer's record; when it returns nil the record survives a power cut.
func (s *Store) PutPeer(r peer.Record) error {
	blob, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("store: peer %s: %w", r.ID, err)
	}
	return s.put(bucketPeers, []byte(r.ID), blob)
}

// DeletePeer deletes a peer's record; a missing one is no error. It returns an error while the copy still has it,
// because Recover must not restore a removed peer.
func (s *Store) DeletePeer(id peer.ID) error {
	if err := s.update(func(tx *bbolt.Tx) error { return tx.Bucket(bucketPeers).Delete([]byte(id)) }); err != nil {
		return err
	}
	return s.CopyError()
}

// Peers returns all records. An unreadable one is an error, never left out; an unusable key in it is left out
// (peer.Decode).
func (s *Store) Peers() (out []peer.Record, err error) {
	err = s.db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketPeers).ForEach(func(k, v []byte) error {
			r, err := peer.Decode(v)
			if err != nil {
				return fmt.Errorf("store: peer %s: %w", k, err)
			}
			out = append(out, r)
			return nil
		})
	})
	return out, err
}

func (s *Store) put(bucket, key, value []byte) error {
	return s.update(func(tx *bbolt.Tx) error { return tx.Bucket(bucket).Put(key, value) })
}

// update writes durably, and then refreshes the copy.
func (s *Store) update(f func(*bbolt.Tx) error) error {
	if err := s.db.Update(f); err != nil {
		return fmt.Errorf("store: %s: %w; look at the disk (space, read-only mount)", s.path, err)
	}
	s.refreshCopy()
	return nil
}
