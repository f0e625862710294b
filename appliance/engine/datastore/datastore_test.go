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
	"testing"
	"time"
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
