package datastore

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/appliance/health"
	"rivulet/appliance/state/durable"
	"rivulet/offload/consumer/volume"
)

// fill makes a database as the engine leaves it and returns the newest id.
func fill(t *testing.T, path string, from, to int) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	db, err := Open(path, "rwc")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if from == 1 {
		must(t, db, "PRAGMA journal_mode=WAL")
		must(t, db, schema)
		must(t, db, "CREATE INDEX kine_name_index ON kine (name)")
		must(t, db, "INSERT INTO kine("+columns+") VALUES(1,'compact_rev_key',1,0,0,0,0,'','')")
	}
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	for id := max(from, 2); id <= to; id++ {
		if _, err := tx.Exec("INSERT INTO kine("+columns+") VALUES(?,?,1,0,?,0,0,?,'')", id, fmt.Sprintf("/registry/pods/default/%d", id), id, value(id)); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
}

func value(id int) []byte { return []byte(fmt.Sprintf("%q", fmt.Sprintf("%0*d", 200+id%700, id))) }

func must(t *testing.T, db *sql.DB, query string) {
	t.Helper()
	if _, err := db.Exec(query); err != nil {
		t.Fatal(err)
	}
}

// rows returns which ids a database has, and fails on one that is not as it was.
func rows(t *testing.T, path string) map[int]bool {
	t.Helper()
	db, err := Open(path, "rw")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	rs, err := db.Query("SELECT id, name, typeof(name), value, typeof(value), create_revision FROM kine WHERE name LIKE '/registry/%'")
	if err != nil {
		t.Fatal(err)
	}
	defer rs.Close()
	out := map[int]bool{}
	for rs.Next() {
		var id, created int
		var name, nameType, valueType string
		var v []byte
		if err := rs.Scan(&id, &name, &nameType, &v, &valueType, &created); err != nil {
			t.Fatal(err)
		}
		if name != fmt.Sprintf("/registry/pods/default/%d", id) || string(v) != string(value(id)) || created != id || nameType != "text" || valueType != "blob" {
			t.Errorf("row %d: %s (%s) %d bytes (%s), created %d", id, name, nameType, len(v), valueType, created)
		}
		out[id] = true
	}
	if err := rs.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

func keeper(t *testing.T, state string) *Snapshotter {
	return &Snapshotter{Database: Path(state), Dir: Snapshots(state), Temp: t.TempDir(), Every: time.Hour, Keep: 2, Log: slog.New(slog.DiscardHandler)}
}

// Half of the rows are in a snapshot, all are in the file, of which a part is
// damaged: what either of the two has is there afterwards.
func TestWhatEitherHasIsRecovered(t *testing.T) {
	const n = 3000
	noise := func(b []byte) { rand.Read(b) }
	for _, tc := range []struct {
		name     string
		snapshot bool
		damage   func(file []byte) []byte
		check    func(t *testing.T, r Recovery, have map[int]bool)
	}{
		{"pages here and there", true, func(f []byte) []byte {
			for at := 5 * 4096; at < len(f); at += 41 * 4096 {
				noise(f[at : at+4096])
			}
			return f
		}, func(t *testing.T, r Recovery, have map[int]bool) {
			if r.Salvaged < n*3/4 || r.Snapshot == 0 || len(have) < n*95/100 {
				t.Errorf("%+v, %d rows of %d", r, len(have), n)
			}
		}},
		{"the same, no snapshot", false, func(f []byte) []byte {
			for at := 5 * 4096; at < len(f); at += 41 * 4096 {
				noise(f[at : at+4096])
			}
			return f
		}, func(t *testing.T, r Recovery, have map[int]bool) {
			if r.Snapshot != 0 || len(have) < n*3/4 {
				t.Errorf("%+v, %d rows of %d", r, len(have), n)
			}
		}},
		{"garbage", true, func(f []byte) []byte { noise(f); return f }, onlySnapshot},
		{"empty", true, func([]byte) []byte { return nil }, onlySnapshot},
		{"cut off", true, func(f []byte) []byte { return f[:len(f)/2+100] }, func(t *testing.T, r Recovery, have map[int]bool) {
			if len(have) < n/2-1 {
				t.Errorf("%+v, %d rows of %d", r, len(have), n)
			}
		}},
		{"gone", true, func([]byte) []byte { return []byte("remove") }, onlySnapshot},
	} {
		t.Run(tc.name, func(t *testing.T) {
			state := t.TempDir()
			path := Path(state)
			ca := filepath.Join(state, "k3s/server/tls/server-ca.crt")
			if err := errors.Join(os.MkdirAll(filepath.Dir(ca), 0o700), os.WriteFile(ca, []byte("x"), 0o600)); err != nil {
				t.Fatal(err)
			}
			fill(t, path, 1, n/2)
			if tc.snapshot {
				if _, err := keeper(t, state).Make(t.Context(), time.Now()); err != nil {
					t.Fatal(err)
				}
			}
			fill(t, path, n/2+1, n)
			if r, err := Prepare(t.Context(), state, true); r != nil || err != nil {
				t.Fatalf("sound, yet %+v %v", r, err)
			}
			file, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if file = tc.damage(file); string(file) == "remove" {
				err = os.Remove(path)
			} else {
				err = os.WriteFile(path, file, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			r, err := Prepare(t.Context(), state, true)
			if err != nil || r == nil {
				t.Fatalf("%v %v", r, err)
			}
			tc.check(t, *r, rows(t, path))
			if tc.name != "gone" && len(r.Aside) == 0 {
				t.Error("nothing was set aside")
			}
			if r, err := Prepare(t.Context(), state, true); r != nil || err != nil {
				t.Errorf("recovered, yet %+v %v", r, err)
			}
			if next := newest(t, path); next < leap {
				t.Errorf("the next revision is %d: watchers of before would wait for it", next)
			}
		})
	}
}

func onlySnapshot(t *testing.T, r Recovery, have map[int]bool) {
	t.Helper()
	if r.Salvaged != 0 || len(have) != 1499 || r.SnapshotTime.IsZero() {
		t.Errorf("%+v, %d rows", r, len(have))
	}
}

func newest(t *testing.T, path string) (id int64) {
	t.Helper()
	db, err := Open(path, "ro")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.QueryRow("SELECT max(id) FROM kine").Scan(&id); err != nil {
		t.Fatal(err)
	}
	return id
}

func TestNothingToRecoverChangesNothing(t *testing.T) {
	state := t.TempDir()
	path := Path(state)
	if r, err := Prepare(t.Context(), state, true); r != nil || err != nil {
		t.Fatalf("a new device: %v %v", r, err)
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte("garbage, and no snapshot"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := Prepare(t.Context(), state, true); !errors.Is(err, ErrLost) || !errors.Is(err, ErrDamaged) {
		t.Errorf("%v, want ErrLost", err)
	}
	entries, _ := os.ReadDir(filepath.Dir(path))
	if len(entries) != 1 {
		t.Errorf("left beside it: %v", entries)
	}
}

// The power may go between any two steps of putting the new one in its place.
func TestRecoveryCutShortIsFinished(t *testing.T) {
	for _, gone := range []string{"", "-wal", "-wal and the database"} {
		state := t.TempDir()
		path := Path(state)
		fill(t, path, 1, 50)
		if err := os.WriteFile(recovered(path), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		os.Remove(recovered(path))
		if err := Copy(t.Context(), path, recovered(path)); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path+"-wal", []byte("old"), 0o600); err != nil {
			t.Fatal(err)
		}
		if gone != "" {
			os.Remove(path + "-wal")
		}
		if gone == "-wal and the database" {
			os.Remove(path)
		}
		if r, err := Prepare(t.Context(), state, false); r == nil || err != nil {
			t.Fatalf("%q: %v %v", gone, r, err)
		}
		if have := rows(t, path); len(have) != 49 {
			t.Errorf("%q: %d rows", gone, len(have))
		}
		if _, err := os.Stat(path + "-wal"); err == nil && gone == "" {
			if raw, _ := os.ReadFile(path + "-wal"); string(raw) == "old" {
				t.Error("the write-ahead log of the damaged database is still there")
			}
		}
	}
}

func TestKeeperKeepsAFewAndNoneThatIsDamaged(t *testing.T) {
	state := t.TempDir()
	fill(t, Path(state), 1, 500)
	k := keeper(t, state)
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for range 4 {
		at = at.Add(time.Hour)
		if _, err := k.Make(context.Background(), at); err != nil {
			t.Fatal(err)
		}
	}
	have := List(k.Dir)
	if len(have) != 2 || !have[0].Time.Equal(at) {
		t.Fatalf("%v", have)
	}
	if err := os.WriteFile(k.Database, make([]byte, 8192), 0o600); err != nil {
		t.Fatal(err)
	}
	os.Remove(k.Database + "-wal")
	if _, err := k.Make(t.Context(), at.Add(time.Hour)); err == nil {
		t.Error("a snapshot was made of a damaged database")
	}
	if now := List(k.Dir); len(now) != 2 || now[0] != have[0] {
		t.Errorf("%v, want %v", now, have)
	}
}

// TestTheMarkOfAnOrderlyEndIsGoneBeforeTheEngineWrites: a power cut that brought it back would hide the damage of the next.
func TestTheMarkOfAnOrderlyEndIsGoneBeforeTheEngineWrites(t *testing.T) {
	defer func() { durable.Failpoint = nil }()
	for _, at := range []string{durable.Removing, durable.SyncFolder} {
		g := &Guard{State: t.TempDir(), Health: &health.Tracker{}, Log: slog.New(slog.DiscardHandler)}
		if err := os.WriteFile(g.cleanFile(), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		durable.Failpoint = func(step, path string) error {
			if step == at && (path == g.State || path == g.cleanFile()) {
				return durable.ErrCut
			}
			return nil
		}
		if err := g.Prepare(t.Context(), cluster("")); !errors.Is(err, durable.ErrCut) {
			t.Errorf("cut at %s: the engine starts: %v", at, err)
		}
		durable.Failpoint = nil
		if err := g.Prepare(t.Context(), cluster("")); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(g.cleanFile()); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the mark is there: %v", err)
		}
	}
}

// TestSnapshotsAreOrderedByANumber: after a clock that was ahead, what is made is kept, and is what a recovery takes first.
func TestSnapshotsAreOrderedByANumber(t *testing.T) {
	state := t.TempDir()
	fill(t, Path(state), 1, 50)
	k := keeper(t, state)
	right := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	// Those of a version without numbers, by a clock that was years ahead.
	if err := os.MkdirAll(k.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"datastore-20310101T000000Z.db.zst", "datastore-20310101T060000Z.db.zst"} {
		if err := os.WriteFile(filepath.Join(k.Dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, at := range []time.Time{right, right.AddDate(9, 0, 0), right.Add(time.Hour), right.Add(-time.Hour)} {
		s, err := k.Make(t.Context(), at)
		if err != nil {
			t.Fatal(err)
		}
		have := List(k.Dir)
		if len(have) != 2 || have[0] != s || !s.Time.Equal(at) {
			t.Errorf("made at %s: %v", at, have)
		}
		if _, err := os.Stat(s.Path); err != nil {
			t.Errorf("made at %s: %v", at, err)
		}
		// A version without numbers finds it, too.
		if was, err := time.Parse("20060102T150405Z", strings.TrimSuffix(strings.TrimPrefix(filepath.Base(s.Path), snapshotPrefix), snapshotSuffix)); err != nil || was.Sub(at) > time.Second {
			t.Errorf("%s: %s %v", s.Path, was, err)
		}
	}
	if have := List(k.Dir); have[0].number != 4 || !have[1].Time.Equal(right.Add(time.Hour)) {
		t.Errorf("%v", have)
	}
}

// Versions before 3.51.3 can damage a database when two connections write and checkpoint at the same moment
// (sqlite.org/wal.html#walresetbug). From 3.53 on a checkpoint and a writer may wait for each other
// (docs/design/dependencies.md).
func TestVersionOfSQLite(t *testing.T) {
	db, err := Open(filepath.Join(t.TempDir(), "state.db"), "rwc")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var version string
	if err := db.QueryRow("SELECT sqlite_version()").Scan(&version); err != nil {
		t.Fatal(err)
	}
	var major, minor, patch int
	n, err := fmt.Sscanf(version, "%d.%d.%d", &major, &minor, &patch)
	if number := 1_000_000*major + 1000*minor + patch; n != 3 || number < 3_051_003 || number >= 3_053_000 {
		t.Errorf("SQLite %q is linked (%v), want 3.51.3 or newer, and older than 3.53", version, err)
	}
}

// What was put back is another history: watchers begin anew, and home is told by a ConfigMap that is made again. It may be
// begun twice, as after a power cut.
func TestPutBackBeginsAnotherHistory(t *testing.T) {
	if want := "/registry/configmaps/" + metav1.NamespaceSystem + "/" + volume.HistoryName; historyKey != want {
		t.Errorf("%s, want %s", historyKey, want)
	}
	if leap != volume.Leap {
		t.Errorf("home takes %d for a leap", volume.Leap)
	}
	path := filepath.Join(t.TempDir(), "state.db")
	fill(t, path, 1, 40)
	db, err := Open(path, "rw")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for i, deleted := range []int{0, 1, 0} { // made, deleted, made again
		if _, err := db.Exec("INSERT INTO kine("+columns+") VALUES(?,?,?,?,?,?,0,'x','')", 41+i, historyKey, 1-deleted, deleted, 41, 40+i); err != nil {
			t.Fatal(err)
		}
	}
	for i, c := range []struct {
		do   func(context.Context, string) error
		left int64
	}{{MoveOn, 3}, {PutBack, 0}, {PutBack, 0}, {MoveOn, 0}} {
		last := 43 + int64(i)*leap
		if err := c.do(t.Context(), path); err != nil {
			t.Fatal(err)
		}
		var left, compacted int64
		if err := db.QueryRow("SELECT count(*) FROM kine WHERE name = ?", historyKey).Scan(&left); err != nil || left != c.left {
			t.Errorf("%d rows of the old history are left, want %d: %v", left, c.left, err)
		}
		if err := db.QueryRow("SELECT prev_revision FROM kine WHERE name = 'compact_rev_key'").Scan(&compacted); err != nil {
			t.Fatal(err)
		}
		if got := newest(t, path); got != last+leap || compacted != got {
			t.Errorf("revision %d, compacted to %d, want %d", got, compacted, last+leap)
		}
	}
	if got := len(rows(t, path)); got != 39 {
		t.Errorf("%d objects, want 39", got)
	}
}
