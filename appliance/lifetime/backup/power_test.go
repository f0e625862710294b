package backup

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"rivulet/appliance/engine/datastore"
	"rivulet/appliance/state/paths"
)

// Saved while somebody writes, each copy is one moment: what belongs together in
// one transaction is there together, and what was committed before is there.
func TestSnapshotUnderWrites(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "state.db")
	engineDB(t, path, "x", 10)
	db, err := datastore.Open(path, "rw")
	must(t, err)
	_, err = db.Exec("CREATE TABLE pair (a INTEGER, b INTEGER)")
	must(t, err)
	_, err = db.Exec("INSERT INTO pair VALUES(0, 0)")
	must(t, err)
	var committed sync.Map // the last number of each writer that is surely in
	ctx, cancel := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	for w := range 3 {
		writers.Go(func() {
			own, err := datastore.Open(path, "rw")
			if err != nil {
				t.Error(err)
				return
			}
			defer own.Close()
			for i := 1; ctx.Err() == nil; i++ {
				tx, err := own.Begin()
				if err != nil {
					t.Error(err)
					return
				}
				for _, s := range []string{
					"UPDATE pair SET a = a + 1",
					fmt.Sprintf("INSERT INTO kine(name, value) VALUES('/registry/w%d-%d', zeroblob(2000))", w, i),
					"UPDATE pair SET b = b + 1",
				} {
					if _, err := tx.Exec(s); err != nil {
						t.Error(err)
						return
					}
				}
				if err := tx.Commit(); err != nil {
					t.Error(err)
					return
				}
				committed.Store(w, i)
			}
		})
	}
	for i := range 15 {
		had := map[int]int{}
		committed.Range(func(w, n any) bool { had[w.(int)] = n.(int); return true })
		to := filepath.Join(dir, fmt.Sprint("copy", i))
		must(t, snapshot(ctx, path, to))
		c, err := datastore.Open(to, "rw")
		must(t, err)
		var a, b, rows int
		must(t, c.QueryRow("SELECT a, b FROM pair").Scan(&a, &b))
		must(t, c.QueryRow("SELECT COUNT(*) FROM kine WHERE name LIKE '/registry/w%'").Scan(&rows))
		if a != b || rows != a {
			t.Errorf("half a transaction is in the copy: a %d, b %d, %d rows", a, b, rows)
		}
		for w, n := range had {
			var found int
			must(t, c.QueryRow("SELECT COUNT(*) FROM kine WHERE name = ?", fmt.Sprintf("/registry/w%d-%d", w, n)).Scan(&found))
			if found != 1 {
				t.Errorf("write %d of writer %d was committed before and is not in the copy", n, w)
			}
		}
		must(t, c.Close())
	}
	cancel()
	writers.Wait()
	must(t, db.Close())
}

// The power fails between any two steps of a restore: the next start finds the old
// cluster whole, or makes the new one whole.
func TestEveryStepMayBeTheLast(t *testing.T) {
	stream := save(t, source(device(t, "kitchen", 5), "kitchen"))
	for cut := 0; ; cut++ {
		at := device(t, "cellar", 3)
		o := options()
		o.Over = true
		staged := filepath.Join(at.State, workDir, "new")
		must(t, os.MkdirAll(staged, 0o700))
		m, err := prepare(t.Context(), bytes.NewReader(stream), at, staged, o)
		must(t, err)
		p, err := steps(at, staged, m, o)
		must(t, err)
		must(t, p.decide(at.State))
		if cut > 2*len(p.Steps) {
			return
		}
		for _, s := range p.Steps[:cut/2] {
			must(t, s.do())
		}
		if cut%2 == 1 && cut/2 < len(p.Steps) { // the old is aside, the new not in place
			s := p.Steps[cut/2]
			s.New = ""
			must(t, s.do())
		}
		done, err := Finish(at.State)
		if err != nil || !done {
			t.Fatalf("cut at %d: %v %v", cut, done, err)
		}
		whole(t, at, "kitchen")
		settled(t, at)
		if again, err := Finish(at.State); again || err != nil {
			t.Errorf("cut at %d: finished twice: %v", cut, err)
		}
	}
}

// settled checks that damage does not make the engine begin the cluster anew, as one that never served.
func settled(t *testing.T, p Paths) {
	t.Helper()
	if _, err := os.Lstat(paths.Settled(p.State)); err != nil {
		t.Error(err)
	}
}

// whole checks that everything is of one cluster.
func whole(t *testing.T, p Paths, node string) {
	t.Helper()
	for name, want := range map[string]string{
		"k3s/server/token":             node + "'s token",
		"k3s/server/tls/server-ca.key": node + "'s key",
		"k3s-node/password":            node + "'s password",
		"../etc/" + configFile:         "# mine\nname: " + node + "\ntrust:\n  mode: lan\n",
	} {
		if got := read(t, filepath.Join(p.State, name)); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	must(t, sound(t.Context(), filepath.Join(p.State, "k3s/server/db/state.db")))
	if _, err := os.Lstat(filepath.Join(p.State, workDir)); err == nil {
		t.Error("the working folder is left behind")
	}
}

// A restore that is killed, wherever it is, leaves one cluster or the other.
func TestKilledInTheMiddle(t *testing.T) {
	file := filepath.Join(t.TempDir(), "backup")
	must(t, os.WriteFile(file, save(t, source(device(t, "kitchen", 40), "kitchen")), 0o600))
	took := time.Duration(0)
	saw := map[string]int{}
	for i := range 15 {
		at := device(t, "cellar", 3)
		cmd := exec.Command(os.Args[0], "-test.run=^TestRestoreForAnother$")
		cmd.Env = append(os.Environ(), "RESTORE="+file, "STATE="+at.State, "CONFIG="+at.Config, "NODE="+at.Node)
		ready, err := cmd.StdoutPipe()
		must(t, err)
		must(t, cmd.Start())
		_, err = ready.Read(make([]byte, 1)) // it is about to begin
		must(t, err)
		begun := time.Now()
		if i > 0 {
			time.AfterFunc(time.Duration(rand.Int64N(int64(took))), func() { cmd.Process.Kill() })
		}
		cmd.Wait()
		if i == 0 {
			took = time.Since(begun)
		}
		_, err = Finish(at.State)
		must(t, err)
		node := "cellar"
		if read(t, filepath.Join(at.State, "k3s/server/token")) != "cellar's token" {
			node = "kitchen"
		}
		saw[node]++
		whole(t, at, node)
	}
	t.Logf("a restore takes %s; clusters found after kills at random moments: %v", took, saw)
}

// TestRestoreForAnother is the process that TestKilledInTheMiddle kills.
func TestRestoreForAnother(t *testing.T) {
	file := os.Getenv("RESTORE")
	if file == "" {
		t.Skip("only for TestKilledInTheMiddle")
	}
	f, err := os.Open(file)
	must(t, err)
	defer f.Close()
	os.Stdout.WriteString(strconv.Itoa(1))
	o := options()
	o.Over = true
	_, err = Restore(t.Context(), f, Paths{State: os.Getenv("STATE"), Config: os.Getenv("CONFIG"), Node: os.Getenv("NODE")}, o)
	must(t, err)
}
