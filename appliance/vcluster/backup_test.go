package vcluster

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/fabric/peer"
	"rivulet/test/harness/apiserver"
	"rivulet/test/harness/await"
)

// unpack puts a backup into a folder, and returns the reasons for what is not in it.
func unpack(t *testing.T, from []byte, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for r := tar.NewReader(bytes.NewReader(from)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		must(t, err)
		raw, err := io.ReadAll(r)
		must(t, err)
		if name, ok := strings.CutPrefix(h.Name, LeftOut+"/"); ok {
			out[name] = string(raw)
			continue
		}
		at := filepath.Join(dir, h.Name)
		must(t, os.MkdirAll(filepath.Dir(at), 0o700))
		if h.Typeflag == tar.TypeDir {
			must(t, os.MkdirAll(at, 0o700))
		} else {
			must(t, os.WriteFile(at, raw, 0o600))
		}
		must(t, os.Chmod(at, h.FileInfo().Mode().Perm()))
		must(t, os.Lchown(at, h.Uid, h.Gid))
	}
}

// TestASnapshotIsWholeOrNotMade: what undoes an upgrade has every virtual cluster whose file is a datastore. An error of the
// device ends it, and is no reason to leave one out, as it is in a backup that a person asks for.
func TestASnapshotIsWholeOrNotMade(t *testing.T) {
	state := t.TempDir()
	k := New(Config{State: state, Log: slog.New(slog.DiscardHandler)})
	clusters := map[string]func(data string) error{
		"amy": func(data string) error {
			return os.WriteFile(filepath.Join(data, "db/state.db"), make([]byte, 1000), 0o600)
		},
		"trap": func(data string) error { return syscall.Mkfifo(filepath.Join(data, "db/state.db"), 0o600) },
		"link": func(data string) error { return os.Symlink("/etc/passwd", filepath.Join(data, "db/state.db")) },
		"large": func(data string) error {
			return errors.Join(os.WriteFile(filepath.Join(data, "db/state.db"), nil, 0o600), os.Truncate(filepath.Join(data, "db/state.db"), MaxDatastore+1))
		},
		"fresh": func(data string) error { return os.RemoveAll(data) },
	}
	for name, put := range clusters {
		r := record{Spec: Spec{Name: name}, UID: os.Getuid(), ID: "id-of-" + peer.ID(name)}
		must(t, k.save(r))
		data := newCluster(k, r).dataDir()
		must(t, os.MkdirAll(filepath.Join(data, "db"), 0o700))
		must(t, put(data))
	}
	amy, err := os.Lstat(filepath.Join(newCluster(k, record{Spec: Spec{Name: "amy"}}).dataDir(), "db/state.db"))
	must(t, err)
	if got := Room(state); got == 0 || got != 2*stored(amy) {
		t.Errorf("%d bytes, want the datastore of amy twice", got)
	}
	large, err := os.Lstat(filepath.Join(newCluster(k, record{Spec: Spec{Name: "large"}}).dataDir(), "db/state.db"))
	must(t, err)
	for file, tenants := range map[fs.FileInfo]bool{amy: false, large: true} {
		if got := errors.As(copyErr(file, unix.ENOSPC), new(fault)); got != tenants {
			t.Errorf("no space for %d bytes that take %d: the tenant's fault is %v", file.Size(), stored(file), got)
		}
	}
	backup := func(whole bool) (map[string]string, error) {
		var out bytes.Buffer
		err := BackupStopped(t.Context(), state, t.TempDir(), &out, whole, k.cfg.Log)
		if err != nil {
			return nil, err
		}
		return unpack(t, out.Bytes(), t.TempDir()), nil
	}
	for _, whole := range []bool{true, false} {
		out, err := backup(whole)
		must(t, err)
		for _, name := range []string{"trap", "link", "large"} {
			if out[name] == "" {
				t.Errorf("whole %v: %s is in it", whole, name)
			}
		}
		if out["amy"] != "" || out["fresh"] != "" {
			t.Errorf("whole %v: left out: %v", whole, out)
		}
		if left, _ := filepath.Glob(filepath.Join(k.folder(), "*/copy")); len(left) > 0 {
			t.Errorf("left are %v", left)
		}
	}
	data := newCluster(k, record{Spec: Spec{Name: "amy"}}).dataDir()
	must(t, os.RemoveAll(data))
	must(t, os.WriteFile(data, nil, 0o600)) // no tenant can do that
	if out, err := backup(false); err != nil || out["amy"] == "" {
		t.Errorf("%v, left out: %v", err, out)
	}
	if _, err := backup(true); err == nil {
		t.Error("an error of the device leaves a virtual cluster out of what undoes an upgrade")
	}
	for err, own := range map[error]bool{unix.EIO: true, unix.EMFILE: true, unix.ELOOP: false, unix.ENXIO: false, fs.ErrNotExist: false} {
		if got := ownError(&fs.PathError{Op: "open", Err: err}); got != own {
			t.Errorf("%v is the device's: %v", err, got)
		}
	}
}

