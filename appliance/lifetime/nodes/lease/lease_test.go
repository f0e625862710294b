package lease

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// table is a database that answers at once, and what a device sees of it.
type table struct {
	sync.Mutex
	row  row
	lead bool
	held []time.Duration // when it was renewed
}

func (s *table) locked(f func()) { s.Lock(); defer s.Unlock(); f() }

func (s *table) read(context.Context) (r row, _ error) {
	s.locked(func() { r = s.row })
	return r, nil
}

func (s *table) swap(_ context.Context, old row, holder, note string) (ok bool, _ error) {
	s.locked(func() {
		if ok = s.row.holder == old.holder && s.row.beat == old.beat; ok {
			s.row = row{holder, old.beat + 1, note}
		}
	})
	return ok, nil
}

// A device that may not lead leaves the lease to others. A database that has gone back to a row with its name gives no
// lease at once: another device may have it.
func TestADatabaseThatGoesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		s := &table{row: row{"a", 1, ""}}
		d := &device{db: s, now: func() time.Duration { return time.Since(begun) }, mine: true, Config: Config{
			Node: "a", Log: slog.New(slog.DiscardHandler), Note: func() string { return "" },
			Lead:  func(Holder) (lead bool) { s.locked(func() { lead = s.lead }); return lead },
			Held:  func(until time.Duration) { s.locked(func() { s.held = append(s.held, until-Life) }) },
			Other: func(Holder) {}, Report: func(error) {},
		}}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go d.run(ctx)
		// after lets time pass, and returns when the device has renewed since the last call.
		after := func(d time.Duration) (held []time.Duration) {
			time.Sleep(d)
			s.locked(func() { held, s.held = s.held, nil })
			return held
		}
		if held := after(10*time.Second + time.Millisecond); len(held) > 0 {
			t.Errorf("it renews at %v what it may not have", held)
		}
		s.locked(func() { s.lead = true })
		held := after(retry)
		s.locked(func() { s.lead = false }) // it matters at the beginning only
		if held = append(held, after(9*time.Second)...); len(held) != 5 || held[0] != 10*time.Second+retry {
			t.Errorf("it renews at %v", held)
		}
		s.locked(func() { s.row = row{"b", 50, ""} })
		if held := after(2 * Every); len(held) > 0 {
			t.Errorf("it renews at %v what another device has", held)
		}
		s.locked(func() { s.row, s.lead = row{"a", 4, ""}, true })
		if held := after(Life + Margin - time.Millisecond); len(held) > 0 {
			t.Errorf("it renews at %v what it had before another device", held)
		}
		if held := after(2 * Every); len(held) == 0 {
			t.Error("it does not take what nobody renews")
		}
	})
}

// A copy of a device has its name and another kernel: it never renews the other's lease, and takes it no sooner than any
// device; the same device after a reboot becomes no worker of itself.
func TestACopyOfADevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		s := &table{row: row{"a@1", 1, ""}, lead: true}
		d := &device{db: s, now: func() time.Duration { return time.Since(begun) }, mine: true, Config: Config{
			Node: "a@2", Log: slog.New(slog.DiscardHandler), Note: func() string { return "" },
			Lead:  func(Holder) bool { return true },
			Held:  func(until time.Duration) { s.locked(func() { s.held = append(s.held, until-Life) }) },
			Other: func(h Holder) { t.Errorf("it follows %s", h.Node) }, Report: func(error) {},
		}}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go d.run(ctx)
		held := func() (n int) { s.locked(func() { n = len(s.held) }); return n }
		for range 20 { // the other one is on
			time.Sleep(Every)
			if s.locked(func() { s.row.beat++ }); held() > 0 {
				t.Fatalf("it holds the lease at %v beside the other one", s.held)
			}
		}
		if time.Sleep(Life + Margin - time.Second); held() > 0 {
			t.Errorf("it takes the lease at %v", s.held)
		}
		if time.Sleep(2 * Every); held() == 0 {
			t.Error("it does not take what nobody renews")
		}
	})
}

// While a device tries a version of rivulet nobody takes its lease, whether it renews or starts again; another does after
// PinLife, and its copy is compared with the note of before the pin.
func TestNobodyTakesAPinnedLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		s := &table{row: row{"a@1", 1, "tag"}}
		var led []Holder
		run := func(node string, trial bool) (stop func()) {
			d := &device{db: s, now: func() time.Duration { return time.Since(begun) }, mine: true, Config: Config{
				Node: node, Pinned: trial, Log: slog.New(slog.DiscardHandler), Note: func() string { return "tag" },
				Lead:  func(h Holder) bool { s.locked(func() { led = append(led, h) }); return true },
				Held:  func(time.Duration) {},
				Other: func(Holder) {}, Report: func(error) {},
			}}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() { defer close(ended); d.run(ctx) }()
			return func() { cancel(); <-ended }
		}
		is := func() (r row) { s.locked(func() { r = s.row }); return r }
		defer run("b@1", false)()
		stop := run("a@1", false)
		time.Sleep(time.Minute)
		stop()
		if err := pin(t.Context(), s, "a@1"); err != nil || is().note != "trial tag" {
			t.Fatalf("%+v %v", is(), err)
		}
		if err := pin(t.Context(), s, "a@1"); err != nil || is().note != "trial tag" {
			t.Fatalf("pinned twice: %+v %v", is(), err)
		}
		if err := pin(t.Context(), s, "b@1"); err != nil || is().holder != "a@1" {
			t.Fatalf("pinned by another: %+v %v", is(), err)
		}
		time.Sleep(5 * time.Minute) // the data are saved
		for range 3 {               // it ends by itself again and again
			stop := run("a@1", true)
			time.Sleep(time.Minute)
			if r := is(); r.holder != "a@1" || r.note != "trial tag" {
				t.Fatalf("while it tries a version: %+v", r)
			}
			stop()
			time.Sleep(10 * time.Minute)
		}
		stop = run("a@2", true) // the device itself starts again with an image: another run of its kernel
		time.Sleep(time.Minute)
		if r := is(); r.holder != "a@2" || r.note != "trial tag" {
			t.Fatalf("after a reboot: %+v", r)
		}
		stop()
		if led = nil; is().holder != "a@2" {
			t.Fatalf("%+v", is())
		}
		time.Sleep(PinLife + Life + Margin - Every)
		if r := is(); r.holder != "a@2" {
			t.Errorf("it is taken before PinLife: %+v", r)
		}
		time.Sleep(2 * Every)
		if r := is(); r.holder != "b@1" || r.note != "tag" || len(led) == 0 || led[0] != (Holder{"a", "tag"}) {
			t.Errorf("it is lost for good, and nobody leads: %+v %v", r, led)
		}
	})
}
