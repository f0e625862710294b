package relay

import (
	"fmt"
	"slices"
	"testing"

	"rivulet/fabric/peer"
)

// Peers that hold as many connections as they may keep no other peer out, and no peer
// pushes out one that has as few as itself.
func TestWhatIsCarriedIsCountedByPeer(t *testing.T) {
	c := &Gate{Total: total}
	ended := map[peer.ID]int{}
	enter := func(from peer.ID) *Relayed { return c.Enter(string(from), func() { ended[from]++ }) }
	greedy := []peer.ID{"p", "q", "r", "s"}
	for _, id := range greedy {
		for range PerPeer {
			if enter(id) == nil {
				t.Fatalf("%s is refused with %d under way", id, len(c.all))
			}
		}
		if enter(id) != nil {
			t.Errorf("%s has more than %d", id, PerPeer)
		}
	}
	if len(c.all) != total {
		t.Fatalf("%d under way, want all %d: this tests nothing", len(c.all), total)
	}
	var others []*Relayed
	for i := range total - len(greedy) {
		others = append(others, enter(peer.ID(fmt.Sprint("other", i))))
	}
	if slices.Contains(others, nil) {
		t.Error("a peer that has nothing is refused while others have most")
	}
	for _, id := range greedy {
		if ended[id] != PerPeer-1 {
			t.Errorf("%d connections of %s were ended, want all but one", ended[id], id)
		}
	}
	if len(c.all) != total || enter("late") != nil || enter("other0") != nil {
		t.Errorf("more than %d, or one is taken from a peer that has one", total)
	}
	c.Leave(others[0])
	if enter("late") == nil {
		t.Error("refused though there is room")
	}
	if len(ended) != len(greedy) {
		t.Errorf("ended: %v", ended)
	}
}
