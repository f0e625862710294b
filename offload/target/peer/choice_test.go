package peer

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"rivulet/fabric/peer"
	"rivulet/offload/policy"
)

func TestNearest(t *testing.T) {
	rule, err := policy.ParseNodes("2 nearest")
	if err != nil {
		t.Fatal(err)
	}
	c := chooser{closed: map[peer.ID]time.Time{}}
	links := []peer.Link{
		{ID: "a", State: peer.Connected, Nearness: 5},
		{ID: "b", State: peer.Connected, Nearness: 5},
		{ID: "c", State: peer.Connected, Nearness: 5},
		{ID: "d", State: peer.Connected, Nearness: 9, NoBorrow: true},
	}
	now := time.Now()
	check := func(what, want string) {
		t.Helper()
		var ids []string
		for id := range maps.Keys(c.choose(rule, links, now)) {
			ids = append(ids, string(id))
		}
		if slices.Sort(ids); strings.Join(ids, " ") != want {
			t.Errorf("%s: %v, want %s", what, ids, want)
		}
	}
	links[0].Nearness = 4
	check("the nearest", "b c")
	links[0].Nearness = 5
	check("equally near ones change nothing", "b c")
	links[0].Nearness = 6
	check("a nearer one", "a b")
	links[0].State = peer.Lost
	check("lost for a moment", "a b")
	now = now.Add(absence)
	check("lost for long", "b c")
	links[0].State = peer.Connected
	check("it is back", "a b")
}

// Never more than the rule says; never one that lends nothing; and the same links choose the same again.
func TestChoiceOfAnyPeers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 5).Draw(t, "n")
		c := chooser{closed: map[peer.ID]time.Time{}}
		now := time.Now()
		for range 3 {
			links := rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) peer.Link {
				return peer.Link{ID: peer.ID(rapid.StringMatching("[a-h]").Draw(t, "id")), State: rapid.SampledFrom([]peer.State{peer.Connected, peer.Lost}).Draw(t, "state"),
					Nearness: rapid.IntRange(0, 9).Draw(t, "nearness"), NoBorrow: rapid.Bool().Draw(t, "lends nothing")}
			}), 0, 8, func(l peer.Link) peer.ID { return l.ID }).Draw(t, "links")
			may := 0
			for _, l := range links {
				if !l.NoBorrow {
					may++
				}
			}
			chosen := c.choose(policy.Nodes{Nearest: n}, links, now)
			if len(chosen) != min(n, may) {
				t.Fatalf("%d of %d chosen, want %d", len(chosen), may, min(n, may))
			}
			for _, l := range links {
				if chosen[l.ID] && l.NoBorrow {
					t.Fatalf("%s lends nothing", l.ID)
				}
			}
			if again := c.choose(policy.Nodes{Nearest: n}, links, now); !maps.Equal(chosen, again) {
				t.Fatalf("%v, then %v", chosen, again)
			}
			now = now.Add(rapid.SampledFrom([]time.Duration{time.Second, absence}).Draw(t, "later"))
		}
	})
}

func TestKeep(t *testing.T) {
	c := chooser{closed: map[peer.ID]time.Time{}}
	now := time.Now()
	for _, s := range []struct {
		after      time.Duration
		node, used bool
		want       bool
	}{{0, true, false, true}, {settled, true, true, true}, {settled, true, false, false}, {settled, false, true, false}} {
		if now = now.Add(s.after); c.keep("a", s.node, s.used, now) != s.want {
			t.Errorf("%+v", s)
		}
	}
}
