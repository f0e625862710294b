package backup

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	_ "github.com/mattn/go-sqlite3" // the driver that the engine has too
)

// busy is how long another connection's lock is waited for.
const busy = 30 * time.Second

func openSQLite(path, mode string) (*sql.DB, error) {
	q := url.Values{"mode": {mode}, "_busy_timeout": {fmt.Sprint(busy.Milliseconds())}}
	db, err := sql.Open("sqlite3", "file:"+(&url.URL{Path: path}).EscapedPath()+"?"+q.Encode())
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	return db, nil
}

// snapshot copies a database that others write to as it was at one moment: SQLite
// itself reads it within one transaction, which in WAL mode neither waits for
// writers nor holds them up. The copy is checked page by page.
func snapshot(ctx context.Context, from, to string) error {
	if _, err := os.Stat(from); errors.Is(err, os.ErrNotExist) {
		return errors.New("backup: there is no cluster yet to be saved; wait until `rivulet status` says Ready")
	}
	db, err := openSQLite(from, "rw")
	if err != nil {
		return fmt.Errorf("backup: datastore: %w", err)
	}
	defer db.Close()
	if _, err := db.ExecContext(ctx, "VACUUM INTO ?", to); err != nil {
		if strings.Contains(err.Error(), "malformed") {
			return fmt.Errorf("backup: the datastore %s is damaged: %w; restore an earlier backup: rivulet restore FILE", from, err)
		}
		return fmt.Errorf("backup: datastore: %w; look at the disk (space, read-only mount)", err)
	}
	if err := os.Chmod(to, 0o600); err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	return sound(ctx, to)
}

// sound checks a database that nobody else has open: every page, every index, and
// that it is the engine's.
func sound(ctx context.Context, path string) error {
	db, err := openSQLite(path, "rw")
	if err != nil {
		return fmt.Errorf("backup: datastore: %w", err)
	}
	defer db.Close()
	var verdict string
	if err := db.QueryRowContext(ctx, "PRAGMA integrity_check(1)").Scan(&verdict); err != nil {
		return fmt.Errorf("the datastore cannot be read: %w", err)
	}
	if verdict != "ok" {
		return fmt.Errorf("the datastore is damaged: %s", verdict)
	}
	var revision sql.NullInt64
	if err := db.QueryRowContext(ctx, "SELECT MAX(id) FROM kine").Scan(&revision); err != nil {
		return fmt.Errorf("the datastore is not a cluster's: %w", err)
	}
	if revision.Int64 == 0 {
		return errors.New("the datastore is empty")
	}
	return nil
}

// leap is how far a restored datastore's revision is moved on. Whoever watched the
// cluster, a peer above all, knows revisions that the restored one has not
// reached: without the leap it would wait for them in silence, and miss what
// differs. With it, every watch from before is answered "too old" and starts anew.
const leap = 1_000_000_000

// marker names the row that carries the leap. It counts as deleted, so that the
// engine's compaction removes it in time.
const marker = "rivulet-restored"

func moveOn(ctx context.Context, path string) error {
	db, err := openSQLite(path, "rw")
	if err != nil {
		return fmt.Errorf("backup: datastore: %w", err)
	}
	defer db.Close()
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("backup: datastore: %w", err)
	}
	defer tx.Rollback()
	var last int64
	if err := tx.QueryRowContext(ctx, "SELECT MAX(id) FROM kine").Scan(&last); err != nil {
		return fmt.Errorf("backup: datastore: %w", err)
	}
	next := last + leap
	for _, s := range []struct {
		sql  string
		args []any
	}{
		{"DELETE FROM kine WHERE name = ?", []any{marker}},
		{"INSERT INTO kine(id, name, created, deleted, create_revision, prev_revision, lease, value, old_value) VALUES(?, ?, 0, 1, 0, 0, 0, '', '')", []any{next, marker}},
		{"UPDATE kine SET prev_revision = ? WHERE name = 'compact_rev_key'", []any{next}},
	} {
		if _, err := tx.ExecContext(ctx, s.sql, s.args...); err != nil {
			return fmt.Errorf("backup: datastore: %w", err)
		}
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("backup: datastore: %w; look at the disk (space, read-only mount)", err)
	}
	return nil
}
