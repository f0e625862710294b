// Package kine is how the engine keeps the cluster: kine on SQLite, as in
// k3s, with settings of our own that spare the card (docs/design/small.md has figures).
//
// It alone writes <state>/k3s/server/db/state.db, the path that k3s itself uses
// and looks for. A transaction is in the kernel's hands when it is acknowledged:
// killing the engine loses nothing. What a person or a controller wrote is on the
// card at most a second later; heartbeats (leases, events) go there when the
// kernel likes, so a power cut may lose half a minute of them, and of nothing
// else. The file is consistent after any cut: WAL frames carry checksums and the
// checkpoint syncs. A damaged file ends the engine, which says so in its log.
//
// Importing the package makes this kine's default driver. Only engine/k3s does.
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
	// file is relative to the folder that k3s works in, <data-dir>/server.
	file = "db/state.db"
	// Of kine's own parameters only those of the journal are left out: see pragmas.
	parameters = "?cache=shared&_busy_timeout=30000&_txlock=immediate"
)

func init() {
	sql.Register(sqlDriver, &sqlite3.SQLiteDriver{ConnectHook: connect})
	drivers.Register(scheme, open)
	// With no endpoint given k3s knows that it is alone: it elects no leaders.
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
		c.CompactMinRetain = 0 // a thousand revisions may be a gigabyte: what is kept is kept for its time
	}
	_, dialect, err := sqlite.NewVariant(ctx, wg, sqlDriver, &c)
	if err != nil {
		return false, nil, fmt.Errorf("kine: %s: %w", path, err)
	}
	// kine's own question needs a table that SQLite has only when built with it.
	dialect.GetSizeSQL = `SELECT c.page_count * s.page_size FROM pragma_page_count() c, pragma_page_size() s`
	// A full checkpoint after each compaction stops every writer while a slow card
	// takes it; SQLite's own, every autoCheckpoint pages, stops only one.
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

// assemble puts kine's transactions on our log.
func assemble(ctx context.Context, wg *sync.WaitGroup, dialect server.Dialect, cfg *drivers.Config, wal string) *store {
	l := newLog(dialect, cfg, wg)
	return &store{keepDurable(ctx, wg, logstructured.New(l), wal), l}
}
