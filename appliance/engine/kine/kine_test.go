package kine

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/k3s-io/kine/pkg/drivers"
	"github.com/k3s-io/kine/pkg/server"
)

// start opens a datastore in a folder of its own, as kine does in the engine.
func start(t *testing.T) (server.Backend, string) {
	t.Helper()
	dir := t.TempDir()
	t.Chdir(dir)
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() { cancel(); wg.Wait() })
	elect, b, err := drivers.New(ctx, &wg, &drivers.Config{
		CompactTimeout: time.Second, CompactMinRetain: 1000, CompactBatchSize: 1000, PollBatchSize: 500,
	})
	if err != nil {
		t.Fatal(err)
	}
	if elect {
		t.Error("a single server does not elect leaders")
	}
	if err := b.Start(ctx); err != nil {
		t.Fatal(err)
	}
	return b, filepath.Join(dir, file)
}

func TestIsTheDefaultAndHasOurSettings(t *testing.T) {
	b, path := start(t)
	if _, ok := b.(*store); !ok {
		t.Fatalf("kine's default driver is %T, not ours", b)
	}
	header := make([]byte, 100)
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Read(header); err != nil {
		t.Fatal(err)
	}
	if got := binary.BigEndian.Uint16(header[16:]); got != pageSize {
		t.Errorf("the file has pages of %d bytes, want %d", got, pageSize)
	}
	if size, err := b.DbSize(t.Context()); err != nil || size < pageSize {
		t.Errorf("size %d, %v", size, err)
	}
}

// What SQLite itself says, on each of several connections.
func TestPragmasHold(t *testing.T) {
	db := openDB(t, filepath.Join(t.TempDir(), "state.db"))
	want := fmt.Sprintf("page_size=%d journal_mode=wal synchronous=1 wal_autocheckpoint=%d journal_size_limit=%d", pageSize, autoCheckpoint, walKept)
	for range 3 {
		c, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close() // held, so that the next is another
		got, err := settingsOf(t.Context(), c)
		if err != nil || got.String() != want {
			t.Errorf("%v %v, want %s", got, err, want)
		}
	}
}

// A file of an earlier version keeps its pages and is used as it is.
func TestAFileWithOtherPages(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	old := plainDB(t, path)
	if _, err := old.Exec("PRAGMA journal_mode = WAL; CREATE TABLE kept (x); INSERT INTO kept VALUES (7)"); err != nil {
		t.Fatal(err)
	}
	old.Close()
	db := openDB(t, path)
	var x int
	if err := db.QueryRow("SELECT x FROM kept").Scan(&x); err != nil || x != 7 {
		t.Fatalf("%d %v", x, err)
	}
	got, err := settings(t.Context(), db)
	if err != nil || got.PageSize != 4096 || got.Synchronous != synchronous {
		t.Errorf("%v %v", got, err)
	}
}

// A heartbeat costs the WAL a third of what it costs with pages of 4096 bytes.
func TestAHeartbeatIsCheap(t *testing.T) {
	b, path := start(t)
	ctx := t.Context()
	const key, rounds = "/registry/leases/kube-node-lease/a", 100
	value := []byte(strings.Repeat("x", 450)) // as a Lease is
	rev, err := b.Create(ctx, key, value, 0)
	if err != nil {
		t.Fatal(err)
	}
	begun := walSize(t, path)
	for range rounds {
		var ok bool
		if rev, _, ok, err = b.Update(ctx, key, value, rev, 0); err != nil || !ok {
			t.Fatal(ok, err)
		}
	}
	each := float64(walSize(t, path)-begun) / rounds
	t.Logf("%.0f bytes of WAL for each", each)
	if each > 12<<10 {
		t.Errorf("%.0f bytes of WAL for each heartbeat, want at most 12 kB", each)
	}
}

func walSize(t *testing.T, path string) int64 {
	t.Helper()
	fi, err := os.Stat(path + "-wal")
	if err != nil {
		t.Fatal(err)
	}
	return fi.Size()
}