// TestBackup: a backup has each as it was, asleep or awake, with the identity that the host knows; in its
// place again it is the same one, and processes of what it replaced have ended.
func TestBackup(t *testing.T) {
	t.Parallel()
	d := newDevice(t, apiserver.Binary(t))
	ctx := t.Context()
	put := func(name, object string) error {
		_, err := d.client(name).CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: object}}, metav1.CreateOptions{})
		return err
	}
	has := func(name, object string) bool {
		t.Helper()
		all, err := d.client(name).CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + object})
		must(t, err)
		return len(all.Items) == 1
	}
	d.create(Spec{Name: "amy", Sleep: DefaultSleep})
	d.create(Spec{Name: "trap", Sleep: DefaultSleep})
	must(t, put("amy", "before"))
	must(t, d.k.Pause("trap"))
	d.is("trap", Paused)
	db := filepath.Join(d.k.folder(), "trap/root/data/db/state.db")
	must(t, os.Remove(db))
	must(t, syscall.Mkfifo(db, 0o600))
	id, err := d.k.Identity("amy")
	must(t, err)
	pid := d.is("amy", Awake).PID
	var saved, stopped bytes.Buffer
	must(t, d.k.Backup(ctx, &saved))
	d.another("amy", pid)
	must(t, put("amy", "after"))
	d.create(Spec{Name: "later", Sleep: DefaultSleep})
	pids := []int{d.is("amy", Awake).PID, d.is("later", Awake).PID}

	d.stop()
	must(t, os.Rename(d.k.folder(), d.k.folder()+"-aside"))
	if out := unpack(t, saved.Bytes(), d.k.folder()); len(out) != 1 || !strings.Contains(out["trap"], "no datastore") {
		t.Errorf("left out: %v", out)
	}
	d.start()
	d.is("amy", Asleep)
	for _, pid := range pids {
		await.True(t, patience, "the process of what was replaced has ended", func() bool { return startTime(pid) == "" })
	}
	if !has("amy", "before") || has("amy", "after") {
		t.Error("it is not as it was saved")
	}
	all, err := d.client("amy").CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{})
	must(t, err)
	if at, err := strconv.ParseInt(all.ResourceVersion, 10, 64); err != nil || at < 1_000_000_000 {
		t.Errorf("it goes on at revision %s: who has watched it before waits in silence", all.ResourceVersion)
	}
	if now, err := d.k.Identity("amy"); now != id || err != nil {
		t.Errorf("identity %s (%v), had %s", now, err, id)
	}
	if _, err := d.k.Get("later"); err == nil {
		t.Error("one that was made later is there")
	}

	// Without a supervisor its process, which still runs, ends first.
	must(t, put("amy", "last"))
	pid = d.is("amy", Awake).PID
	d.stop()
	must(t, BackupStopped(ctx, d.cfg.State, d.cfg.Run, &stopped, true, d.cfg.Log))
	if startTime(pid) != "" {
		t.Errorf("process %d runs beside the copy", pid)
	}
	must(t, os.RemoveAll(d.k.folder()))
	unpack(t, stopped.Bytes(), d.k.folder())
	d.start()
	d.is("amy", Asleep)
	if !has("amy", "before") || !has("amy", "last") {
		t.Error("it is not as it was saved without a supervisor")
	}
}
