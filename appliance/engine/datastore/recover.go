package datastore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"rivulet/appliance/state/durable"
	"rivulet/appliance/state/paths"
	"rivulet/appliance/state/quarantine"
)

// ErrLost is returned by Recover if nothing is readable and there is no snapshot.
var ErrLost = errors.New("nothing of the datastore can be recovered")

// Recovery has the results of Recover.
type Recovery struct {
	// Salvaged revisions were read from the damaged file; Snapshot ones are missing there and were read from the
	// snapshot of SnapshotTime.
	Salvaged, Snapshot int
	SnapshotTime       time.Time // zero: no sound snapshot
	Aside              []string  // the damaged files
}

// Prepare makes the database of a state folder ready for the engine: it completes an interrupted recovery, checks the
// file if check is true, and recovers it if it is damaged; then the Recovery is not nil. No engine may run.
func Prepare(ctx context.Context, stateDir string, check bool) (*Recovery, error) {
	path := Path(stateDir)
	if _, err := os.Stat(recovered(path)); err == nil {
		r, err := finish(path)
		return &r, err
	}
	err := gone(stateDir)
	if err == nil && check {
		// A killed engine may not have synced writes that it acknowledged.
		if err := errors.Join(syncFile(path), syncFile(path+"-wal")); err != nil {
			return nil, err
		}
		err = Check(ctx, path)
	}
	if !errors.Is(err, ErrDamaged) {
		return nil, err
	}
	r, rerr := Recover(ctx, path, Snapshots(stateDir))
	if rerr != nil {
		return nil, fmt.Errorf("%w: %w", err, rerr)
	}
	return &r, nil
}

// gone returns an error for a missing database of an existing cluster.
func gone(stateDir string) error {
	_, db := os.Stat(Path(stateDir))
	_, ca := os.Stat(paths.Server(stateDir, "tls", "server-ca.crt"))
	if errors.Is(db, os.ErrNotExist) && ca == nil {
		return fmt.Errorf("%w: %s is gone", ErrDamaged, Path(stateDir))
	}
	return nil
}

// recovered is the path of the new database until it is complete.
func recovered(path string) string { return path + ".recovered" }

// Recover creates a database of every readable revision of the damaged one, and of those that only the newest sound
// snapshot has, and replaces the damaged one. Written revisions never change, so the two can be merged; an object
// deleted after the snapshot returns only if the deleting revision is unreadable.
func Recover(ctx context.Context, path, snapshots string) (Recovery, error) {
	var r Recovery
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return r, fmt.Errorf("datastore: %w; look at the disk (space, read-only mount)", err)
	}
	part := path + ".part"
	os.Remove(part)
	defer os.Remove(part)
	to, err := Open(part, "rwc")
	if err != nil {
		return r, err
	}
	defer to.Close()
	if _, err := to.ExecContext(ctx, schema); err != nil {
		return r, fmt.Errorf("datastore: %w; look at the disk (space, read-only mount)", err)
	}
	if r.Salvaged, err = merge(ctx, path, to); err != nil {
		return r, err
	}
	for _, s := range List(snapshots) {
		plain := path + ".snapshot"
		err := unpack(s.Path, plain)
		if err == nil {
			err = Check(ctx, plain)
		}
		if err == nil {
			r.Snapshot, err = merge(ctx, plain, to)
			r.SnapshotTime = s.Time
		}
		os.Remove(plain)
		if err == nil {
			break
		}
	}
	if r.Salvaged+r.Snapshot == 0 {
		return r, fmt.Errorf("%w, and there is no snapshot; restore a backup, or begin anew with an empty cluster by moving %s away", ErrLost, path)
	}
	if err := to.Close(); err != nil {
		return r, fmt.Errorf("datastore: %w", err)
	}
	if err := PutBack(ctx, part); err != nil {
		return r, err
	}
	if err := syncFile(part); err != nil {
		return r, err
	}
	if err := durable.Rename(part, recovered(path)); err != nil {
		return r, fmt.Errorf("datastore: %w", err)
	}
	done, err := finish(path)
	r.Aside = done.Aside
	return r, err
}

// finish moves the recovered database to its place. It may be interrupted and called again: until the last step the
// recovered one exists under its own name.
func finish(path string) (r Recovery, err error) {
	for _, old := range []string{path + "-wal", path + "-shm", path} {
		if _, err := os.Lstat(old); err != nil {
			continue
		}
		aside, err := quarantine.Move(old)
		if err != nil {
			return r, err
		}
		r.Aside = append(r.Aside, aside)
	}
	if err := durable.Rename(recovered(path), path); err != nil {
		return r, fmt.Errorf("datastore: %w", err)
	}
	return r, nil
}

// syncFile syncs a file, if it exists.
func syncFile(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("datastore: %w; look at the disk (read-only mount)", err)
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		return fmt.Errorf("datastore: %w; look at the disk (space, read-only mount)", err)
	}
	return nil
}

// schema is kine's table with the one index that makes revisions unique; kine adds its other indexes itself.
const schema = `
PRAGMA page_size = 1024; -- as appliance/engine/kine makes it
CREATE TABLE kine (id INTEGER PRIMARY KEY AUTOINCREMENT, name INTEGER, created INTEGER, deleted INTEGER,
	create_revision INTEGER, prev_revision INTEGER, lease INTEGER, value BLOB, old_value BLOB);
CREATE UNIQUE INDEX kine_name_prev_revision_uindex ON kine (name, prev_revision);`

const columns = "id, name, created, deleted, create_revision, prev_revision, lease, value, old_value"

// soundRow reports whether a row may be kept. A deletion always is, whatever its value: without it the object would
// return.
func soundRow(row []any) bool {
	key, _ := row[1].(string)
	if raw, ok := row[1].([]byte); ok {
		key = string(raw)
	}
	value, _ := row[7].([]byte)
	deleted, _ := row[3].(int64)
	return deleted != 0 || sound(key, value)
}

// merge adds the sound rows that only the other database has, and returns how many. An unreadable file is no error: it
// adds nothing.
func merge(ctx context.Context, path string, to *sql.DB) (added int, err error) {
	if at, err := os.Stat(path); err != nil || at.Size() == 0 {
		return 0, nil
	}
	from, err := Open(path, "rw")
	if err != nil {
		return 0, nil
	}
	defer from.Close()
	tx, err := to.BeginTx(ctx, nil)
	if err != nil {
		return 0, fmt.Errorf("datastore: %w", err)
	}
	defer tx.Rollback()
	put, err := tx.PrepareContext(ctx, "INSERT OR IGNORE INTO kine("+columns+") VALUES(?,?,?,?,?,?,?,?,?)")
	if err != nil {
		return 0, fmt.Errorf("datastore: %w", err)
	}
	defer put.Close()
	err = readable(ctx, from, func(row []any) error {
		if !soundRow(row) { // an older revision or the snapshot's is better
			return nil
		}
		res, err := put.ExecContext(ctx, row...)
		if err != nil {
			return fmt.Errorf("datastore: %w; look at the disk (space, read-only mount)", err)
		}
		n, err := res.RowsAffected()
		added += int(n)
		return err
	})
	if err != nil {
		return 0, err
	}
	if err := tx.Commit(); err != nil {
		return 0, fmt.Errorf("datastore: %w; look at the disk (space, read-only mount)", err)
	}
	return added, nil
}
