package vcluster

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rivulet/test/harness/await"
)

// How many control planes fit beside the cluster itself, by boards.
func TestRoomFollowsTheMachine(t *testing.T) {
	for ram, want := range map[uint64]int{0: MaxClusters, 430 << 20: 1, 950 << 20: 3, 1900 << 20: 8, 3800 << 20: 24, 7800 << 20: 60, 64 << 30: MaxClusters} {
		if got := newRoom(ram).total; got != want {
			t.Errorf("%d MiB: %d awake, want %d", ram>>20, got, want)
		}
	}
}

// One that finds no memory waits, says so, has the one that is unused for longest asked to sleep, and has its place then.
func TestOneTooManyWaits(t *testing.T) {
	k := New(Config{State: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	k.room.total, k.room.meminfo, k.ctx = 3, filepath.Join(t.TempDir(), "meminfo"), t.Context()
	now := time.Now()
	awake := func(name string, sleep, since, usedFor time.Duration) *cluster {
		c := newCluster(k, record{Spec: Spec{Name: name, Sleep: sleep}})
		c.state, c.since = Awake, now.Add(-since)
		if usedFor > 0 {
			c.used.Store(use{now.Add(-usedFor), name})
		}
		if !k.room.await(t.Context(), c) {
			t.Fatal(name)
		}
		k.room.usable(c)
		k.all[name] = c
		return c
	}
	never, old, fresh := awake("never", 0, time.Hour, 0), awake("old", time.Hour, time.Hour, 10*time.Minute), awake("fresh", time.Hour, time.Hour, time.Second)
	if k.room.free() != 0 {
		t.Fatalf("room for %d", k.room.free())
	}
	more := newCluster(k, record{Spec: Spec{Name: "more"}, ID: "x"})
	k.all["more"] = more
	placed := make(chan bool, 1)
	more.wake()
	go func() { placed <- k.room.await(t.Context(), more) }()
	await.True(t, 10*time.Second, "it waits, and says for what", func() bool {
		v := more.brief()
		return v.WaitsForMemory && v.State == Starting && strings.Contains(v.Reason, "3 virtual clusters are awake, and the memory of this device is for 3") && strings.Contains(v.Reason, "rivulet vcluster sleep")
	})
	yields := func(c *cluster) bool { c.mu.Lock(); defer c.mu.Unlock(); return !c.yields.IsZero() }
	await.True(t, 10*time.Second, "the one that is unused for longest is asked to sleep", func() bool { return yields(old) })
	if yields(never) || yields(fresh) {
		t.Error("one that never sleeps, or is used, is asked, too")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*roomPatience)
	defer cancel()
	if _, err := k.Await(ctx, "more"); err == nil || !strings.Contains(err.Error(), "more waits: no memory for one more") {
		t.Errorf("who waits for it is told %v", err)
	}
	k.room.leave(old)
	if !<-placed || more.brief().WaitsForMemory || k.room.free() != 0 {
		t.Error("it does not take the place of one that sleeps")
	}

	k.room.total = 10
	k.room.usable(more)
	for available, want := range map[uint64]int{100 << 20: 0, 48<<20 + 2*planeMemory: 2, 4 << 30: 7} {
		if err := os.WriteFile(k.room.meminfo, fmt.Appendf(nil, "MemTotal: 9999999 kB\nMemAvailable: %d kB\n", available>>10), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := k.room.free(); got != want {
			t.Errorf("%d MiB are available: room for %d, want %d", available>>20, got, want)
		}
	}
}

// Under memory pressure the kernel ends a control plane and not the engine, whose score is the supervisor's.
func TestTheEngineIsNotTheVictim(t *testing.T) {
	for own, want := range map[string]string{"-500\n": "0", "0\n": "500", "-1000": "0", "900": "1000", "": "0"} {
		file := filepath.Join(t.TempDir(), "oom_score_adj")
		if err := os.WriteFile(file, []byte(own), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := scoreOver(file); got != want {
			t.Errorf("beside %q it is %s, want %s", own, got, want)
		}
	}
}

// waiting starts a wait for a place, and returns its result once it waits.
func waiting(t *testing.T, r *room, c *cluster, asked bool) <-chan bool {
	t.Helper()
	begins(c, !asked)
	placed := make(chan bool, 1)
	go func() { placed <- r.await(t.Context(), c) }()
	await.True(t, 10*time.Second, c.name+" waits", func() bool { return c.brief().WaitsForMemory })
	return placed
}

func roomOf(t *testing.T, total int) (*Manager, func(name string) *cluster) {
	k := New(Config{State: t.TempDir(), Run: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	k.room.total, k.room.meminfo, k.ctx = total, filepath.Join(t.TempDir(), "none"), t.Context()
	return k, func(name string) *cluster {
		c := newCluster(k, record{Spec: Spec{Name: name, Sleep: time.Hour}})
		k.all[name] = c
		return c
	}
}

// Starts at the same time do not all count on the same memory.
func TestThoseThatStartCountOnTheirMemory(t *testing.T) {
	k, one := roomOf(t, 10)
	if err := os.WriteFile(k.room.meminfo, fmt.Appendf(nil, "MemAvailable: %d kB\n", (spareMemory+2*planeMemory)>>10), 0o600); err != nil {
		t.Fatal(err)
	}
	a, b := one("a"), one("b")
	for _, c := range []*cluster{a, b} {
		if !k.room.await(t.Context(), c) {
			t.Fatal(c.name)
		}
	}
	if n := k.room.free(); n != 0 {
		t.Errorf("two start in the memory of two: room for %d", n)
	}
	k.room.usable(a)
	if n := k.room.free(); n != 1 {
		t.Errorf("what one uses is not available any more: room for %d", n)
	}
	if n := fit(1<<40, 3); n != MaxClusters {
		t.Errorf("much memory is for %d", n)
	}
	if n := fit(4<<30, 0); n != 36 {
		t.Errorf("4 GiB, more than an int of armv7: %d", n)
	}
}

// Those that wait are served in their order, users' requests first; no newcomer overtakes them, a poke takes no place, and
// each of pause, sleep and errand recalls.
func TestThoseThatWaitAreServedInOrder(t *testing.T) {
	k, one := roomOf(t, 1)
	holder := one("holder")
	if !k.room.await(t.Context(), holder) {
		t.Fatal("no place")
	}
	created, first, second := one("created"), one("first"), one("second")
	own := waiting(t, k.room, created, false)
	asked := waiting(t, k.room, first, true)
	later := waiting(t, k.room, second, true)
	for range 3 {
		first.nudge()
		await.True(t, 10*time.Second, "the poke arrives", func() bool { return len(first.poke) == 0 })
	}
	k.room.leave(holder)
	if !<-asked {
		t.Fatal("a poke ended the wait")
	}
	if newcomer := one("newcomer"); k.room.take(newcomer) {
		t.Error("a newcomer overtakes")
	}
	k.room.leave(first)
	if !<-later || !created.brief().WaitsForMemory {
		t.Error("a start of its own came before a user's")
	}
	if err := created.keepRecord(func(r *record) { r.Paused = true }); err != nil {
		t.Fatal(err)
	}
	if created.nudge(); <-own {
		t.Error("a paused one has a place")
	}
	slept := one("slept")
	gone := waiting(t, k.room, slept, true)
	ended := make(chan error, 1)
	go func() { ended <- Sleep(t.Context(), k, "slept") }()
	if <-gone {
		t.Error("one that is put to sleep has a place")
	}
	slept.set(Asleep, "") // as run does
	if err := <-ended; err != nil || slept.brief().State != Asleep {
		t.Errorf("%v, %s", err, slept.brief().State)
	}
	k.room.leave(second)
	if !k.room.take(holder) || k.room.first() != nil {
		t.Error("those that were recalled are in the line")
	}
}

// One that was asked to sleep and is used without the supervisor's knowledge does not keep others from being asked.
func TestOneThatDoesNotYieldIsNotAwaited(t *testing.T) {
	k, one := roomOf(t, 2)
	now := time.Now()
	a, b := one("a"), one("b")
	for i, c := range []*cluster{a, b} {
		k.room.await(t.Context(), c)
		c.state, c.since = Awake, now.Add(time.Duration(i-60)*time.Minute)
	}
	k.room.waiting = []*cluster{one("more")}
	for after, want := range map[time.Duration]bool{0: false, yieldLimit - time.Second: false, yieldLimit: true} {
		a.yields, b.yields = time.Time{}, time.Time{}
		k.room.yield(now)
		if a.yields.IsZero() || !b.yields.IsZero() {
			t.Fatal("the one that is unused for longest is not asked")
		}
		k.room.yield(now.Add(after))
		if got := !b.yields.IsZero(); got != want {
			t.Errorf("after %s another is asked: %v, want %v", after, got, want)
		}
	}
}

// After a restart of the supervisor those that run have their places before any starts, and places of before are none.
func TestThoseThatRunAreCountedFirst(t *testing.T) {
	k, one := roomOf(t, 2)
	k.room.await(t.Context(), one("before"))
	k.room.await(t.Context(), one("before2"))
	for _, name := range []string{"runs", "runs2", "sleeps"} {
		if err := k.save(record{Spec: Spec{Name: name}, ID: "x", Paused: true}); err != nil {
			t.Fatal(err)
		}
		if name == "sleeps" {
			continue
		}
		if err := os.WriteFile(newCluster(k, record{Spec: Spec{Name: name}}).pidFile(), []byte("1 0"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	records, err := k.load()
	if err != nil {
		t.Fatal(err)
	}
	all := counted(k, records)
	if len(all) != 3 || len(k.room.taken) != 2 || k.room.free() != 0 {
		t.Errorf("%d, with %d places", len(all), len(k.room.taken))
	}
	for c := range k.room.taken {
		if !strings.HasPrefix(c.name, "runs") {
			t.Error(c.name)
		}
	}
}

// A list of many asks the kernel once for the memory that is available: this file can be read once.
func TestAListAsksForMemoryOnce(t *testing.T) {
	k, one := roomOf(t, 10)
	for _, name := range []string{"ann", "ben"} {
		one(name)
	}
	k.room.meminfo = filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(k.room.meminfo, 0o600); err != nil {
		t.Fatal(err)
	}
	listed := make(chan []View, 1)
	go func() { listed <- k.List() }()
	if err := os.WriteFile(k.room.meminfo, fmt.Appendf(nil, "MemAvailable: %d kB\n", (spareMemory+2*planeMemory)>>10), 0o600); err != nil {
		t.Fatal(err)
	}
	select {
	case all := <-listed:
		if len(all) != 2 || all[0].Room != 2 || all[1].Room != 2 {
			t.Errorf("%+v", all)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("it is read again")
	}
}
