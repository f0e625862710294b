package vcluster

import (
	"context"
	"fmt"
	"os"
	"slices"
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
	// yieldLimit is how long one that is asked to sleep counts as one that will: it may be used directly.
	yieldLimit = 70 * time.Second
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
	taken   map[*cluster]bool // true: it is usable, so that its memory is in use
	waiting []*cluster        // in the order in which they began to wait
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
	left, starting := max(r.total-len(r.taken), 0), 0
	for _, usable := range r.taken {
		if !usable {
			starting++
		}
	}
	raw, err := os.ReadFile(r.meminfo)
	if err != nil {
		return left
	}
	if available, ok := host.Fields(string(raw))["MemAvailable"]; ok {
		left = min(left, fit(int64(available)<<10, starting))
	}
	return left
}

// fit is how many control planes fit into the available memory, bytes, beside those that start and do not use theirs yet.
func fit(available int64, starting int) int {
	return int(min(max((available-spareMemory)/planeMemory-int64(starting), 0), MaxClusters))
}

// take gives c a place, if there is one and nobody waits who comes first; if all are free, there is one.
func (r *room) take(c *cluster) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, has := r.taken[c]; !has {
		if next := r.first(); len(r.taken) > 0 && r.left() == 0 || next != nil && next != c {
			return false
		}
	}
	r.taken[c] = false
	return true
}

// first is who is served next: who has waited for longest of those that a user asks for, else of all; r.mu is held.
func (r *room) first() *cluster {
	for _, c := range r.waiting {
		c.mu.Lock()
		asked := c.requested
		c.mu.Unlock()
		if asked {
			return c
		}
	}
	if len(r.waiting) > 0 {
		return r.waiting[0]
	}
	return nil
}

// begin counts those that may run, before any starts.
func (r *room) begin(may []*cluster) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.taken, r.waiting = map[*cluster]bool{}, nil
	for _, c := range may {
		r.taken[c] = false
	}
}

// usable notes that c is usable and uses its memory.
func (r *room) usable(c *cluster) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.taken[c] = true
}

// leave frees the place of c.
func (r *room) leave(c *cluster) {
	r.mu.Lock()
	_, had := r.taken[c]
	delete(r.taken, c)
	r.mu.Unlock()
	c.mu.Lock()
	c.yields = time.Time{}
	c.mu.Unlock()
	if had {
		r.changed.Notify()
	}
}

// queue adds c to those that wait, or removes it.
func (r *room) queue(c *cluster, is bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if is {
		r.waiting = append(r.waiting, c)
		return
	}
	r.waiting = slices.DeleteFunc(r.waiting, func(other *cluster) bool { return other == c })
	r.changed.Notify() // there may be a place for the next
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
		idle := now.Sub(used.at) >= unused
		switch {
		case !c.yields.IsZero():
			if idle && now.Sub(c.yields) < yieldLimit {
				asked++
			}
		case c.state == Awake && c.rec.Sleep > 0 && idle && (oldest == nil || used.at.Before(since)):
			oldest, since = c, used.at
		}
		c.mu.Unlock()
	}
	if oldest != nil && asked < len(r.waiting) {
		oldest.mu.Lock()
		oldest.yields = now
		oldest.mu.Unlock()
		oldest.nudge()
	}
}

// await waits for a place for c, and returns false when ctx ends or the start is recalled.
func (r *room) await(ctx context.Context, c *cluster) bool {
	changed, stop := r.changed.Changed()
	defer stop()
	r.queue(c, true)
	defer func() {
		c.mu.Lock()
		c.waits = false
		c.mu.Unlock()
		r.queue(c, false)
	}()
	look := time.NewTicker(roomLook)
	defer look.Stop()
	for !r.take(c) {
		r.mu.Lock()
		awake := len(r.taken)
		r.mu.Unlock()
		c.mu.Lock()
		c.waits = true
		c.mu.Unlock()
		c.set(Starting, fmt.Sprintf("no memory for one more: %d virtual clusters are awake, and the memory of this device is for %d; it starts when another sleeps: rivulet vcluster sleep NAME, see: rivulet vcluster list", awake, r.total))
		r.yield(time.Now())
		select {
		case <-changed:
		case <-look.C:
		case <-c.poke:
			if recalled(c) {
				return false
			}
		case <-ctx.Done():
			return false
		}
	}
	return true
}
