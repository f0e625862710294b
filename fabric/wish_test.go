package fabric

import (
	"fmt"
	"testing"

	"rivulet/fabric/pairing"
	"rivulet/fabric/peer"
)

// A word with an address and an ID is for that cluster and no other, and can be taken
// back as long as it has led to nothing.
func TestApproveAtAndWithdraw(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ask := func(c *Config) { c.Trust, c.Sources = Policy{Mode: pairing.ModeAsk}, nil }
	a, b, c := w.cluster(1, "a", ask), w.cluster(2, "b", ask), w.cluster(3, "c", ask)
	at := func(c *cluster) string { return onLAN.String() + ":" + fmt.Sprint(c.cfg.Port) }

	if _, err := a.ApproveAt(t.Context(), b.id(), at(c)); err != nil {
		t.Fatal(err)
	}
	a.await("word that another cluster is there", func() bool { return a.view(b).Reason != "" && a.view(b).Trust.How == "" })
	if _, yes := a.decisions.Approved(c.id()); yes {
		t.Error("whoever is at the address was approved, though another one was meant")
	}
	if err := a.Withdraw(b.id()); err != nil {
		t.Fatal(err)
	}
	if _, yes := a.decisions.Approved(b.id()); yes {
		t.Error("the word was not taken back")
	}

	v, err := a.ApproveAt(t.Context(), "", at(b))
	if err != nil || v.ID != b.id() {
		t.Fatalf("%+v, %v", v, err)
	}
	a.awaitState(b, peer.Waiting)
	if err := a.Withdraw(b.id()); err != nil {
		t.Fatal(err)
	}
	if _, err := b.ApproveAt(t.Context(), a.id(), at(a)); err != nil {
		t.Fatal(err)
	}
	b.awaitState(a, peer.Waiting) // a judges it as a stranger again
	if a.store.len()+b.store.len() != 0 {
		t.Error("peers without a word of both")
	}

	if _, err := a.ApproveAt(t.Context(), b.id(), at(b)); err != nil {
		t.Fatal(err)
	}
	a.awaitState(b, peer.Connected)
	b.awaitState(a, peer.Connected)
	if err := a.Withdraw(b.id()); err != nil || a.store.len() != 1 {
		t.Errorf("a peer is none after a word was taken back (%v)", err)
	}
}
