// Package datastore protects the cluster's database, kine's SQLite file <state>/k3s/server/db/state.db, from outside
// the engine: it checks the file before the engine opens it, copies it while the engine uses it, and recovers a damaged
// one.
//
// It reads the database and alone writes <state>/snapshots. It replaces the database only while no engine runs, and
// sets the old one aside. A recovery interrupted by a power cut is completed at the next start. If nothing can be
// recovered, the engine is not started, because an empty cluster would end every pod on the machine; `rivulet status`
// shows this.
//
// Of a database in an SQL server (sql.go) it checks whose it is before the engine opens it, and whether it answers
// while the engine uses it; the rest is that server's.
package datastore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	_ "github.com/mattn/go-sqlite3" // the engine's driver, so that nothing is linked twice

	"rivulet/appliance/state/paths"
)

// ErrDamaged is returned by Check, with its cause.
var ErrDamaged = errors.New("the datastore is damaged")

// Path is the cluster's database in a state folder.
func Path(stateDir string) string {
	return paths.Datastore(stateDir)
}

// Snapshots is the folder of the snapshots in a state folder.
func Snapshots(stateDir string) string { return filepath.Join(stateDir, "snapshots") }

// busy is how long to wait for the lock of another connection.
const busy = 30 * time.Second

// Open opens a database; mode is ro, rw or rwc.
func Open(path, mode string) (*sql.DB, error) {
	q := url.Values{"mode": {mode}, "_busy_timeout": {fmt.Sprint(busy.Milliseconds())}}
	db, err := sql.Open("sqlite3", "file:"+(&url.URL{Path: path}).EscapedPath()+"?"+q.Encode())
	if err != nil {
		return nil, fmt.Errorf("datastore: %w", err)
	}
	db.SetMaxOpenConns(1)
	return db, nil
}

// Check reads every page of a database that no engine has open, and all objects. It returns ErrDamaged with the cause,
// or the disk's error. A missing file is no error: the engine creates it.
func Check(ctx context.Context, path string) error {
	at, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("datastore: %w; look at the disk", err)
	case at.Size() == 0:
		if wal, err := os.Stat(path + "-wal"); err != nil || wal.Size() == 0 {
			return fmt.Errorf("%w: the file is empty", ErrDamaged)
		}
	}
	db, err := Open(path, "rw") // rw: it includes the write-ahead log
	if err != nil {
		return err
	}
	defer db.Close()
	var verdict string
	if err := db.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&verdict); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if verdict != "ok" {
		return fmt.Errorf("%w: %s", ErrDamaged, verdict)
	}
	var n int
	if err := db.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_master WHERE name = 'kine'").Scan(&n); err != nil {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if n == 0 {
		return nil
	}
	return values(ctx, db)
}

// values checks the content of the objects.
func values(ctx context.Context, db *sql.DB) error {
	rows, err := db.QueryContext(ctx, "SELECT name, value FROM kine WHERE deleted = 0")
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	defer rows.Close()
	for rows.Next() {
		var key string
		var value []byte
		if err := rows.Scan(&key, &value); err != nil {
			return fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		if !sound(key, value) {
			return fmt.Errorf("%w: the content of %.200q is not readable", ErrDamaged, key)
		}
	}
	if err := rows.Err(); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return nil
}

// leap is added to the revision of a database that has gone back: recovered, restored, or after a power cut. Watchers,
// peers above all, may have seen later revisions than it has, and would wait for them without an error. With the leap
// every earlier watch is answered "too old" and starts again. It is volume.Leap, too, by which home knows of it.
const leap = 1_000_000_000

// marker is the name of the row with the leap. It counts as deleted, so that the engine's compaction removes it.
const marker = "rivulet-restored"

// historyKey is the ConfigMap by whose UID home knows its history (offload/consumer/volume, HistoryName).
const historyKey = "/registry/configmaps/kube-system/rivulet-history"

// MoveOn adds the leap to the revision of a database that no engine has open, so that the next one is new to every watcher.
func MoveOn(ctx context.Context, path string) error { return moveOn(ctx, path, marker) }

// PutBack is MoveOn for whoever puts back an older state of a datastore: another history begins. The ConfigMap of the
// history is removed, and made again with another UID.
func PutBack(ctx context.Context, path string) error { return moveOn(ctx, path, historyKey) }

// moveOn adds the leap, and removes the named key.
func moveOn(ctx context.Context, path, key string) error {
	db, err := Open(path, "rw")
	if err != nil {
		return err
	}
	defer db.Close()
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("datastore: %w", err)
	}
	defer tx.Rollback()
	var last int64
	if err := tx.QueryRowContext(ctx, "SELECT COALESCE(MAX(id), 0) FROM kine").Scan(&last); err != nil {
		return fmt.Errorf("datastore: %w", err)
	}
	next := last + leap
	for _, s := range []struct {
		sql  string
		args []any
	}{
		{"DELETE FROM kine WHERE name IN (?, ?)", []any{marker, key}},
		{"INSERT INTO kine(id, name, created, deleted, create_revision, prev_revision, lease, value, old_value) VALUES(?, ?, 0, 1, 0, 0, 0, '', '')", []any{next, marker}},
		{"UPDATE kine SET prev_revision = ? WHERE name = 'compact_rev_key'", []any{next}},
	} {
		if _, err := tx.ExecContext(ctx, s.sql, s.args...); err != nil {
			return fmt.Errorf("datastore: %w", err)
		}
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("datastore: %w; look at the disk (space, read-only mount)", err)
	}
	return nil
}
