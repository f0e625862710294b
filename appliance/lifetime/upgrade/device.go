package upgrade

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"rivulet/appliance/lifetime/backup"
	"rivulet/appliance/state/bolt"
	"rivulet/appliance/state/durable"
	"rivulet/appliance/state/identity"
	"rivulet/appliance/state/paths"
	"rivulet/appliance/state/role"
	"rivulet/appliance/vcluster"
	"rivulet/fabric/cure"
	"rivulet/fabric/peer"
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

// Snapshot writes a backup of the cluster, without volumes, beside the versions; of a worker, its store.
func (d *Device) Snapshot(ctx context.Context, s State) (string, Saved, error) {
	if err := d.endEngine(ctx); err != nil {
		return "", Saved{}, err
	}
	name := snapshotPrefix + s.Attempt.Next.Dir + ".backup"
	now := role.Of(d.State)
	if now.Step != "" {
		return "", Saved{}, cure.Errorf("this device is in the middle of a change of what it is in its cluster (%s), which goes on now; when rivulet status says that it is ready, upgrade again: rivulet upgrade FILE", now.Step)
	}
	if now.Worker {
		saved, err := d.saveStore(d.snapshot(name))
		return name, saved, updateErr(err)
	}
	src, done, err := backup.Stopped(d.State)
	if err != nil {
		return "", Saved{}, err
	}
	defer done()
	src.Config = "" // the configuration does not depend on the version
	src.VClusters = func(w io.Writer) error { return vcluster.BackupStopped(ctx, d.State, d.Run, w, true, d.Log) }
	src.LeftOut = func(what, why string) {
		d.Log.Error("what is undone with the upgrade has no copy of a part", "part", what, "why", why)
	}
	src.Manifest.Rivulet, src.Manifest.Kubernetes, src.Manifest.Created = s.Attempt.From.Name, s.Attempt.From.Kubernetes, d.Now()
	err = durable.Replace(d.snapshot(name), 0o600, func(f *os.File) error { return backup.WriteFile(ctx, f, src) })
	return name, Saved{Kind: savedBackup, ID: peer.ID(src.Manifest.ID)}, updateErr(err)
}

// saveStore copies a worker's store.
func (d *Device) saveStore(to string) (Saved, error) {
	st, id, err := d.store()
	if err != nil {
		return Saved{}, err
	}
	defer st.Close()
	return Saved{Kind: savedStore, Worker: true, ID: id}, durable.Replace(to, 0o600, func(f *os.File) error {
		_, err := st.WriteTo(f)
		return durable.Cure(err)
	})
}

// store opens the store that is here.
func (d *Device) store() (*bolt.Store, peer.ID, error) {
	path := paths.Store(d.State)
	if _, err := os.Stat(path); err != nil { // bolt would make one
		return nil, "", durable.Cure(err)
	}
	st, err := bolt.Open(path)
	if err != nil {
		return nil, "", err
	}
	id, err := identity.Load(st)
	if err != nil {
		st.Close()
		return nil, "", err
	}
	return st, id.ID(), nil
}

// Restore restores the snapshot's data; what the new version wrote is set aside. It returns errOther if the device is not
// what it was then.
func (d *Device) Restore(ctx context.Context, s State) (string, error) {
	if err := d.endEngine(ctx); err != nil {
		return "", err
	}
	if _, err := backup.Finish(d.State); err != nil { // a restore that was cut off says nothing about the role
		return "", err
	}
	saved, err := d.saved(s)
	if err != nil {
		return "", d.lost(err, role.Of(d.State).Worker)
	}
	if err := d.other(s, saved); err != nil {
		return "", err
	}
	if saved.Kind == savedStore {
		aside, err := d.restoreStore(s)
		if errors.Is(err, bolt.ErrDamaged) {
			err = d.lost(err, true)
		}
		return aside, err
	}
	f, err := os.Open(d.snapshot(s.Attempt.Snapshot))
	if err != nil {
		return "", d.lost(err, false)
	}
	defer f.Close()
	r, err := backup.Restore(ctx, f, backup.DefaultPaths(d.State), backup.Options{
		Over: true, DataOnly: true, Kubernetes: s.Attempt.From.Kubernetes, Now: time.Now(),
	})
	if errors.Is(err, backup.ErrUnusable) {
		err = d.lost(err, false)
	}
	return r.Aside, err
}

