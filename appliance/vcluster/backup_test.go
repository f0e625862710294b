package vcluster

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

// TestBackup: a backup has each as it was, asleep or awake, with the identity that the host knows; in its
// place again it is the same one, and processes of what it replaced have ended.
func TestBackup(t *testing.T) {
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
	d.create(Spec{Name: "ann", Sleep: DefaultSleep})
	d.create(Spec{Name: "trap", Sleep: DefaultSleep})
	must(t, put("ann", "before"))
	must(t, d.k.Pause("trap"))
	d.is("trap", Paused)
	db := filepath.Join(d.k.folder(), "trap/root/data/db/state.db")
	must(t, os.Remove(db))
	must(t, syscall.Mkfifo(db, 0o600))
	id, err := d.k.Identity("ann")
	must(t, err)
	pid := d.is("ann", Awake).PID
	var saved, stopped bytes.Buffer
	must(t, d.k.Backup(ctx, &saved))
	d.another("ann", pid)
	must(t, put("ann", "after"))
	d.create(Spec{Name: "later", Sleep: DefaultSleep})
	pids := []int{d.is("ann", Awake).PID, d.is("later", Awake).PID}

	d.stop()
	must(t, os.Rename(d.k.folder(), d.k.folder()+"-aside"))
	if out := unpack(t, saved.Bytes(), d.k.folder()); len(out) != 1 || !strings.Contains(out["trap"], "no datastore") {
		t.Errorf("left out: %v", out)
	}
	d.start()
	d.is("ann", Asleep)
	for _, pid := range pids {
		await.True(t, patience, "the process of what was replaced has ended", func() bool { return startTime(pid) == "" })
	}
	if !has("ann", "before") || has("ann", "after") {
		t.Error("it is not as it was saved")
	}
	if now, err := d.k.Identity("ann"); now != id || err != nil {
		t.Errorf("identity %s (%v), had %s", now, err, id)
	}
	if _, err := d.k.Get("later"); err == nil {
		t.Error("one that was made later is there")
	}

	// Without a supervisor its process, which still runs, ends first.
	must(t, put("ann", "last"))
	pid = d.is("ann", Awake).PID
	d.stop()
	must(t, BackupStopped(ctx, d.cfg.State, d.cfg.Run, &stopped, d.cfg.Log))
	if startTime(pid) != "" {
		t.Errorf("process %d runs beside the copy", pid)
	}
	must(t, os.RemoveAll(d.k.folder()))
	unpack(t, stopped.Bytes(), d.k.folder())
	d.start()
	d.is("ann", Asleep)
	if !has("ann", "before") || !has("ann", "last") {
		t.Error("it is not as it was saved without a supervisor")
	}
}
