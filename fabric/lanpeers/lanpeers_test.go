package lanpeers

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"rivulet/fabric/peer"
)

func TestRoomByMemory(t *testing.T) {
	for memory, want := range map[uint64]int{0: 256, 128 << 20: 16, 512 << 20: 32, 1 << 30: 64, 4 << 30: 256, 64 << 30: 256} {
		if got := For(memory).Total; got != want {
			t.Errorf("%d MB: %d, want %d", memory>>20, got, want)
		}
	}
}

// Who is displaced by a newcomer of machine "new", with three places in all and two for one machine.
func TestRoom(t *testing.T) {
	limits := Limits{Total: 3, BySource: 2, Window: time.Hour, Silent: time.Minute, Settled: time.Hour}
	ago := func(d time.Duration) time.Time { return time.Now().Add(-d) }
	silent := func(id peer.ID, source string, since time.Duration) Peer {
		return Peer{ID: id, Source: source, State: ago(since), Trusted: ago(100 * time.Hour)}
	}
	answers := func(id peer.ID, source string, age time.Duration) Peer {
		return Peer{ID: id, Source: source, Answers: true, State: ago(age), Trusted: ago(age)}
	}
	leaving := func(id peer.ID) Peer { return Peer{ID: id, Source: "x", Leaving: true} }
	for name, c := range map[string]struct {
		present []Peer
		used    map[peer.ID]bool
		unknown bool
		victim  peer.ID
		full    bool
	}{
		"a free place":                     {present: []Peer{answers("a", "x", 0), answers("b", "y", 0)}},
		"the longest silence":              {present: []Peer{silent("a", "x", 2*time.Minute), silent("b", "y", 3*time.Minute), answers("c", "z", 2*time.Hour)}, victim: "b"},
		"silent for too short a time":      {present: []Peer{silent("a", "x", time.Second), silent("b", "y", time.Second), answers("c", "z", time.Minute)}, full: true},
		"the newest that answers":          {present: []Peer{answers("a", "x", 4*time.Hour), answers("b", "y", 2*time.Hour), answers("c", "z", 3*time.Hour)}, victim: "b"},
		"not one in use":                   {present: []Peer{silent("a", "x", 2*time.Minute), silent("b", "y", 3*time.Minute), answers("c", "z", 0)}, used: map[peer.ID]bool{"b": true}, victim: "a"},
		"all in use":                       {present: []Peer{silent("a", "x", time.Hour), silent("b", "y", time.Hour), silent("c", "z", time.Hour)}, used: map[peer.ID]bool{"a": true, "b": true, "c": true}, full: true},
		"use is unknown":                   {present: []Peer{silent("a", "x", time.Hour), silent("b", "y", time.Hour), silent("c", "z", time.Hour)}, unknown: true, full: true},
		"one machine displaces its own":    {present: []Peer{silent("a", "new", 2*time.Minute), answers("b", "new", 0), silent("c", "y", time.Hour)}, victim: "a"},
		"one machine has two places":       {present: []Peer{answers("a", "new", 0), answers("b", "new", 0)}, full: true},
		"a place that is about to be free": {present: []Peer{answers("a", "x", 0), answers("b", "y", 0), leaving("c")}},
		"too many that are about to go":    {present: []Peer{silent("a", "x", time.Hour), silent("b", "y", time.Hour), silent("c", "z", time.Hour), leaving("d"), leaving("e"), leaving("f"), leaving("g")}, full: true},
	} {
		t.Run(name, func(t *testing.T) {
			a := New(limits, func(context.Context) (map[peer.ID]bool, bool) { return c.used, !c.unknown })
			a.Poll("new", c.present)
			if victim, ok := a.Room("new", c.present); victim != c.victim || ok == c.full {
				t.Errorf("%q, %t; want %q, %t", victim, ok, c.victim, !c.full)
			}
		})
	}
}

// New peers and displaced ones are counted within the window, for each machine and in total.
func TestWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := Limits{Total: 4, BySource: 2, Window: time.Hour, Silent: time.Minute, Settled: time.Hour}
		room := func(a *Admission, source string, present ...Peer) bool { _, ok := a.Room(source, present); return ok }
		a := New(limits, nil)
		a.Admit("x")
		a.Admit("x")
		if room(a, "x") || !room(a, "y") {
			t.Error("a third of one machine is admitted, or the first of another is not")
		}
		a.Admit("y")
		a.Admit("z")
		if room(a, "v") {
			t.Error("a fifth within the window is admitted")
		}
		time.Sleep(limits.Window + time.Second)
		if !room(a, "x") || !room(a, "v") {
			t.Error("after the window nobody is admitted")
		}
		full := []Peer{{ID: "a", Source: "a"}, {ID: "b", Source: "b"}, {ID: "c", Source: "c"}, {ID: "d", Source: "own"}}
		a.Displaced()
		a.Displaced()
		if room(a, "new", full...) || !room(a, "own", full...) {
			t.Error("a third peer of another machine is displaced, or one of the same machine is not")
		}
		time.Sleep(limits.Window + time.Second)
		if !room(a, "new", full...) {
			t.Error("after the window nobody is displaced")
		}
	})
}

// The use of peers is looked up at most once in two seconds.
func TestInUseIsReused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		a := New(Limits{}, func(context.Context) (map[peer.ID]bool, bool) { calls++; return nil, true })
		for range 5 {
			a.InUse()
		}
		time.Sleep(inUseFor + time.Millisecond)
		a.InUse()
		if calls != 2 {
			t.Errorf("%d calls", calls)
		}
	})
}
