package datastore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strings"
)

// Delete deletes keys of a database that no engine has open, in the manner of the engine: it adds a revision that
// watchers receive. It deletes the keys with a prefix for which match, unless it is nil, returns true, and returns how
// many. A missing database is no error.
func Delete(ctx context.Context, path, prefix string, match func(key string, value []byte) bool) (n int, err error) {
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	db, err := Open(path, "rw")
	if err != nil {
		return 0, err
	}
	defer db.Close()
	return deleteIn(ctx, db, func(statement string) string { return statement }, prefix, match)
}

// deleteIn is Delete in any SQL database; bind gives a statement the database's form of parameters.
func deleteIn(ctx context.Context, db *sql.DB, bind func(string) string, prefix string, match func(key string, value []byte) bool) (n int, err error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return 0, fmt.Errorf("datastore: %w", err)
	}
	defer tx.Rollback()
	end := []byte(prefix) // the first key beyond those with the prefix
	end[len(end)-1]++
	// The highest revision of a key is the current one.
	rows, err := tx.QueryContext(ctx, bind(`SELECT id, name, value FROM kine WHERE deleted = 0 AND id IN
		(SELECT MAX(id) FROM kine WHERE name >= ? AND name < ? GROUP BY name) ORDER BY id`), prefix, string(end))
	if err != nil {
		if strings.Contains(err.Error(), "no such table") {
			return 0, nil // the engine stopped before it created the table
		}
		return 0, fmt.Errorf("datastore: %w", err)
	}
	defer rows.Close()
	var ids []int64
	for rows.Next() {
		var id int64
		var key string
		var value []byte
		if err := rows.Scan(&id, &key, &value); err != nil {
			return 0, fmt.Errorf("datastore: %w", err)
		}
		if match == nil || match(key, value) {
			ids = append(ids, id)
		}
	}
	if err := rows.Err(); err != nil {
		return 0, fmt.Errorf("datastore: %w", err)
	}
	rows.Close()
	for _, id := range ids {
		if _, err := tx.ExecContext(ctx, bind(`INSERT INTO kine(name, created, deleted, create_revision, prev_revision, lease, value, old_value)
			SELECT name, 0, 1, CASE created WHEN 1 THEN id ELSE create_revision END, id, 0, value, value FROM kine WHERE id = ?`), id); err != nil {
			return 0, fmt.Errorf("datastore: %w; look at the disk (space, read-only mount)", err)
		}
	}
	if err := tx.Commit(); err != nil {
		return 0, fmt.Errorf("datastore: %w; look at the disk (space, read-only mount)", err)
	}
	return len(ids), nil
}
