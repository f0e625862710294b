package datastore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"rivulet/appliance/health"
	"rivulet/appliance/lifecycle"
	"rivulet/appliance/state/durable"
	"rivulet/appliance/state/paths"
	"rivulet/appliance/state/quarantine"
	"rivulet/fabric/changes"
	"rivulet/fabric/cure"
)

const (
	snapshotEvery = 6 * time.Hour
	snapshotsKept = 2
	// snapshotRoom is the free memory, as a multiple of the database's size, with which a snapshot is made there.
	snapshotRoom = 4
)

// Guard protects the datastore of an engine before it starts, while it runs, and after its end. Its fields are set
// before use; Prepare and Ended are called by one goroutine.
type Guard struct {
	State, Temp string // Rivulet's folders: the state, and one in memory
	Health      *health.Tracker
	Log         *slog.Logger

	looked bool                     // the database was checked since the last engine
	db     atomic.Pointer[database] // the SQL database in use; nil for the file
}

// cleanFile marks an orderly end of the engine, after which its database is not checked before the next start, and its
// revision goes on.
func (g *Guard) cleanFile() string { return filepath.Join(g.State, "datastore.clean") }

// Cluster is the engine's cluster while it does not run.
type Cluster interface {
	Settled() bool              // it has served at least once
	BeginAnew(why string) error // sets one aside that never served
	Datastore() string          // address of the SQL database; empty is the file
}

// Prepare is called before the engine opens its database.
func (g *Guard) Prepare(ctx context.Context, e Cluster) error {
	if db := g.db.Swap(nil); db != nil {
		db.Close()
	}
	err := ours().claim(paths.Writer(g.State))
	if g.Health.Report(health.DatastoreNewer, err); err != nil {
		return err
	}
	if address := e.Datastore(); address != "" {
		err := g.prepareSQL(ctx, address)
		g.Health.Report(health.DatastoreUnusable, err)
		return err
	}
	err = g.leaveSQL()
	if g.Health.Report(health.DatastoreUnusable, err); err != nil {
		return err
	}
	err = g.prepare(ctx, e)
	g.looked = err == nil
	return err
}

// leaveSQL returns an error if the objects of this cluster are in an SQL server.
func (g *Guard) leaveSQL() error {
	c, err := LoadSQLCluster(g.State)
	if err != nil || c.Token == "" {
		return err
	}
	if c.Database != "" {
		return cure.Errorf("the objects of this cluster are in %s, and datastore is not in the configuration; put it back, or begin anew with an empty cluster: rivulet reset", c.Database)
	}
	return durable.Remove(paths.SQLCluster(g.State)) // it never got a database
}

func (g *Guard) prepare(ctx context.Context, e Cluster) error {
	closed, err := takeMark(ctx, g.cleanFile(), Path(g.State))
	if err != nil {
		return err
	}
	r, err := Prepare(ctx, g.State, !closed)
	if errors.Is(err, ErrLost) && !e.Settled() {
		defer func() { g.Health.SetAside(quarantine.All(g.State)) }()
		return e.BeginAnew(err.Error())
	}
	if err == nil { // a recovery has moved the revision on
		err = resume(ctx, Path(g.State), changes.BootID(), closed || r != nil)
	}
	if err != nil {
		return err
	}
	if r == nil {
		return nil
	}
	g.Log.Error("the datastore was damaged and recovered", "salvaged_revisions", r.Salvaged,
		"revisions_from_snapshot", r.Snapshot, "snapshot", r.SnapshotTime, "set_aside", r.Aside)
	text := fmt.Sprintf("%d revisions were read from the damaged file", r.Salvaged)
	if !r.SnapshotTime.IsZero() {
		text += fmt.Sprintf(", %d more from the snapshot of %s", r.Snapshot, r.SnapshotTime.Format(time.RFC3339))
	}
	g.Health.Set(health.DatastoreRecovered, text+"; what was changed last may be missing",
		"look at your workloads (rivulet kubectl get all -A) and at the disk's health")
	g.Health.SetAside(quarantine.All(g.State))
	return nil
}

// Ended is called when the engine has ended, with nil after a stop in order. The engine may not have started.
func (g *Guard) Ended(err error) {
	looked := g.looked
	if g.looked = false; err != nil || !looked {
		return
	}
	if _, err := os.Stat(Path(g.State)); errors.Is(err, os.ErrNotExist) {
		return
	}
	if err := putMark(context.Background(), g.cleanFile(), Path(g.State)); err != nil {
		g.Log.Warn("the next start reads the whole datastore through", "err", err)
	}
}

// Run makes snapshots of the datastore; an SQL server has its own.
func (g *Guard) Run(ctx context.Context, stage *lifecycle.Stage) error {
	if g.db.Load() != nil {
		stage.Ready()
		return g.watchSQL(ctx)
	}
	k := &Snapshotter{
		Database: Path(g.State), Dir: Snapshots(g.State),
		Temp: g.Temp, Every: snapshotEvery, Keep: snapshotsKept,
		Log: g.Log,
	}
	if !roomFor(k.Database, k.Temp) {
		k.Temp = k.Dir
	}
	stage.Ready()
	return k.Run(ctx, func(err error) { g.Health.Report(health.SnapshotFailed, err) })
}

func roomFor(database, dir string) bool {
	at, err := os.Stat(database)
	if err != nil {
		return false
	}
	var fs unix.Statfs_t
	return unix.Statfs(dir, &fs) == nil && int64(fs.Bavail)*int64(fs.Bsize) > snapshotRoom*at.Size()
}
