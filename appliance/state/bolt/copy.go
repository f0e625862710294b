package bolt

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"go.etcd.io/bbolt"

	"rivulet/appliance/state/durable"
	"rivulet/appliance/state/quarantine"
)

// CopyOf is the path of the copy of the store at path.
func CopyOf(path string) string { return path + ".copy" }

// Recovered has the results of Recover.
type Recovered struct {
	Cause error  // why the store could not be used
	Aside string // path of the damaged file; empty if it was missing
	// Written is the time of the copy, which has each acknowledged write, unless it could not be refreshed then (see
	// CopyError).
	Written time.Time
	Peers   int
}

// OpenOrRecover is Open, after Recover if the store is damaged; recovered is nil if it was not.
func OpenOrRecover(path string) (s *Store, recovered *Recovered, err error) {
	if s, err = Open(path); !errors.Is(err, ErrDamaged) {
		return s, nil, err
	}
	r, err := Recover(path, err)
	if err != nil {
		return nil, nil, err
	}
	s, err = Open(path)
	return s, &r, err
}

// Recover replaces a store for which Open returns ErrDamaged by the copy. If the copy is no better it returns cause,
// and changes nothing. It may be interrupted at any moment and called again.
func Recover(path string, cause error) (Recovered, error) {
	r := Recovered{Cause: cause}
	if d := (*damageError)(nil); errors.As(cause, &d) {
		r.Cause = d.cause
	}
	copied := CopyOf(path)
	at, err := os.Stat(copied)
	if err == nil && at.Size() == 0 { // bbolt would accept it as a new one
		return r, fmt.Errorf("%w; its copy is no better", cause)
	}
	if err != nil {
		return r, fmt.Errorf("%w; there is no copy of it either", cause)
	}
	r.Written = at.ModTime()
	err = durable.Replace(path, 0o600, func(f *os.File) error {
		in, err := os.Open(copied)
		if err == nil {
			defer in.Close()
			_, err = io.Copy(f, in)
		}
		if err != nil {
			return fmt.Errorf("%w; its copy cannot be used: %w", cause, err)
		}
		// Checked before it replaces anything.
		s, err := open(f.Name())
		if err == nil {
			var peers, perr = s.Peers()
			r.Peers, err = len(peers), errors.Join(perr, s.Close())
		}
		if err != nil {
			return fmt.Errorf("%w; its copy is no better", cause)
		}
		if _, err := os.Lstat(path); err == nil {
			r.Aside, err = quarantine.Link(path)
			return err
		}
		return nil
	})
	return r, err
}

// CopyError is why the copy is older than the store, nil if it is not.
func (s *Store) CopyError() error {
	s.copyMu.Lock()
	defer s.copyMu.Unlock()
	return s.copyErr
}

// refreshCopy writes the copy again. A failure is no error of the write, because the store itself is sound. The next
// write retries it.
func (s *Store) refreshCopy() {
	s.copyMu.Lock()
	defer s.copyMu.Unlock()
	path := CopyOf(s.path)
	s.copyErr = durable.Replace(path, 0o600, func(f *os.File) error {
		return s.db.View(func(tx *bbolt.Tx) error {
			_, err := tx.WriteTo(f)
			return durable.Cure(err)
		})
	})
	if s.copyErr != nil {
		s.copyErr = fmt.Errorf("store: the copy of %s: %w", s.path, s.copyErr)
	}
}

// Content is all of a store.
type Content struct {
	Identity []byte
	Node     string
	Peers    map[string][]byte // as PutPeer stores them, by ID
	Notes    map[string][]byte
}

// Create makes a store with this content; one at path is replaced, in one step.
func Create(path string, c Content) error {
	next := path + ".new"
	for _, old := range []string{next, CopyOf(next)} { // of a try that was cut off
		if err := durable.Remove(old); err != nil {
			return err
		}
	}
	st, err := Open(next)
	if err != nil {
		return err
	}
	err = st.update(func(tx *bbolt.Tx) error {
		err := errors.Join(tx.Bucket(bucketIdentity).Put(keyIdentity, c.Identity), tx.Bucket(bucketNode).Put(keyName, []byte(c.Node)))
		for id, blob := range c.Peers {
			err = errors.Join(err, tx.Bucket(bucketPeers).Put([]byte(id), blob))
		}
		for name, blob := range c.Notes {
			err = errors.Join(err, tx.Bucket(bucketNotes).Put([]byte(name), blob))
		}
		return err
	})
	if err := errors.Join(err, st.Close(), durable.Remove(CopyOf(next))); err != nil {
		return err
	}
	return Replace(next, path)
}

// PutBack puts the content of the store in file in the place of that at path, once all of it was read. The copy beside
// path is the former store's until the new one was opened; like any start, that refreshes it.
func PutBack(file, path string) error {
	err := durable.Replace(path, 0o600, func(f *os.File) error {
		in, err := os.Open(file)
		if err == nil {
			defer in.Close()
			_, err = io.Copy(f, in)
		}
		if err != nil {
			return durable.Cure(err)
		}
		s, err := open(f.Name())
		if err != nil {
			return err
		}
		return s.Close()
	})
	if err != nil {
		return err
	}
	s, err := Open(path)
	if err != nil {
		return err
	}
	return s.Close()
}

// Replace puts the store at from in the place of that at path, whose copy is removed: it is another store's.
func Replace(from, path string) error {
	if err := durable.Remove(CopyOf(path)); err != nil {
		return err
	}
	return errors.Join(durable.Rename(from, path), durable.Remove(CopyOf(from)))
}
