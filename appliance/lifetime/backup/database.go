package backup

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"

	"rivulet/appliance/engine/datastore"
)

// snapshot copies the datastore consistently, and checks the copy.
func snapshot(ctx context.Context, from, to string) error {
	if _, err := os.Stat(from); errors.Is(err, os.ErrNotExist) {
		return errors.New("backup: there is no cluster yet to be saved; wait until `rivulet status` says Ready")
	}
	if err := datastore.Copy(ctx, from, to); err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	if err := sound(ctx, to); err != nil {
		return fmt.Errorf("backup: %s: %w; restart rivulet, which recovers what it can, or restore an earlier backup: rivulet restore FILE", from, err)
	}
	return nil
}

// sound checks a database that is not open elsewhere: every page and every index, which takes too long for
// datastore.Check at each start, and that it is the engine's.
func sound(ctx context.Context, path string) error {
	db, err := datastore.Open(path, "rw")
	if err != nil {
		return fmt.Errorf("the datastore cannot be opened: %w", err)
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
