package upgrade

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"rivulet/appliance/engine/datastore"
	"rivulet/appliance/lifetime/backup"
	"rivulet/appliance/state/bolt"
	"rivulet/appliance/state/durable"
	"rivulet/appliance/state/identity"
	"rivulet/appliance/state/paths"
	"rivulet/appliance/state/role"
	"rivulet/fabric/peer"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func put(t *testing.T, path, content string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o700))
	must(t, os.WriteFile(path, []byte(content), 0o600))
}

// stored gives f the store at path, which is made if it is not there, and returns its identity.
func stored(t *testing.T, path string, f func(*bolt.Store)) peer.ID {
	t.Helper()
	st, err := bolt.Open(path)
	must(t, err)
	defer st.Close()
	id, err := identity.Load(st)
	must(t, err)
	f(st)
	return id.ID()
}

func note(t *testing.T, path string) (text string) {
	t.Helper()
	stored(t, path, func(st *bolt.Store) {
		raw, err := st.Note("trust")
		must(t, err)
		text = string(raw)
	})
	return text
}

func setNote(t *testing.T, path, text string) {
	t.Helper()
	stored(t, path, func(st *bolt.Store) { must(t, st.PutNote("trust", []byte(text))) })
}

const isWorker = `{"node":"pi"}`

// onDevice is a device with a store, a worker or a server, and an update that is staged.
func onDevice(t *testing.T, worker bool) (*Device, State) {
	t.Helper()
	d := &Device{State: t.TempDir(), Run: t.TempDir(), Log: discard}
	stored(t, paths.Store(d.State), func(st *bolt.Store) { must(t, st.PutNodeName("pi")) })
	setNote(t, paths.Store(d.State), "before")
	must(t, os.MkdirAll(d.dir(), 0o755))
	if worker {
		put(t, paths.Worker(d.State), isWorker)
	} else {
		asServer(t, d)
	}
	return d, State{}.staged(Attempt{Next: build(2), From: Version{Name: "v1", BuildID: "build1", Kubernetes: "v1.35.0-k3s3"}})
}

// asServer gives the device what a server has.
func asServer(t *testing.T, d *Device) {
	t.Helper()
	must(t, os.RemoveAll(paths.Worker(d.State)))
	put(t, filepath.Join(d.State, "k3s-node/password"), "secret")
	for _, name := range []string{"token", "tls/server-ca.key"} {
		put(t, paths.Server(d.State, name), "secret")
	}
	must(t, os.MkdirAll(paths.Server(d.State, "db"), 0o700))
	db, err := datastore.Open(paths.Datastore(d.State), "rwc")
	must(t, err)
	defer db.Close()
	for _, s := range []string{
		"CREATE TABLE kine (id INTEGER PRIMARY KEY AUTOINCREMENT, name INTEGER, created INTEGER, deleted INTEGER, create_revision INTEGER, prev_revision INTEGER, lease INTEGER, value BLOB, old_value BLOB)",
		"INSERT INTO kine(name, created, deleted, prev_revision) VALUES('compact_rev_key', 1, 0, 0)",
	} {
		_, err := db.Exec(s)
		must(t, err)
	}
}

// tried saves the data, and is the state in which the trial is undone.
func tried(t *testing.T, d *Device, s State) State {
	t.Helper()
	name, saved := "before-v2-0.backup", Saved{Kind: savedBackup}
	if role.Of(d.State).Worker {
		var err error
		name, saved, err = d.Snapshot(t.Context(), s)
		must(t, err)
	} else { // Snapshot, with a node's password elsewhere than in /etc
		src, done, err := backup.Stopped(d.State)
		must(t, err)
		src.Node, src.Config = filepath.Join(d.State, "k3s-node"), ""
		src.Manifest.Rivulet, src.Manifest.Kubernetes = s.Attempt.From.Name, s.Attempt.From.Kubernetes
		saved.ID = peer.ID(src.Manifest.ID)
		must(t, durable.Replace(d.snapshot(name), 0o600, func(f *os.File) error { return backup.WriteFile(t.Context(), f, src) }))
		done()
	}
	s = s.begun(name, saved).started(time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)).unhealthy("it is so")
	must(t, store(d.dir(), s)) // as after a restart
	s, err := Load(d.dir())
	must(t, err)
	return s
}

