package vcluster

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"rivulet/appliance/machine/host"
	plan "rivulet/appliance/machine/memory"
	"rivulet/fabric/changes"
)

const (
	// systemMemory is for the kernel and what is not Rivulet's, bytes; mostEngine and mostOther are the most of the plan's
	// limits that counts for the engine and for the other processes: on a large machine they take less.
	systemMemory, mostEngine, mostOther = 128 << 20, 512 << 20, 128 << 20
	// spareMemory stays available beside a control plane that starts, bytes.
	spareMemory = 48 << 20
	// roomLook is the interval of looks for memory; unused is how long nobody may have used one that is asked to sleep.
	roomLook, unused = 5 * time.Second, time.Minute
	// roomPatience is how long a caller waits for memory before it is told.
	roomPatience = 15 * time.Second
)

// room bounds how many virtual clusters are awake by the memory of the machine. One has its place from before its start
// until it sleeps, is paused, or fails.
type room struct {
	total   int    // places
	meminfo string // /proc/meminfo
	changed changes.Signal

	mu      sync.Mutex
	taken   map[*cluster]bool
	waiting int
}

// newRoom is for a machine with that much RAM, bytes; 0 is unknown.
func newRoom(ram uint64) *room {
	r := &room{total: MaxClusters, meminfo: "/proc/meminfo", taken: map[*cluster]bool{}}
	if ram > 0 {
		p := plan.For(ram)
		left := int64(ram) - systemMemory - int64(min(p.Engine.Limit, mostEngine)) - int64(min(p.Supervisor.Limit, mostOther)+min(p.Containerd.Limit, mostOther)+min(p.Tunnel, mostOther))
		r.total = int(min(max(left/planeMemory, 1), MaxClusters))
	}
	return r
}

// free is how many more may be awake now.
func (r *room) free() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.left()
}

// left is free; r.mu is held.
func (r *room) left() int {
	left := max(r.total-len(r.taken), 0)
	raw, err := os.ReadFile(r.meminfo)
	if err != nil {
		return left
	}
	if available, ok := host.Fields(string(raw))["MemAvailable"]; ok {
		left = min(left, max(int(int64(available<<10)-spareMemory)/planeMemory, 0))
	}
	return left
}

// take gives c a place, if there is one; the first always has one.
func (r *room) take(c *cluster) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.taken[c] && len(r.taken) > 0 && r.left() == 0 {
		return false
	}
	r.taken[c] = true
	return true
}

// adopt gives c a place because it runs.
func (r *room) adopt(c *cluster) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.taken[c] = true
}

// leave frees the place of c.
func (r *room) leave(c *cluster) {
	r.mu.Lock()
	had := r.taken[c]
	delete(r.taken, c)
	r.mu.Unlock()
	c.mu.Lock()
	c.yields = false
	c.mu.Unlock()
	if had {
		r.changed.Notify()
	}
}

// waits notes that c waits for a place, or does not any more.
func (r *room) waits(c *cluster, is bool) {
	c.mu.Lock()
	c.waits = is
	c.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if is {
		r.waiting++
	} else {
		r.waiting--
	}
}

// yield asks one to sleep for each that waits: that which nobody has used for longest, and for a while.
func (r *room) yield(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var oldest *cluster
	var since time.Time
	asked := 0
	for c := range r.taken {
		c.mu.Lock()
		used, _ := c.used.Load().(use)
		if used.at.Before(c.since) { // awake since
			used.at = c.since
		}
		switch {
		case c.yields && now.Sub(used.at) >= unused:
			asked++
		case c.yields: // it is used again
		case c.state == Awake && c.rec.Sleep > 0 && now.Sub(used.at) >= unused && (oldest == nil || used.at.Before(since)):
			oldest, since = c, used.at
		}
		c.mu.Unlock()
	}
	if oldest != nil && asked < r.waiting {
		oldest.mu.Lock()
		oldest.yields = true
		oldest.mu.Unlock()
		oldest.nudge()
	}
}

// await waits for a place for c, and returns false when ctx ends or the state of c changed.
func (r *room) await(ctx context.Context, c *cluster) bool {
	if r.take(c) {
		return true
	}
	r.waits(c, true)
	defer r.waits(c, false)
	changed, stop := r.changed.Changed()
	defer stop()
	look := time.NewTicker(roomLook)
	defer look.Stop()
	for {
		c.set(Starting, fmt.Sprintf("the memory of this device is for %d awake virtual clusters: it starts when another sleeps; rivulet vcluster sleep NAME, see: rivulet vcluster list", r.total))
		r.yield(time.Now())
		select {
		case <-changed:
		case <-look.C:
		case <-c.poke:
			return false
		case <-ctx.Done():
			return false
		}
		if r.take(c) {
			return true
		}
	}
}