// saved describes the snapshot. In an attempt of an older version, which did not record it, it is what its file is.
func (d *Device) saved(s State) (Saved, error) {
	f, err := os.Open(d.snapshot(s.Attempt.Snapshot))
	if err != nil {
		return Saved{}, err
	}
	defer f.Close()
	head := make([]byte, len(zstdMagic))
	if _, err := io.ReadFull(f, head); err != nil {
		return Saved{}, fmt.Errorf("%s: %w", f.Name(), err)
	}
	is := Saved{Kind: savedStore, Worker: true}
	if bytes.Equal(head, zstdMagic) {
		is = Saved{Kind: savedBackup}
	}
	switch recorded := s.Attempt.Saved; {
	case recorded == nil:
		return is, nil
	case recorded.Kind != is.Kind:
		return Saved{}, fmt.Errorf("%s was written as a %s and is none", f.Name(), recorded.Kind)
	default:
		return *recorded, nil
	}
}

// lost is the error for data of before that cannot be restored. The old version must not run on a datastore of the new one.
func (d *Device) lost(err error, worker bool) error {
	state := filepath.Join(d.dir(), stateName)
	how := fmt.Sprintf("to go on with another backup and the old version: sudo systemctl stop rivulet && sudo mv %[1]s %[1]s.away && sudo rivulet restore --yes FILE && sudo systemctl start rivulet", state)
	if worker {
		how = fmt.Sprintf("to go on with the present ones and the old version: sudo systemctl stop rivulet && sudo mv %[1]s %[1]s.away && sudo systemctl start rivulet", state)
	}
	return cure.Errorf("update: the data of before cannot be brought back: %w; %s", err, how)
}

// other returns errOther if this device is not what it was when its data were saved, with what there is to do.
func (d *Device) other(s State, saved Saved) error {
	now, was := role.Of(d.State), role.Role{Worker: saved.Worker}
	id := saved.ID
	if st, present, err := d.store(); err == nil { // a damaged one is no reason to keep the data of before away
		id = present
		st.Close()
	}
	then := "it is another cluster now"
	switch {
	case now.Step != "":
		then = "its role is changing now (" + now.Step + ")"
	case now.Worker != was.Worker:
		then = "it is " + now.String() + " now"
	case id == saved.ID || saved.ID == "":
		return nil
	}
	file := d.snapshot(s.Attempt.Snapshot)
	how := fmt.Sprintf("to have those of before, which are in %s: sudo systemctl stop rivulet && sudo rivulet restore --yes %[1]s && sudo systemctl start rivulet", file)
	if saved.Worker {
		how = "to be a node of that cluster again: rivulet join TOKEN"
	}
	return cure.Errorf("this device was %s, and %s: %w; nothing is to be done where it works: rivulet status; %s", was, then, errOther, how)
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
		if err := copyFile(store, kept, 0o600); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", updateErr(err)
		}
	}
	return aside, updateErr(bolt.PutBack(d.snapshot(s.Attempt.Snapshot), store))
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

// install replaces a program in one step: by a second name of the same file if possible, otherwise by a copy. It is not
// a link into the state, which a reset may remove. With SELinux it is always a copy: a second name has the label of the
// state, which systemd may not start, and a new file gets that of its folder.
func install(from, to string) error {
	tmp := to + ".new"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if !labelled(to) && os.Link(from, tmp) == nil {
		err := durable.Rename(tmp, to)
		if err != nil {
			os.Remove(tmp)
		}
		return err
	}
	return copyFile(from, to, 0o755)
}

// labelled reports whether a file has a label of SELinux, enforced or not.
func labelled(path string) bool {
	n, err := unix.Lgetxattr(path, "security.selinux", nil)
	return err == nil && n > 0
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
		maps.Copy(kept, lastSnapshot(s, d.dir()))
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

// lastSnapshot is the snapshot of the last update. A state of a version that did not record its name leaves all of them:
// times of files say nothing about their order.
func lastSnapshot(s State, dir string) map[string]bool {
	if s.Snapshot != "" {
		return map[string]bool{s.Snapshot: true}
	}
	all := map[string]bool{}
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), snapshotPrefix) && strings.HasSuffix(e.Name(), ".backup") {
			all[e.Name()] = true
		}
	}
	return all
}

var _ World = (*Device)(nil)
