package kine

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/k3s-io/kine/pkg/server"

	"rivulet/test/harness/await"
)

func openDB(t *testing.T, path string) *sql.DB {
	t.Helper()
	db, err := sql.Open(sqlDriver, path+parameters)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// plainDB is SQLite as kine would have it without us.
func plainDB(t *testing.T, path string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite3", path+parameters)
	if err != nil {
		t.Fatal(err)
	}
	return db
}

func TestPrecious(t *testing.T) {
	for key, want := range map[string]bool{
		"/registry/leases/kube-node-lease/a": false, "/registry/masterleases/100.127.0.1": false, "/registry/events/default/x": false,
		"/registry/deployments/default/web": true, "/registry/secrets/default/s": true, "/registry/minions/a": true,
		"/registry/eventsources/x": true, "compact_rev_key_apiserver": false, "/bootstrap/x": true,
	} {
		if precious(key) != want {
			t.Errorf("%s: precious is %v", key, !want)
		}
	}
}

// nothing is a backend that acknowledges everything.
type nothing struct{ server.Backend }

func (nothing) Get(context.Context, string, string, int64, int64, bool) (int64, *server.KeyValue, error) {
	return 1, &server.KeyValue{}, nil
}
func (nothing) Create(context.Context, string, []byte, int64) (int64, error) { return 1, nil }
func (nothing) Update(context.Context, string, []byte, int64, int64) (int64, *server.KeyValue, bool, error) {
	return 2, nil, true, nil
}
func (nothing) Delete(_ context.Context, _ string, rev int64) (int64, *server.KeyValue, bool, error) {
	return 3, nil, rev == 0, nil // true: it was there
}

func TestSyncsWhatIsPreciousAndNothingElse(t *testing.T) {
	d := &durable{nothing{}, make(chan struct{}, 1), ""}
	owed := func() bool {
		select {
		case <-d.due:
			return true
		default:
			return false
		}
	}
	ctx := t.Context()
	const lease, web = "/registry/leases/kube-node-lease/a", "/registry/deployments/default/web"
	for _, c := range []struct {
		what string
		do   func()
		want bool
	}{
		{"lease renewed", func() { _, _, _, _ = d.Update(ctx, lease, nil, 1, 0) }, false},
		{"created", func() { _, _ = d.Create(ctx, web, nil, 0) }, true},
		{"updated, twice", func() { _, _, _, _ = d.Update(ctx, web, nil, 1, 0); _, _, _, _ = d.Update(ctx, web, nil, 2, 0) }, true},
		{"deleted", func() { _, _, _, _ = d.Delete(ctx, web, 0) }, true},
		{"not deleted, somebody else was faster", func() { _, _, _, _ = d.Delete(ctx, web, 7) }, false},
	} {
		c.do()
		if got := owed(); got != c.want || owed() {
			t.Errorf("%s: a sync is owed: %v", c.what, got)
		}
	}
}

// TestAVolumeIsReadAsItIsOnTheCard: a controller removes its folder for what it reads. A card that does not sync has no
// answer.
func TestAVolumeIsReadAsItIsOnTheCard(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "state.db-wal")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	const volume, other = "/registry/persistentvolumes/pvc-1", "/registry/persistentvolumeclaims/default/data"
	for _, c := range []struct {
		wal, key string
		ok       bool
	}{{file, volume, true}, {filepath.Join(dir, "none"), volume, true}, {filepath.Join(file, "broken"), volume, false}, {filepath.Join(file, "broken"), "/registry/rivulet.dev/virtualclusters/default/ann", false}, {filepath.Join(file, "broken"), other, true}} {
		d := &durable{nothing{}, make(chan struct{}, 1), c.wal}
		if _, _, err := d.Get(t.Context(), c.key, "", 1, 0, false); (err == nil) != c.ok {
			t.Errorf("%s, WAL %s: %v", c.key, c.wal, err)
		}
	}
}

// A card that fails is asked again, and the end syncs whatever is owed.
func TestSyncIsTriedAgain(t *testing.T) {
	d := &durable{nothing{}, make(chan struct{}, 1), ""}
	var calls atomic.Int32
	third := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.run(ctx, func() error {
			switch calls.Add(1) {
			case 1:
				return errors.New("input/output error")
			case 3:
				close(third)
			}
			return nil
		})
	}()
	d.owe()
	await.True(t, 10*time.Second, "it is tried again", func() bool { return calls.Load() >= 2 })
	cancel()
	select {
	case <-third:
	case <-time.After(10 * time.Second):
		t.Fatal("no sync at the end")
	}
	<-done
}
