package kine

import (
	"context"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/k3s-io/kine/pkg/server"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"rivulet/fabric/changes"
)

// syncEvery is the time from the end of a sync of the WAL to the next one. With the time of two syncs, of one that had
// begun and of the next, it bounds how long an acknowledged write is not on the card.
const syncEvery = 500 * time.Millisecond

// heartbeats are the keys that may lose 30 s in a power cut: they are written again at once.
var heartbeats = []string{"/registry/leases/", "/registry/masterleases/", "/registry/events/", "compact_rev_key"}

// precious reports whether a write must survive a power cut.
func precious(key string) bool {
	for _, prefix := range heartbeats {
		if strings.HasPrefix(key, prefix) {
			return false
		}
	}
	return true
}

// decisive are the keys of volumes and of virtual clusters. What is read of one by its key, from here and from no cache,
// is on the card: a controller that reads it as deleted may remove its files. Whoever removes what a power cut cannot
// bring back reads the record that allows it in this way, from whatever device.
var decisive = []string{"/registry/persistentvolumes/", "/registry/rivulet.dev/virtualclusters/"}

// durable syncs the WAL soon after each precious write, once for all that came meanwhile. A sync per transaction, as
// with synchronous=FULL, costs a slow card more than the transaction.
type durable struct {
	server.Backend
	due chan struct{} // holds one token while a sync is due
	wal string
}

func keepDurable(ctx context.Context, wg *sync.WaitGroup, b server.Backend, wal string) *durable {
	d := &durable{b, make(chan struct{}, 1), wal}
	wg.Add(1)
	go func() {
		defer wg.Done()
		d.run(ctx, func() error { return syncFile(wal) })
	}()
	return d
}

// run syncs when it is due, and once more at the end.
func (d *durable) run(ctx context.Context, sync func() error) {
	failed := false
	for {
		select {
		case <-ctx.Done():
			_ = sync()
			return
		case <-d.due:
		}
		err := sync()
		if err != nil {
			d.owe() // retried as long as the card fails
		}
		if (err != nil) != failed {
			failed = err != nil
			logrus.Warnf("kine: sync of the WAL: %v", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(syncEvery):
		}
	}
}

func (d *durable) owe() {
	changes.Poke(d.due)
}

// Get syncs what it has read of a decisive key.
func (d *durable) Get(ctx context.Context, key, rangeEnd string, limit, revision int64, keysOnly bool) (int64, *server.KeyValue, error) {
	rev, kv, err := d.Backend.Get(ctx, key, rangeEnd, limit, revision, keysOnly)
	if err == nil && slices.ContainsFunc(decisive, func(prefix string) bool { return strings.HasPrefix(key, prefix) }) {
		err = syncFile(d.wal)
	}
	return rev, kv, err
}

func (d *durable) Create(ctx context.Context, key string, value []byte, lease int64) (int64, error) {
	rev, err := d.Backend.Create(ctx, key, value, lease)
	if err == nil && precious(key) {
		d.owe()
	}
	return rev, err
}

func (d *durable) Update(ctx context.Context, key string, value []byte, revision, lease int64) (int64, *server.KeyValue, bool, error) {
	rev, kv, ok, err := d.Backend.Update(ctx, key, value, revision, lease)
	if ok && err == nil && precious(key) {
		d.owe()
	}
	return rev, kv, ok, err
}

func (d *durable) Delete(ctx context.Context, key string, revision int64) (int64, *server.KeyValue, bool, error) {
	rev, kv, ok, err := d.Backend.Delete(ctx, key, revision)
	if ok && err == nil && precious(key) {
		d.owe()
	}
	return rev, kv, ok, err
}

// syncFile may open and close the file at any time, because SQLite's locks are on other files.
func syncFile(path string) error {
	f, err := os.Open(path)
	if os.IsNotExist(err) {
		return nil // closed, and all of it in the file itself
	}
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Fdatasync(int(f.Fd()))
}
