package upgrade

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"rivulet/appliance/lifetime/backup"
	"rivulet/appliance/state/bolt"
	"rivulet/appliance/state/durable"
	"rivulet/appliance/state/paths"
	"rivulet/appliance/vcluster"
)

// Device is the World of a real device.
type Device struct {
	// State and Run are Rivulet's folders, Installed is the path of the installed binary.
	State, Run, Installed string
	// Args are those of `rivulet run`, without the program's name.
	Args []string
	Log  *slog.Logger
}

// Installed is where `rivulet install` puts the binary.
const Installed = "/usr/local/bin/rivulet"

func (d *Device) dir() string                 { return paths.Versions(d.State) }
func (d *Device) Load() (State, error)        { return Load(d.dir()) }
func (d *Device) Save(s State) error          { return store(d.dir(), s) }
func (d *Device) Now() time.Time              { return time.Now().UTC().Truncate(time.Second) }
func (d *Device) binary(v Version) string     { return filepath.Join(d.dir(), v.Dir, binaryName) }
func (d *Device) snapshot(name string) string { return filepath.Join(d.dir(), name) }

const snapshotPrefix = "before-"

// Snapshot writes a backup of the cluster, without volumes, beside the versions.
func (d *Device) Snapshot(ctx context.Context, s State) (string, error) {
	if err := d.endEngine(ctx); err != nil {
		return "", err
	}
	name := snapshotPrefix + s.Attempt.Next.Dir + ".backup"
	if d.worker() {
		return name, updateErr(copyFile(paths.Store(d.State), d.snapshot(name), 0o600))
	}
	src, done, err := backup.Stopped(d.State)
	if err != nil {
		return "", err
	}
	defer done()
	src.Config = "" // the configuration does not depend on the version
	src.VClusters = func(w io.Writer) error { return vcluster.BackupStopped(ctx, d.State, d.Run, w, d.Log) }
	src.LeftOut = func(name, why string) {
		d.Log.Error("what is undone with the upgrade has no copy of a virtual cluster", "name", name, "why", why)
	}
	src.Manifest.Rivulet, src.Manifest.Kubernetes, src.Manifest.Created = s.Attempt.From.Name, s.Attempt.From.Kubernetes, d.Now()
	err = durable.Replace(d.snapshot(name), 0o600, func(f *os.File) error { return backup.Write(ctx, f, src) })
	return name, updateErr(err)
}

// Restore restores the snapshot's data; what the new version wrote is set aside.
func (d *Device) Restore(ctx context.Context, s State) (string, error) {
	if err := d.endEngine(ctx); err != nil {
		return "", err
	}
	if d.worker() {
		return d.restoreStore(s)
	}
	f, err := os.Open(d.snapshot(s.Attempt.Snapshot))
	if err != nil {
		return "", fmt.Errorf("update: the data of before cannot be brought back: %w; restore a backup with the old version: rivulet restore FILE", err)
	}
	defer f.Close()
	r, err := backup.Restore(ctx, f, backup.DefaultPaths(d.State), backup.Options{
		Over: true, DataOnly: true, Kubernetes: s.Attempt.From.Kubernetes, Now: time.Now(),
	})
	return r.Aside, err
}

// worker reports whether this device is a node of another device's cluster: state.db is all that it has.
func (d *Device) worker() bool {
	_, err := os.Lstat(paths.Worker(d.State))
	return err == nil
}

// restoreStore restores a worker's state.db; each step may be repeated.
func (d *Device) restoreStore(s State) (aside string, err error) {
	store := paths.Store(d.State)
	aside = filepath.Join(d.State, "before-rollback-"+s.Attempt.Begun.UTC().Format("20060102T150405Z"))
	if err := os.MkdirAll(aside, 0o700); err != nil {
		return "", updateErr(durable.Cure(err))
	}
	kept := filepath.Join(aside, filepath.Base(store))
	if _, err := os.Lstat(kept); errors.Is(err, fs.ErrNotExist) {
		if err := copyFile(store, kept, 0o600); err != nil {
			return "", updateErr(err)
		}
	}
	if err := copyFile(d.snapshot(s.Attempt.Snapshot), store, 0o600); err != nil {
		return "", updateErr(err)
	}
	if err := os.Remove(bolt.CopyOf(store)); err != nil && !errors.Is(err, fs.ErrNotExist) { // it must not outlive its original
		return "", updateErr(err)
	}
	return aside, nil
}

