package power

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/mainjob"
)

const (
	database = "/var/lib/rivulet/k3s/server/db/state.db"
	meta     = "/var/lib/rivulet/k3s/agent/containerd/io.containerd.metadata.v1.bolt/meta.db"
)

// garbagePages overwrites pages of the datastore DB.
const garbagePages = `rm -f DB-wal DB-shm; n=$(($(stat -c %s DB)/4096)); for i in $(seq 20 37 $n); do dd if=/dev/urandom of=DB bs=4k seek=$i count=1 conv=notrunc 2>/dev/null; done`

// Files are damaged between a power cut and the next start. The device starts, says
// what happened, keeps the damaged file, and runs the same workload.
func TestDamagedFiles(t *testing.T) {
	ctx, a, _ := need(t, 8*time.Minute)
	deploy(t, ctx, a)
	noted(t, ctx, a)
	for _, tc := range []struct {
		name, script string
		code         string // what status shows; empty: nothing was lost
		aside        string // what lies beside it afterwards
	}{
		{"containerd's database is garbage", "head -c 200000 /dev/urandom > " + meta, "containerd-recovered", "/var/lib/rivulet/k3s/agent/containerd.damaged-*/io.containerd.metadata.v1.bolt/meta.db"},
		{"containerd's database is cut off", "truncate -s 9000 " + meta, "containerd-recovered", "/var/lib/rivulet/k3s/agent/containerd.damaged-*/io.containerd.metadata.v1.bolt/meta.db"},
		{"write-ahead log is garbage", "rm -f " + database + "-shm; test -s " + database + "-wal; dd if=/dev/urandom of=" + database + "-wal bs=4k seek=1 count=30 conv=notrunc 2>&1", "", ""},
		{"pages of the datastore are garbage", garbagePages, "datastore-recovered", database + ".damaged-*"},
		{"state.db is garbage", "head -c 70000 /dev/urandom > /var/lib/rivulet/state.db", "state-recovered", "/var/lib/rivulet/state.db.damaged-*"},
		{"a helper is half written", "cd /var/lib/rivulet/bundle/current/bin && truncate -s 100000 runc", "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(ctx, 90*time.Second)
			defer cancel()
			before, err := a.Status(ctx)
			if err != nil {
				t.Fatal(err)
			}
			stopAll(t, ctx, a)
			labtest.Must(t, ctx, a, "sh", "-ec", strings.ReplaceAll(tc.script, "DB", database))
			if err := a.Start(ctx); err != nil {
				t.Fatal(err)
			}
			peered(t, ctx)
			serves(t, ctx, a, "shelf")
			after, err := a.Status(ctx)
			if err != nil || len(after.Peers) != 1 || after.Peers[0].ID != before.Peers[0].ID {
				t.Errorf("peers %+v, were %+v (%v)", after.Peers, before.Peers, err)
			}
			if tc.code != "" {
				if err := problem(ctx, a, tc.code); err != nil {
					t.Error(err)
				}
				if err := problem(ctx, a, "set-aside"); err != nil {
					t.Error(err)
				}
				labtest.Must(t, ctx, a, "sh", "-c", "ls "+tc.aside+" && rm -rf /var/lib/rivulet/*.damaged-* /var/lib/rivulet/k3s/agent/*.damaged-* "+database+"*.damaged-*")
			}
		})
	}
}

// stopAll makes the state of after a power cut with the disk still there: nothing
// runs, nothing was stopped in order.
func stopAll(t *testing.T, ctx context.Context, a *lab.Device) {
	t.Helper()
	labtest.Must(t, ctx, a, "sync")
	if err := a.Kill(ctx, "supervisor"); err != nil {
		t.Fatal(err)
	}
	await.NoError(t, ctx, 0, "the engine is gone", func() error {
		out, err := a.Run(ctx, "sh", "-c", "pgrep -x rivulet-engine || pgrep -x containerd || true")
		if err == nil && strings.TrimSpace(out) != "" {
			err = fmt.Errorf("pid %s", out)
		}
		return err
	})
}

// noted waits until the test's image would be found again, half a minute after it came.
func noted(t *testing.T, ctx context.Context, a *lab.Device) {
	t.Helper()
	await.NoError(t, ctx, 0, "the image is noted", func() error {
		if out, err := a.Run(ctx, "cat", "/var/lib/rivulet/images.json"); !strings.Contains(out, mainjob.Image) {
			return fmt.Errorf("%s %v", out, err)
		}
		return nil
	})
}
