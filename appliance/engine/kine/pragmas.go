package kine

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/mattn/go-sqlite3"
)

const (
	// pageSize: each write of kine changes a page of the table, one of SQLite's sequence and one of each of five
	// indexes, and all of them are written to the WAL. Small pages reduce a heartbeat from 33 kB to 9 kB. It applies to
	// new files only.
	pageSize = 1024
	// autoCheckpoint, pages (4 MB): pages that every write changes are copied into the file once in hundreds of writes,
	// not once in a hundred.
	autoCheckpoint = 4096
	// walKept, bytes: a larger WAL is truncated to this size.
	walKept = 8 << 20
	// synchronous NORMAL (1): the checkpoint syncs, a transaction does not; see sync.go.
	synchronous = 1
)

// pragmas are set on every connection. The page size comes before the journal, which creates the file.
var pragmas = []string{
	fmt.Sprintf("PRAGMA page_size = %d", pageSize),
	"PRAGMA journal_mode = WAL",
	fmt.Sprintf("PRAGMA synchronous = %d", synchronous),
	fmt.Sprintf("PRAGMA wal_autocheckpoint = %d", autoCheckpoint),
	fmt.Sprintf("PRAGMA journal_size_limit = %d", walKept),
	// kine finds every key with LIKE. SQLite uses an index for that only if LIKE is case-sensitive, as keys are;
	// otherwise each read, and the read before each write, scans every revision of every key: 2.4 ms with 20000, not
	// 0.1. SQLite cannot report this setting; TestAKeyIsFoundByTheIndex checks it.
	"PRAGMA case_sensitive_like = ON",
}

func connect(c *sqlite3.SQLiteConn) error {
	for _, p := range pragmas {
		if _, err := c.Exec(p, nil); err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
	}
	return nil
}

// Settings are the settings read from a connection.
type Settings struct {
	PageSize, Synchronous, AutoCheckpoint, WALKept int
	JournalMode                                    string
}

func settings(ctx context.Context, db *sql.DB) (Settings, error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return Settings{}, err
	}
	defer conn.Close()
	return settingsOf(ctx, conn)
}

func settingsOf(ctx context.Context, conn *sql.Conn) (s Settings, err error) {
	for name, to := range map[string]any{
		"page_size": &s.PageSize, "synchronous": &s.Synchronous, "wal_autocheckpoint": &s.AutoCheckpoint,
		"journal_size_limit": &s.WALKept, "journal_mode": &s.JournalMode,
	} {
		if err := conn.QueryRowContext(ctx, "PRAGMA "+name).Scan(to); err != nil {
			return s, fmt.Errorf("PRAGMA %s: %w", name, err)
		}
	}
	return s, nil
}

// String is the log line by which tests check a running engine's settings.
func (s Settings) String() string {
	return fmt.Sprintf("page_size=%d journal_mode=%s synchronous=%d wal_autocheckpoint=%d journal_size_limit=%d",
		s.PageSize, s.JournalMode, s.Synchronous, s.AutoCheckpoint, s.WALKept)
}
