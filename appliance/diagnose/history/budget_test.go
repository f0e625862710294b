//go:build !race

package history

// One goroutine computes here, which takes the race detector more than a minute and shows it nothing.

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"rivulet/appliance/api"
)

// A day of 200 peers, with traffic at random, takes at most 5 MB on the disk, and 5 MB of writes.
func TestBudgetOfALargeDevice(t *testing.T) {
	d, dir := newDevice(200), t.TempDir()
	for range 200 {
		d.vc = append(d.vc, api.VCluster{State: "Awake"})
	}
	r := d.recorder(dir)
	before, known := written(t)
	for range 24 * 60 {
		d.minute()
		r.Sample()
	}
	stop(r)
	if after, _ := written(t); known && after-before > 5e6 {
		t.Errorf("%d bytes were written in a day", after-before)
	} else {
		t.Logf("the kernel counts %d bytes of writes (known: %v)", after-before, known)
	}
	if len(r.closed) > 0 {
		t.Errorf("%d chunks are over the budget", len(r.closed))
	}
	for day := range 2 {
		if size := onDisk(t, dir); size > 5e6 {
			t.Errorf("day %d: %d bytes", day, size)
		} else {
			t.Logf("day %d: %d bytes in %d files", day, size, len(r.files.all))
		}
		for range 24 * 60 {
			d.minute()
			r.Sample()
		}
	}
	if got := query(t, r, 24*time.Hour); len(got) < 600 || len(got["peers_connected"].Points) != kept {
		t.Errorf("%d series", len(got))
	}
}

// However often the supervisor starts, a day's writes stay within the budget; what is over it stays in memory.
func TestBudgetOfRestarts(t *testing.T) {
	d, dir := newDevice(200), t.TempDir()
	var r *Recorder
	for range 300 {
		d.minute()
		r = d.recorder(dir)
		r.Sample()
		stop(r)
	}
	if size := onDisk(t, dir); size > budget {
		t.Errorf("%d bytes", size)
	}
	cost := int64(0)
	for _, one := range r.files.all {
		cost += one.cost
	}
	if cost > budget || len(r.closed) != 1 {
		t.Errorf("%d bytes of writes, %d chunks in memory", cost, len(r.closed))
	}
	if got := query(t, r, Step)["peers_connected"].Points; len(got) == 0 || got[len(got)-1] != 200 {
		t.Errorf("the last minute is %v", got)
	}
}

// written are the bytes that this process has caused to be written to disks; false where the kernel does not count.
func written(t *testing.T) (n int64, known bool) {
	raw, err := os.ReadFile("/proc/self/io")
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(raw)) {
		if _, err := fmt.Sscanf(line, "write_bytes: %d", &n); err == nil {
			return n, true
		}
	}
	t.Error("the kernel counts no writes")
	return 0, false
}
