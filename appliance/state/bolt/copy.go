package bolt

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/bbolt"

	"rivulet/appliance/state/quarantine"
)

// CopyOf is the path of the copy of the store at path.
func CopyOf(path string) string { return path + ".copy" }

// Recovered says what Recover did.
type Recovered struct {
	Cause error  // why the store could not be used
	Aside string // where the damaged file is; empty if it was gone
	// Written is when the copy was; each acknowledged write is in it, unless the
	// disk refused the copy at that time (see CopyError).
	Written time.Time
	Peers   int
}

// Recover puts the copy into the place of a store that Open calls ErrDamaged. If
// the copy is no better it returns cause, and nothing was changed. It may be cut
// short at any moment and called again.
func Recover(path string, cause error) (Recovered, error) {
	r := Recovered{Cause: cause}
	if d := (*damageError)(nil); errors.As(cause, &d) {
		r.Cause = d.cause
	}
	copied := CopyOf(path)
	at, err := os.Stat(copied)
	if err == nil && at.Size() == 0 { // bbolt would take it for a new one
		return r, fmt.Errorf("%w; its copy is no better", cause)
	}
	if err != nil {
		return r, fmt.Errorf("%w; there is no copy of it either", cause)
	}
	r.Written = at.ModTime()
	fresh := path + ".new"
	if err := writeSynced(fresh, func(w io.Writer) error {
		in, err := os.Open(copied)
		if err != nil {
			return err
		}
		defer in.Close()
		_, err = io.Copy(w, in)
		return err
	}); err != nil {
		return r, fmt.Errorf("%w; its copy cannot be used: %w", cause, err)
	}
	// Looked at before it takes the place of anything.
	s, err := open(fresh)
	if err == nil {
		var peers, perr = s.Peers()
		r.Peers, err = len(peers), errors.Join(perr, s.Close())
	}
	if err != nil {
		os.Remove(fresh)
		return r, fmt.Errorf("%w; its copy is no better", cause)
	}
	if _, err := os.Lstat(path); err == nil {
		if r.Aside, err = quarantine.Link(path); err != nil {
			return r, err
		}
	}
	if err := os.Rename(fresh, path); err != nil {
		return r, fmt.Errorf("store: %w; look at the disk (space, read-only mount)", err)
	}
	return r, quarantine.SyncDir(filepath.Dir(path))
}

// CopyError is why the copy is older than the store, nil if it is not.
func (s *Store) CopyError() error {
	s.copyMu.Lock()
	defer s.copyMu.Unlock()
	return s.copyErr
}

// refreshCopy makes the copy anew. That it cannot is no error of the write: the
// store itself is sound. It is tried again with the next write.
func (s *Store) refreshCopy() {
	s.copyMu.Lock()
	defer s.copyMu.Unlock()
	path := CopyOf(s.path)
	err := writeSynced(path+".new", func(w io.Writer) error {
		return s.db.View(func(tx *bbolt.Tx) error {
			_, err := tx.WriteTo(w)
			return err
		})
	})
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err == nil {
		err = quarantine.SyncDir(filepath.Dir(path))
	}
	if err != nil {
		os.Remove(path + ".new")
		err = fmt.Errorf("store: the copy of %s: %w; look at the disk (space, read-only mount)", s.path, err)
	}
	s.copyErr = err
}

func writeSynced(path string, write func(io.Writer) error) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	err = write(f)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		os.Remove(path)
	}
	return err
}
