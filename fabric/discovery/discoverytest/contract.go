// Package discoverytest has the contract tests of discovery.Source, and a source in memory for other tests. It is for
// tests only.
package discoverytest

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"rivulet/fabric/discovery"
)

// Stage is a network with one device that watches and another that may be found.
type Stage interface {
	// Events are those that the watching device receives.
	Events() <-chan discovery.Event
	// Announce makes the other device announce itself at the address, or replaces its announcement.
	Announce(at netip.AddrPort, name string)
	// Second makes a third device announce itself, perhaps under the same name.
	Second(at netip.AddrPort, name string)
	// Goodbye ends the announcement with a goodbye, Die without one.
	Goodbye()
	Die()
}

// Traits are the differences between kinds of sources.
type Traits struct {
	Names   bool          // entries carry ID and name
	Expiry  time.Duration // silent deaths are reported within this; 0: never
	Prompt  time.Duration // all else is reported within this
	Addrs   [2]string     // two addresses that the other device may have
	NoPorts bool          // the port cannot change alone
	// NoSecond: the source watches one device only.
	NoSecond bool
}

// Run tests the contract; stage is called once per test.
func Run(t *testing.T, traits Traits, stage func(t *testing.T) Stage) {
	a := netip.AddrPortFrom(netip.MustParseAddr(traits.Addrs[0]), 7442)
	b := netip.AddrPortFrom(netip.MustParseAddr(traits.Addrs[1]), 7442)
	a2 := netip.AddrPortFrom(a.Addr(), 7443)

	type step struct {
		what string
		do   func(Stage)
		want []want
	}
	announce := func(at netip.AddrPort, name string) func(Stage) {
		return func(s Stage) { s.Announce(at, name) }
	}
	added := step{"announce", announce(a, "one"), []want{{discovery.Added, a, "one"}}}
	for _, story := range []struct {
		name   string
		needs  bool
		within time.Duration
		steps  []step
	}{
		{"added, then a clean goodbye", true, traits.Prompt, []step{added, {"goodbye", Stage.Goodbye, []want{{discovery.Removed, a, "one"}}}}},
		{"comes back after a goodbye", true, traits.Prompt, []step{added, {"goodbye", Stage.Goodbye, []want{{discovery.Removed, a, "one"}}}, added}},
		{"a new port is a change", !traits.NoPorts, traits.Prompt, []step{added, {"new port", announce(a2, "one"), []want{{discovery.Changed, a2, "one"}}}}},
		{"a new text is a change", traits.Names, traits.Prompt, []step{added, {"new text", announce(a, "two"), []want{{discovery.Changed, a, "two"}}}}},
		{"a name identifies nobody", !traits.NoSecond, traits.Prompt, []step{added, {"another of that name", func(s Stage) { s.Second(b, "one") }, []want{{discovery.Added, b, "one"}}}}},
		{"a new address is told", true, traits.Prompt, []step{added, {"new address", announce(b, "one"), []want{{"", b, "one"}}}}},
		{"a silent death is told by and by", traits.Expiry > 0, traits.Expiry, []step{added, {"die", Stage.Die, []want{{discovery.Removed, a, "one"}}}}},
	} {
		t.Run(story.name, func(t *testing.T) {
			if !story.needs {
				t.Skip("does not apply to this source")
			}
			s := stage(t)
			state := map[string]discovery.Entry{}
			for _, step := range story.steps {
				step.do(s)
				within := max(story.within, traits.Prompt)
				for _, w := range step.want {
					if !traits.Names {
						w.name = ""
					}
					await(t, s, state, w, step.what, within)
				}
			}
		})
	}
}

// want is an event; without a kind, any that leaves the entry at the address.
type want struct {
	kind discovery.Kind
	addr netip.AddrPort
	name string
}

func (w want) String() string { return fmt.Sprintf("%s %s %q", w.kind, w.addr, w.name) }

func (w want) met(e discovery.Event) bool {
	if w.kind == "" {
		if e.Kind == discovery.Removed {
			return false
		}
	} else if e.Kind != w.kind {
		return false
	}
	return e.Entry.Name == w.name && len(e.Entry.Addrs) > 0 && e.Entry.Addrs[0] == w.addr
}

// await reads events until the wanted one, and checks that each may follow the one before it.
func await(t *testing.T, s Stage, state map[string]discovery.Entry, w want, step string, within time.Duration) {
	t.Helper()
	deadline := time.After(within)
	var seen []discovery.Event
	fresh := map[string]bool{}
	for {
		select {
		case e := <-s.Events():
			seen = append(seen, e)
			old, had := state[e.Entry.Key]
			switch {
			case e.Kind == discovery.Added && had, e.Kind != discovery.Added && !had:
				t.Fatalf("after %s: %v does not follow from what was told before", step, e)
			case e.Kind == discovery.Changed && old.Equal(e.Entry):
				t.Fatalf("after %s: %v is no change", step, e)
			}
			state[e.Entry.Key] = e.Entry
			if e.Kind == discovery.Added {
				fresh[e.Entry.Key] = true
			} else if e.Kind == discovery.Changed && fresh[e.Entry.Key] {
				e.Kind = discovery.Added // with one address first, on a busy machine
			}
			if e.Kind == discovery.Removed {
				delete(state, e.Entry.Key)
			}
			if w.met(e) {
				return
			}
		case <-deadline:
			t.Fatalf("after %s: want %v within %v, got %v", step, w, within, seen)
		}
	}
}
