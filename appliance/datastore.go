package appliance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"rivulet/appliance/datastore"
	"rivulet/appliance/engine"
	"rivulet/appliance/health"
	"rivulet/appliance/lifecycle"
)

const (
	snapshotEvery = 6 * time.Hour
	snapshotsKept = 2
	// snapshotRoom is how many times the database's size must be free in memory for
	// a snapshot to be made there.
	snapshotRoom = 4
)

// cleanFile says that the engine was stopped in order: its database need not be
// read through before the next start.
func (s *System) cleanFile() string { return filepath.Join(s.cfg.Dirs.State, "datastore.clean") }

// prepareDatastore is called before the engine opens its database.
func (s *System) prepareDatastore(ctx context.Context, e *engine.Engine) error {
	unclean := errors.Is(os.Remove(s.cleanFile()), os.ErrNotExist)
	r, err := datastore.Prepare(ctx, s.cfg.Dirs.State, unclean)
	if errors.Is(err, datastore.ErrLost) && !e.Settled() {
		return e.BeginAnew(err.Error())
	}
	if err != nil {
		return err
	}
	if r == nil {
		return nil
	}
	s.cfg.Log.Error("the datastore was damaged and recovered", "component", cEngine, "salvaged_revisions", r.Salvaged,
		"revisions_from_snapshot", r.Snapshot, "snapshot", r.SnapshotTime, "set_aside", r.Aside)
	text := fmt.Sprintf("%d revisions were read from the damaged file", r.Salvaged)
	if !r.SnapshotTime.IsZero() {
		text += fmt.Sprintf(", %d more from the snapshot of %s", r.Snapshot, r.SnapshotTime.Format(time.RFC3339))
	}
	s.health.Set(health.DatastoreRecovered, text+"; what was changed last may be missing",
		"look at your workloads (rivulet kubectl get all -A) and at the disk's health")
	s.tellSetAside()
	return nil
}

// stoppedClean is called when the engine has ended as it was told to.
func (s *System) stoppedClean() {
	if err := os.WriteFile(s.cleanFile(), nil, 0o600); err != nil {
		s.cfg.Log.Warn("the next start reads the whole datastore through", "component", cEngine, "error", err)
	}
}

// runSnapshots keeps copies of the datastore for the day it is damaged.
func (s *System) runSnapshots(ctx context.Context, stage *lifecycle.Stage) error {
	k := &datastore.Keeper{
		Database: datastore.Path(s.cfg.Dirs.State), Dir: datastore.Snapshots(s.cfg.Dirs.State),
		Temp: s.cfg.Dirs.Run, Every: snapshotEvery, Keep: snapshotsKept,
		Log: s.cfg.Log.With("component", cSnapshots),
	}
	if !roomFor(k.Database, k.Temp) {
		k.Temp = k.Dir
	}
	stage.Ready()
	return k.Run(ctx, func(err error) { s.health.Report(health.SnapshotFailed, err) })
}

func roomFor(database, dir string) bool {
	at, err := os.Stat(database)
	if err != nil {
		return false
	}
	var fs unix.Statfs_t
	return unix.Statfs(dir, &fs) == nil && int64(fs.Bavail)*int64(fs.Bsize) > snapshotRoom*at.Size()
}