func copyFile(from, to string, mode fs.FileMode) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	return durable.Replace(to, mode, func(f *os.File) error {
		_, err := io.Copy(f, in)
		return durable.Cure(err)
	})
}

// endEngine ends the processes left by a killed supervisor, and waits for their end.
func (d *Device) endEngine(ctx context.Context) error {
	return endProcess(ctx, filepath.Join(d.Run, "engine.pid"), "rivulet-engine")
}

// Point makes `current` lead to the current version, installs it, and removes unneeded versions and snapshots.
func (d *Device) Point(s State) bool {
	linked, err := d.point(s)
	if err != nil {
		d.Log.Warn("the current version cannot be put at the installed place; it is started through the old one", "err", err)
	}
	d.tidy(s)
	return linked
}

const currentName = "current"

func (d *Device) point(s State) (bool, error) {
	if s.Current == nil {
		return false, nil
	}
	if err := link(s.Current.Dir, filepath.Join(d.dir(), currentName)); err != nil {
		return false, err
	}
	if fi, err := os.Lstat(d.Installed); err != nil || !fi.Mode().IsRegular() {
		return false, nil //nolint:nilerr // not installed, or a user's link
	}
	// Only the binary from before the update is replaced, never one that an operator installed since.
	switch id, err := BuildID(d.Installed); {
	case err != nil:
		return false, nil //nolint:nilerr // not Rivulet's
	case id == s.Current.BuildID:
		return true, nil
	case id != s.Base && id != s.Previous.buildID():
		return false, nil
	}
	if err := install(d.binary(*s.Current), d.Installed); errors.Is(err, syscall.EROFS) {
		return false, nil // a device image: its own binary is still started first
	} else if err != nil {
		return false, err
	}
	return true, nil
}

// install installs a program in one step: as a second name of the same file if possible, otherwise as a copy. It is not
// a link into the state, which a reset may remove.
func install(from, to string) error {
	tmp := to + ".new"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if os.Link(from, tmp) == nil {
		err := durable.Rename(tmp, to)
		if err != nil {
			os.Remove(tmp)
		}
		return err
	}
	return copyFile(from, to, 0o755)
}

func (v *Version) buildID() string {
	if v == nil {
		return ""
	}
	return v.BuildID
}

// link creates or changes a symbolic link in one step.
func link(to, at string) error {
	if was, err := os.Readlink(at); err == nil && was == to {
		return nil
	}
	tmp := at + ".new"
	os.Remove(tmp)
	if err := os.Symlink(to, tmp); err != nil {
		return err
	}
	err := durable.Rename(tmp, at)
	if err != nil {
		os.Remove(tmp)
	}
	return err
}

// tidy removes the versions and snapshots that the state does not name. The last snapshot stays until the next update.
func (d *Device) tidy(s State) {
	kept := map[string]bool{currentName: true, stateName: true, ".lock": true, cancelName: true}
	for _, v := range []*Version{s.Current, s.Previous} {
		if v != nil {
			kept[v.Dir] = true
		}
	}
	if s.Attempt != nil {
		kept[s.Attempt.Next.Dir], kept[s.Attempt.From.Dir], kept[s.Attempt.Snapshot] = true, true, true
	}
	if s.Last != nil && s.Attempt == nil {
		kept[lastSnapshot(d.dir())] = true
	}
	entries, err := os.ReadDir(d.dir())
	if err != nil {
		return
	}
	for _, e := range entries {
		if !kept[e.Name()] {
			os.RemoveAll(filepath.Join(d.dir(), e.Name()))
		}
	}
}

// lastSnapshot returns the name of the newest.
func lastSnapshot(dir string) (name string) {
	var newest time.Time
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		fi, err := e.Info()
		if err == nil && strings.HasPrefix(e.Name(), snapshotPrefix) && strings.HasSuffix(e.Name(), ".backup") && fi.ModTime().After(newest) {
			name, newest = e.Name(), fi.ModTime()
		}
	}
	return name
}

var _ World = (*Device)(nil)