// A worker's store comes back, also after a power cut at any step, and never is there a moment without one that can be
// read; what the new version wrote is set aside.
func TestAWorkersStoreComesBack(t *testing.T) {
	for at := 1; ; at++ {
		d, s := onDevice(t, true)
		s = tried(t, d, s)
		setNote(t, paths.Store(d.State), "after")
		n := 0
		durable.Failpoint = func(string, string) error {
			if n++; n == at {
				return durable.ErrCut
			}
			return nil
		}
		_, err := d.Restore(t.Context(), s)
		durable.Failpoint = nil
		if errors.Is(err, durable.ErrCut) {
			if _, _, err := bolt.OpenOrRecover(filepath.Join(copied(t, d.State), filepath.Base(paths.Store(d.State)))); err != nil {
				t.Errorf("cut at step %d: %v", at, err)
			}
		} else {
			must(t, err)
		}
		aside, err := d.Restore(t.Context(), s)
		must(t, err)
		if now, was := note(t, paths.Store(d.State)), note(t, filepath.Join(aside, "state.db")); now != "before" || was != "after" {
			t.Errorf("cut at step %d: the store is of %q, what was set aside of %q", at, now, was)
		}
		if got := note(t, bolt.CopyOf(paths.Store(d.State))); got != "before" {
			t.Errorf("cut at step %d: the copy is of %q", at, got)
		}
		if n < at {
			if at < 8 {
				t.Errorf("there are %d steps", at)
			}
			return
		}
	}
}

// copied copies the store and its copy elsewhere.
func copied(t *testing.T, state string) string {
	t.Helper()
	dir := t.TempDir()
	for _, path := range []string{paths.Store(state), bolt.CopyOf(paths.Store(state))} {
		if raw, err := os.ReadFile(path); err == nil {
			put(t, filepath.Join(dir, filepath.Base(path)), string(raw))
		}
	}
	return dir
}

// What a server had comes back, also by an attempt that an older version has begun.
func TestAServersDataComeBack(t *testing.T) {
	for _, old := range []bool{false, true} {
		d, s := onDevice(t, false)
		s = tried(t, d, s)
		if old {
			s.Attempt.Saved = nil
		}
		setNote(t, paths.Store(d.State), "after")
		put(t, paths.Server(d.State, "token"), "of the new version")
		aside, err := d.Restore(t.Context(), s)
		must(t, err)
		token, err := os.ReadFile(paths.Server(d.State, "token"))
		if now, was := note(t, paths.Store(d.State)), note(t, filepath.Join(aside, "state.db")); now != "before" || was != "after" || string(token) != "secret" || err != nil {
			t.Errorf("the store is of %q, what was set aside of %q, token %q %v", now, was, token, err)
		}
	}
}

