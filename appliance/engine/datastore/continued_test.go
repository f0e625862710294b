package datastore

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"rivulet/appliance/health"
	"rivulet/fabric/changes"
)

// serving is a cluster that has served.
type serving struct{ Cluster }

func (serving) Settled() bool     { return true }
func (serving) Datastore() string { return "" }

// Revisions that may be given a second time are left out: after an end that was not in order, in another run of the
// kernel. A killed engine and an orderly end go on where they were, since nothing that was written is lost.
func TestAPowerCutMovesTheRevisionOn(t *testing.T) {
	state := t.TempDir()
	path := Path(state)
	fill(t, path, 1, 50)
	// start is one start of the engine, and reports whether the revision was moved on for it.
	start := func() bool {
		t.Helper()
		before := newest(t, path)
		g := &Guard{State: state, Health: &health.Tracker{}, Log: slog.New(slog.DiscardHandler)}
		if err := g.Prepare(t.Context(), serving{}); err != nil {
			t.Fatal(err)
		}
		after := newest(t, path)
		if after != before && after != before+leap {
			t.Errorf("revision %d after %d", after, before)
		}
		return after != before
	}
	ends := func() {
		t.Helper()
		if err := os.WriteFile(filepath.Join(state, "datastore.clean"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	boots := func() { // the machine has started again since
		t.Helper()
		if err := os.WriteFile(path+".boot", []byte("another run of the kernel\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	history := func() (n int) {
		t.Helper()
		db, err := Open(path, "rw")
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		if err := db.QueryRow("SELECT count(*) FROM kine WHERE name = ?", historyKey).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	db, err := Open(path, "rw")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec("INSERT INTO kine("+columns+") VALUES(51,?,1,0,51,0,0,?,'')", historyKey, value(51)); err != nil {
		t.Fatal(err)
	}
	db.Close()
	ends()
	if start() {
		t.Error("it is moved on at the first start of this version, after an orderly end")
	}
	if start() {
		t.Error("it is moved on after the engine was killed: the kernel still has what it wrote")
	}
	if boots(); !start() {
		t.Error("after a power cut it gives revisions a second time")
	}
	if start() {
		t.Error("it is moved on again in the same run of the kernel")
	}
	ends()
	if boots(); start() {
		t.Error("it is moved on after an orderly end before a reboot")
	}
	if boots(); !start() {
		t.Error("the mark of an orderly end counts twice")
	}
	if history() != 1 {
		t.Error("a power cut begins another history: what is away would be unknown at home")
	}
	os.Remove(path + ".boot")
	if !start() || history() != 0 {
		t.Error("without the mark it counts as continued: it may be a copy")
	}
	if have := rows(t, path); len(have) != 49 {
		t.Errorf("%d objects", len(have))
	}
}

// The datastore of a virtual cluster that was put back moves on, whoever has put it back; it is moved on once.
func TestADatastoreThatWasPutBackMovesOn(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "db", "state.db")
	ended, err := Begin(t.Context(), path, "boot") // there is none yet
	if err != nil {
		t.Fatal(err)
	}
	fill(t, path, 1, 50)
	ended()
	start := func(boot string, want int64) func() {
		t.Helper()
		ended, err := Begin(t.Context(), path, boot)
		if err != nil {
			t.Fatal(err)
		}
		if now := newest(t, path); now != want {
			t.Errorf("revision %d, want %d", now, want)
		}
		return ended
	}
	start("boot", 50)           // and is killed
	start("boot", 50)()         // and ends in order
	start("after it", 50)       // and the power fails
	start("later", leap+50)()   // and ends in order
	start("later", leap+50)     // and is killed
	start("", 2*leap+50)        // the run of the kernel is not known
	start("later", 3*leap+50)() // as it was not

	saved := filepath.Join(dir, "copy")
	if err := Copy(t.Context(), path, saved); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Dir(path)); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(saved, path); err != nil {
		t.Fatal(err)
	}
	start("later", 4*leap+50)
	start("later", 4*leap+50)
}

// TestWhatIsPutBackAfterAnOrderlyEndIsACopy: the marks of the end and of this run of the kernel are those of the database
// that was there.
func TestWhatIsPutBackAfterAnOrderlyEndIsACopy(t *testing.T) {
	state := t.TempDir()
	path := Path(state)
	saved := filepath.Join(state, "copy")
	g := &Guard{State: state, Health: &health.Tracker{}, Log: slog.New(slog.DiscardHandler)}
	starts := map[string]func() (ended func(), err error){
		"the cluster's": func() (func(), error) { return func() { g.Ended(nil) }, g.Prepare(t.Context(), serving{}) },
		"a tenant's":    func() (func(), error) { return Begin(t.Context(), path, changes.BootID()) },
	}
	for name, start := range starts {
		if err := os.RemoveAll(filepath.Dir(path)); err != nil {
			t.Fatal(err)
		}
		ends := func(want int64) {
			t.Helper()
			ended, err := start()
			if err != nil {
				t.Fatal(err)
			}
			if now := newest(t, path); now != want {
				t.Errorf("%s: revision %d, want %d", name, now, want)
			}
			ended()
		}
		if _, err := start(); err != nil { // and it is killed in its first run
			t.Fatal(err)
		}
		fill(t, path, 1, 40)
		ends(40)
		if err := Copy(t.Context(), path, saved); err != nil {
			t.Fatal(err)
		}
		ended, err := start()
		if err != nil {
			t.Fatal(err)
		}
		fill(t, path, 41, 50)
		ended()
		if err := os.Rename(saved, path); err != nil {
			t.Fatal(err)
		}
		ends(leap + 40)
		ends(leap + 40)
		os.Remove(g.cleanFile())
	}
}

// An engine that was killed has not closed its database, and one that never made it has nothing to mark.
func TestNoMarkWithoutAnOrderlyEnd(t *testing.T) {
	g := &Guard{State: t.TempDir(), Health: &health.Tracker{}, Log: slog.New(slog.DiscardHandler)}
	for _, end := range []error{nil, os.ErrProcessDone} {
		if err := g.Prepare(t.Context(), serving{}); err != nil {
			t.Fatal(err)
		}
		g.Ended(end)
		if _, err := os.Stat(g.cleanFile()); err == nil {
			t.Errorf("marked after %v", end)
		}
		if end == nil {
			fill(t, Path(g.State), 1, 3)
		}
	}
}

// An engine that was killed before it wrote anything has no revisions.
func TestADatastoreWithoutRevisions(t *testing.T) {
	for name, make := range map[string]string{"no table": "CREATE TABLE other (id INTEGER)", "no row": schema} {
		path := filepath.Join(t.TempDir(), "state.db")
		db, err := Open(path, "rwc")
		if err != nil {
			t.Fatal(err)
		}
		must(t, db, make)
		db.Close()
		if _, err := Begin(t.Context(), path, changes.BootID()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What is readable between two damaged ends is found after many leaps, too.
func TestManyLeapsAreSalvaged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	const n, many = 3000, 5000 * int64(leap)
	fill(t, path, 1, n)
	db, err := Open(path, "rw")
	if err != nil {
		t.Fatal(err)
	}
	must(t, db, fmt.Sprintf("UPDATE kine SET id = id + %d", many))
	must(t, db, "PRAGMA wal_checkpoint(TRUNCATE)")
	must(t, db, "VACUUM") // in the order of the revisions
	must(t, db, "PRAGMA wal_checkpoint(TRUNCATE)")
	db.Close()
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []int{2, n} {
		at := bytes.Index(file, value(id))
		if at < 0 {
			t.Fatalf("row %d is not in the file", id)
		}
		copy(file[at/1024*1024:], make([]byte, 1024))
	}
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	if db, err = Open(path, "rw"); err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	seen := map[any]bool{}
	if err := readable(t.Context(), db, func(row []any) error { seen[row[0]] = true; return nil }); err != nil || len(seen) < n*9/10 {
		t.Errorf("%d rows of %d: %v", len(seen), n, err)
	}
}
