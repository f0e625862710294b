package datastore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"rivulet/appliance/state/durable"
)

// resume is called before an engine opens a database. It moves the revision on unless the file surely continues where
// the last engine ended: that has closed it in order, or has opened it in this run of the kernel, which then still has
// all that was written. Otherwise revisions that were given away may be missing in the file, would be given a second
// time, and watchers on other machines would never be told. After a power cut that is about the last second. In a copy
// that somebody has put back it is any time, so that another history begins.
//
// The file beside the database names the run of the kernel (boot_id). A copy of a database comes without it.
func resume(ctx context.Context, path, boot string, closed bool) error {
	mark := path + ".boot"
	switch _, err := os.Stat(path); {
	case errors.Is(err, os.ErrNotExist): // the engine makes it, and may be killed in that run
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return fmt.Errorf("datastore: %w; look at the disk (space, read-only mount)", err)
		}
		return durable.Write(mark, []byte(boot+"\n"), 0o600)
	case err != nil:
		return fmt.Errorf("datastore: %w; look at the disk", err)
	}
	last, err := os.ReadFile(mark)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("datastore: %w; look at the disk", err)
	}
	if boot != "" && strings.TrimSpace(string(last)) == boot {
		return nil
	}
	if !closed {
		newest, err := newestRevision(ctx, path)
		if err == nil && newest > 0 && last == nil {
			err = PutBack(ctx, path)
		} else if err == nil && newest > 0 {
			err = MoveOn(ctx, path)
		}
		if err != nil {
			return err
		}
	}
	return durable.Write(mark, []byte(boot+"\n"), 0o600)
}

// newestRevision is that of a database that no engine has open; 0 if nothing was written into it.
func newestRevision(ctx context.Context, path string) (n int64, err error) {
	db, err := Open(path, "rw")
	if err != nil {
		return 0, err
	}
	defer db.Close()
	err = db.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_master WHERE name = 'kine'").Scan(&n)
	if err == nil && n > 0 {
		err = db.QueryRowContext(ctx, "SELECT COALESCE(MAX(id), 0) FROM kine").Scan(&n)
	}
	if err != nil {
		return 0, fmt.Errorf("datastore: %w", err)
	}
	return n, nil
}

// putMark marks the orderly end of an engine: the file has the newest revision of the database, which is on the disk
// before.
func putMark(ctx context.Context, mark, path string) error {
	if err := errors.Join(syncFile(path), syncFile(path+"-wal")); err != nil {
		return err
	}
	n, err := newestRevision(ctx, path)
	if err != nil {
		return err
	}
	return durable.Write(mark, []byte(strconv.FormatInt(n, 10)), 0o600)
}

// takeMark removes the mark of an orderly end, and reports whether there was one of this database. It is not on the disk
// any more when it returns: after a power cut it must not come back. A database with another newest revision is a copy that
// somebody has put back; it loses the file by which it would continue. A mark without a revision is an earlier version's.
func takeMark(ctx context.Context, mark, path string) (closed bool, err error) {
	raw, err := os.ReadFile(mark)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("datastore: %w; look at the disk", err)
	}
	closed = len(raw) == 0
	if _, err := os.Stat(path); err == nil && !closed {
		n, err := newestRevision(ctx, path)
		if closed = err == nil && strconv.FormatInt(n, 10) == string(raw); err == nil && !closed {
			if err := durable.Remove(path + ".boot"); err != nil {
				return false, err
			}
		}
	}
	return closed, durable.Remove(mark)
}

// Begin is called by the process of a virtual cluster before it opens its database, which no Guard looks after; boot is
// changes.BootID. The returned function is called once the database is closed in order.
func Begin(ctx context.Context, path, boot string) (ended func(), err error) {
	if err := ours().claim(path + ".writer"); err != nil {
		return nil, err
	}
	mark := path + ".closed"
	closed, err := takeMark(ctx, mark, path)
	if err == nil {
		err = resume(ctx, path, boot, closed)
	}
	return func() { _ = putMark(context.WithoutCancel(ctx), mark, path) }, err // without it the next one moves the revision on
}
