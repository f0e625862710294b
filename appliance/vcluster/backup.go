package vcluster

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"strings"

	"rivulet/appliance/engine/controlplane"
)

// The backup of a device contains all virtual clusters with their identities, so that after a restore the host assigns
// them their pods and claims again. Each datastore is copied while its control plane is stopped, as for a snapshot: the
// supervisor opens no datastore.

// LeftOut is the folder of a backup with one file for each virtual cluster that is not in it; the file has the reason.
const LeftOut = ".left-out"

// Backup writes a tar of all virtual clusters, one after the other. A running control plane stops for about 1 s while
// its datastore is copied; requests wait meanwhile.
func (k *Manager) Backup(ctx context.Context, out io.Writer) error {
	w := tar.NewWriter(out)
	for _, v := range k.Briefs() {
		c, err := k.get(v.Name)
		if err != nil {
			continue // deleted meanwhile
		}
		if err := c.backup(ctx, w); err != nil {
			return err
		}
	}
	return w.Close()
}

func (c *cluster) backup(ctx context.Context, w *tar.Writer) error {
	if !c.copying.TryLock() {
		return leaveOut(w, c.name, errors.New("a snapshot of it is being made"))
	}
	defer c.copying.Unlock()
	defer os.RemoveAll(c.copyDir())
	var r record
	err := c.still(ctx, "a backup", func() error {
		r = c.record()
		return c.copyAside(r)
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return c.write(w, r, err)
}

// fault is an error that a tenant's own file causes, whatever the device does.
type fault struct{ error }

func (f fault) Unwrap() error { return f.error }

// BackupStopped is Backup for a device without a supervisor. Control planes that still run are ended, and start again
// with the next supervisor. With whole, only a tenant's own file may leave a virtual cluster out: an error of the device
// (no space, the disk) is returned.
func BackupStopped(ctx context.Context, state, run string, out io.Writer, whole bool, log *slog.Logger) error {
	k := New(Config{State: state, Run: run, Log: log})
	records, err := k.load()
	if err != nil {
		return err
	}
	w := tar.NewWriter(out)
	for _, r := range records {
		c := newCluster(k, r)
		c.endStray(ctx)
		err := c.copyAside(r)
		if !whole || err == nil || errors.As(err, new(fault)) {
			err = c.write(w, r, err)
		}
		if e := os.RemoveAll(c.copyDir()); err == nil {
			err = diskErr(e)
		}
		if err != nil {
			return err
		}
	}
	return w.Close()
}

// Room is how much BackupStopped writes with whole, bytes: a copy of each datastore, and the largest once more.
func Room(state string) (bytes int64) {
	k := New(Config{State: state, Log: slog.New(slog.DiscardHandler)})
	dirs, _ := filepath.Glob(filepath.Join(k.folder(), "*", recordName))
	var largest int64
	for _, at := range dirs {
		var size int64
		for _, name := range dataMembers {
			st, err := os.Lstat(filepath.Join(filepath.Dir(at), "root", controlplane.Data, name))
			if err == nil && st.Mode().IsRegular() && st.Size() <= MaxDatastore {
				size += stored(st)
			}
		}
		bytes, largest = bytes+size, max(largest, size)
	}
	return bytes + largest
}

// copyAside copies the datastore, if there is one.
func (c *cluster) copyAside(r record) error {
	_, err := os.Lstat(filepath.Join(c.dataDir(), dataMembers[0]))
	if r.Deleting || r.Restoring || errors.Is(err, fs.ErrNotExist) { // never used
		return nil
	}
	return c.copyData()
}

// write adds a virtual cluster whose datastore was copied, or the reason why it was not.
func (c *cluster) write(w *tar.Writer, r record, failed error) error {
	if failed != nil {
		return leaveOut(w, c.name, failed)
	}
	if r.Deleting || r.Restoring {
		return nil
	}
	add := func(name string, gid int, mode int64, content io.Reader, size int64) error {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: path.Join(c.name, name), Mode: mode, Gid: gid, Size: size}); err != nil {
			return err
		}
		_, err := io.CopyN(w, content, size)
		return err
	}
	raw, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := add(recordName, 0, 0o600, bytes.NewReader(raw), int64(len(raw))); err != nil {
		return err
	}
	for _, name := range keyMembers {
		raw, err := os.ReadFile(c.keyFile(name))
		if errors.Is(err, fs.ErrNotExist) { // never started
			continue
		}
		if err != nil {
			return diskErr(err)
		}
		place, gid, mode := name, 0, int64(0o600)
		if strings.HasPrefix(name, "tls/") {
			place, gid, mode = path.Join("root", name), r.UID, 0o640
		}
		if err := add(place, gid, mode, bytes.NewReader(raw), int64(len(raw))); err != nil {
			return err
		}
	}
	db := path.Join(c.name, "root", controlplane.Data, "db")
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: db + "/", Mode: 0o700, Uid: r.UID, Gid: r.UID}); err != nil {
		return err
	}
	for _, name := range dataMembers {
		f, err := os.Open(filepath.Join(c.copyDir(), name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return diskErr(err)
		}
		st, err := f.Stat()
		if err == nil {
			err = w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: path.Join(db, path.Base(name)), Mode: 0o600, Uid: r.UID, Gid: r.UID, Size: st.Size()})
		}
		if err == nil {
			_, err = io.CopyN(w, f, st.Size())
		}
		f.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// leaveOut records a virtual cluster that is not in the backup: a broken datastore of one tenant must not prevent the
// backup of the device.
func leaveOut(w *tar.Writer, name string, why error) error {
	text := []byte(why.Error())
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: path.Join(LeftOut, name), Mode: 0o600, Size: int64(len(text))}); err != nil {
		return err
	}
	_, err := w.Write(text)
	return err
}

// endStray ends the process of an earlier supervisor, if there is one.
func (c *cluster) endStray(ctx context.Context) {
	if p, l, err := adopt(c.pidFile(), ""); err == nil {
		l.Close()
		c.endProcess(ctx, p)
	}
}

// endStrays ends processes of virtual clusters that do not exist any more, as after the restore of a backup.
func (k *Manager) endStrays(ctx context.Context, records []record) {
	have := map[string]bool{}
	for _, r := range records {
		have[r.Name] = true
	}
	files, _ := filepath.Glob(filepath.Join(k.cfg.Run, "vcluster-*.pid"))
	for _, f := range files {
		name := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(f), "vcluster-"), ".pid")
		if !have[name] {
			k.cfg.Log.Info("ending the control plane of a virtual cluster that is not here any more", "name", name)
			newCluster(k, record{Spec: Spec{Name: name}}).endStray(ctx)
			_ = os.Remove(f)
		}
	}
}
