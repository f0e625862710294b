// Package kine stores the cluster with kine on SQLite, as k3s does, with settings that reduce writes to the SD card
// (docs/design/small.md has figures). Importing it makes this kine's default driver; only engine/k3s does.
//
// It alone writes <state>/k3s/server/db/state.db, the path of k3s. An acknowledged transaction is in the kernel, so
// killing the engine loses nothing. Writes of users and controllers are on the card within 1 s, and volumes and virtual
// clusters when they are read by their names; heartbeats (leases, events) when the kernel writes them back, so a power
// cut may lose 30 s of them, and nothing else. The file is consistent after any cut: WAL frames have checksums and the
// checkpoint syncs. A damaged file ends the engine, with the reason in its log.
package kine

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/k3s-io/kine/pkg/drivers"
	"github.com/k3s-io/kine/pkg/drivers/sqlite"
	"github.com/k3s-io/kine/pkg/logstructured"
	"github.com/k3s-io/kine/pkg/server"
	"github.com/mattn/go-sqlite3"
	"github.com/sirupsen/logrus"
)

const (
	scheme    = "rivulet"
	sqlDriver = "rivulet-sqlite3"
	// file is relative to k3s's working folder, <data-dir>/server.
	file = "db/state.db"
	// kine's own parameters without those of the journal: see pragmas.
	parameters = "?cache=shared&_busy_timeout=30000&_txlock=immediate"
)

func init() {
	sql.Register(sqlDriver, &sqlite3.SQLiteDriver{ConnectHook: connect})
	drivers.Register(scheme, open)
	// Without an endpoint k3s knows that it is the only server: it elects no leaders.
	drivers.SetDefault(scheme)
}

func open(ctx context.Context, wg *sync.WaitGroup, cfg *drivers.Config) (leaderElect bool, _ server.Backend, _ error) {
	if err := hooked(ctx); err != nil {
		return false, nil, fmt.Errorf("kine: %w", err)
	}
	path, err := filepath.Abs(file)
	if err != nil {
		return false, nil, fmt.Errorf("kine: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return false, nil, fmt.Errorf("kine: %w; look at the disk", err)
	}
	c := *cfg
	c.DataSourceName = path + parameters
	if bound.Load() != nil {
		c.CompactMinRetain = 0 // 1000 revisions may be 1 GB: history is bounded by time only
	}
	_, dialect, err := sqlite.NewVariant(ctx, wg, sqlDriver, &c)
	if err != nil {
		return false, nil, fmt.Errorf("kine: %s: %w", path, err)
	}
	// kine's own query needs a table that SQLite has only as a build option.
	dialect.GetSizeSQL = `SELECT c.page_count * s.page_size FROM pragma_page_count() c, pragma_page_size() s`
	// A full checkpoint after each compaction blocks every writer for the time of a slow card; SQLite's own, every
	// autoCheckpoint pages, blocks only one.
	dialect.PostCompactSQL = ""
	got, err := settings(ctx, dialect.DB)
	if err != nil {
		return false, nil, fmt.Errorf("kine: %s: %w", path, err)
	}
	logrus.Infof("kine: %s: %s", path, got)
	s := assemble(ctx, wg, dialect, &c, path+"-wal")
	if b := bound.Load(); b != nil {
		b.on(dialect.DB, s.log)
		s.log.bound = b
	}
	return false, s, nil
}

// assemble connects kine's transactions to this log.
func assemble(ctx context.Context, wg *sync.WaitGroup, dialect server.Dialect, cfg *drivers.Config, wal string) *store {
	l := newLog(dialect, cfg, wg)
	return &store{keepDurable(ctx, wg, logstructured.New(l), wal), l}
}