// The data of before are of what the device was then. If it is something else now, none of its files changes, the update
// has an end, and what is said leads on.
func TestWhatADeviceIsNoLongerDoesNotComeBack(t *testing.T) {
	become := map[string]func(t *testing.T, d *Device){
		"a worker":   func(t *testing.T, d *Device) { put(t, paths.Worker(d.State), isWorker) },
		"the server": asServer,
		"on its way": func(t *testing.T, d *Device) { put(t, paths.Worker(d.State), `{"node":"pi","step":"leave"}`) },
		"another": func(t *testing.T, d *Device) {
			must(t, errors.Join(os.Remove(paths.Store(d.State)), os.Remove(bolt.CopyOf(paths.Store(d.State)))))
			stored(t, paths.Store(d.State), func(*bolt.Store) {})
		},
	}
	for _, tc := range []struct {
		worker  bool
		becomes string
		old     bool // the attempt is of a version that does not describe its snapshot
		words   string
	}{
		{false, "a worker", false, "sudo systemctl stop rivulet && sudo rivulet restore --yes "},
		{false, "a worker", true, "sudo systemctl stop rivulet && sudo rivulet restore --yes "},
		{false, "another", false, "sudo systemctl stop rivulet && sudo rivulet restore --yes "},
		{false, "on its way", false, "rivulet status"},
		{true, "the server", false, "rivulet join TOKEN"},
		{true, "the server", true, "rivulet join TOKEN"},
		{true, "another", false, "rivulet join TOKEN"},
		{true, "on its way", true, "rivulet status"},
	} {
		t.Run(fmt.Sprintf("worker %v becomes %s, old %v", tc.worker, tc.becomes, tc.old), func(t *testing.T) {
			d, s := onDevice(t, tc.worker)
			s = tried(t, d, s)
			if tc.old {
				s.Attempt.Saved = nil
			}
			become[tc.becomes](t, d)
			setNote(t, paths.Store(d.State), "after")
			w := &undone{Device: d, state: s}
			if _, err := decide(t.Context(), w, "build1", discard); err != nil {
				t.Fatal(err)
			}
			if got := note(t, paths.Store(d.State)); got != "after" {
				t.Errorf("the store is of %q", got)
			}
			last := w.state.Last
			if w.state.Phase != Idle || last == nil || last.OK || last.Aside != "" || !strings.Contains(last.Reason, "it is so; ") || !strings.Contains(last.Reason, errOther.Error()) || !strings.Contains(last.Reason, tc.words) {
				t.Errorf("%s, %+v", w.state.Phase, last)
			}
			if entries, err := filepath.Glob(filepath.Join(d.State, "before-*")); err != nil || len(entries) > 0 {
				t.Errorf("set aside: %v %v", entries, err)
			}
			if _, err := os.Stat(d.snapshot(s.Attempt.Snapshot)); err != nil {
				t.Error(err)
			}
		})
	}
}

// undone is a device whose update's state is in memory, and which installs nothing.
type undone struct {
	*Device
	state State
}

func (u *undone) Load() (State, error)             { return u.state, nil }
func (u *undone) Save(s State) error               { u.state = s; return nil }
func (*undone) Point(State) bool                   { return false }
func (*undone) Try(context.Context, State) Verdict { panic("nothing is tried") }

// A snapshot replaces nothing before it is known to be what it says; the way on works.
func TestASnapshotIsWhatItSays(t *testing.T) {
	for _, worker := range []bool{true, false} {
		for name, spoil := range map[string]func(d *Device, file string) error{
			"gone": func(_ *Device, file string) error { return os.Remove(file) },
			"garbage": func(_ *Device, file string) error {
				return os.WriteFile(file, []byte(strings.Repeat("no store\n", 999)), 0o600)
			},
			"empty":   func(_ *Device, file string) error { return os.Truncate(file, 0) },
			"cut off": func(_ *Device, file string) error { return os.Truncate(file, 600) },
			"the other kind": func(d *Device, file string) error {
				head := append([]byte{}, zstdMagic...)
				if !worker {
					raw, err := os.ReadFile(paths.Store(d.State))
					if err != nil {
						return err
					}
					head = raw
				}
				return os.WriteFile(file, head, 0o600)
			},
		} {
			d, s := onDevice(t, worker)
			s = tried(t, d, s)
			setNote(t, paths.Store(d.State), "after")
			must(t, spoil(d, d.snapshot(s.Attempt.Snapshot)))
			_, err := d.Restore(t.Context(), s)
			if err == nil || !strings.Contains(err.Error(), "sudo systemctl stop rivulet && sudo mv "+filepath.Join(d.dir(), stateName)) {
				t.Errorf("worker %v, %s: %v, want a cure", worker, name, err)
			}
			if got := note(t, paths.Store(d.State)); got != "after" {
				t.Errorf("worker %v, %s: the store is of %q", worker, name, got)
			}
			if got := note(t, bolt.CopyOf(paths.Store(d.State))); got != "after" {
				t.Errorf("worker %v, %s: its copy is of %q", worker, name, got)
			}
		}
	}
}

// In the middle of a change of what the device is nothing is saved, and so nothing tried.
func TestNothingIsTriedInTheMiddleOfAChange(t *testing.T) {
	d, s := onDevice(t, false)
	put(t, paths.Gateway(d.State), `{"step":"follow","worker":{}}`)
	if _, _, err := d.Snapshot(t.Context(), s); err == nil || !strings.Contains(err.Error(), "; when ") {
		t.Errorf("%v, want how to go on", err)
	}
}
