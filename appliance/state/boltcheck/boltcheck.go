// Package boltcheck opens bbolt databases that may be damaged: Rivulet's and containerd's. bbolt itself trusts its
// file, and panics or faults on some kinds of damage. It reads the file and changes nothing that it cannot read.
package boltcheck

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// ErrDamaged is returned by Open, with the cause, for an unsound database.
var ErrDamaged = errors.New("damaged")

type damage struct{ cause error }

func (d *damage) Error() string        { return d.cause.Error() }
func (d *damage) Unwrap() error        { return d.cause }
func (d *damage) Is(target error) bool { return target == ErrDamaged }

// lockWait is how long to wait for another process's lock.
const lockWait = time.Second

// Open opens an existing database, or creates a missing one, and checks every page. It returns bbolt's ErrTimeout while
// another process has it open, an error of the file system, or ErrDamaged with its cause (Unwrap).
func Open(path string) (db *bbolt.DB, err error) {
	// bbolt panics on some kinds of damage, and a read beyond the end of a truncated file is a fault.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	var file *os.File
	defer func() {
		if p := recover(); p != nil {
			if db != nil {
				db.Close()
			} else if file != nil { // bbolt's mapping, which stays, would keep the lock
				_ = syscall.Flock(int(file.Fd()), syscall.LOCK_UN)
				file.Close()
			}
			db, err = nil, &damage{fmt.Errorf("%v", p)}
		}
	}()
	open := func(name string, flag int, mode os.FileMode) (f *os.File, err error) {
		file, err = os.OpenFile(name, flag, mode)
		return file, err
	}
	if db, err = bbolt.Open(path, 0o600, &bbolt.Options{Timeout: lockWait, OpenFile: open}); err != nil {
		var pe *os.PathError
		if errors.Is(err, bolterrors.ErrTimeout) || errors.As(err, &pe) {
			return nil, err
		}
		return nil, &damage{err}
	}
	err = walk(db)
	if err == nil && metaPages(path, db.Info().PageSize) {
		err = check(db)
	}
	if err != nil {
		db.Close()
		return nil, &damage{err}
	}
	return db, nil
}

// Check returns ErrDamaged with its cause if the file at path is not sound. It returns nil if there is no file or
// another process has it open.
func Check(path string) error {
	at, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil && at.Size() == 0 {
		return &damage{errors.New("the file is empty")}
	}
	db, err := Open(path)
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil
	}
	if err != nil {
		return err
	}
	return db.Close()
}

// walk reads every key and value. It runs before check, which works in its own goroutine, where a panic would end the
// process.
func walk(db *bbolt.DB) error {
	return db.View(func(tx *bbolt.Tx) error {
		return tx.ForEach(func(_ []byte, b *bbolt.Bucket) error { return walkBucket(b) })
	})
}

func walkBucket(b *bbolt.Bucket) error {
	return b.ForEach(func(k, v []byte) error {
		if v == nil {
			return walkBucket(b.Bucket(k))
		}
		bytes.Clone(v)
		return nil
	})
}

// metaPages reports whether both meta pages are valid. A power cut may damage one: bbolt then uses the other, but its
// check would panic.
func metaPages(path string, size int) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	for id := range 2 {
		var head [10]byte // page number, then flags; 4 is a meta page
		if _, err := f.ReadAt(head[:], int64(id*size)); err != nil {
			return false
		}
		if binary.NativeEndian.Uint64(head[:]) != uint64(id) || binary.NativeEndian.Uint16(head[8:]) != 4 {
			return false
		}
	}
	return true
}

// check checks the structure of every page; the file is small.
func check(db *bbolt.DB) error {
	return db.View(func(tx *bbolt.Tx) error {
		var first error
		for err := range tx.Check() {
			if first == nil {
				first = err
			}
		}
		return first
	})
}
