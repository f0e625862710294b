package fabric

import (
	"bufio"
	"context"
	"crypto/tls"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"rivulet/fabric/discovery"
	"rivulet/fabric/discovery/static"
	"rivulet/fabric/pairing"
	"rivulet/fabric/peer"
	"rivulet/fabric/relay"
	"rivulet/fabric/rpc"
	"rivulet/fabric/trust"
)

// Two clusters that see a third one and not each other: no packet of one reaches an
// address that the other tells. The kernel turns this one down at once, whatever routes the machine has.
func hidden(c *Config) {
	c.Addresses = func() []netip.Addr { return []netip.Addr{netip.MustParseAddr("255.255.255.255")} }
}

// onlySees is a cluster that knows the address of one other.
func onlySees(other *cluster) func(*Config) {
	return func(c *Config) {
		hidden(c)
		s := static.New(netip.AddrPortFrom(onLAN, other.cfg.Port))
		c.Sources = []discovery.Source{s}
	}
}

func TestInviteThroughACommonPeer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.cluster(3, "c")
	a, b := w.cluster(1, "a", onlySees(c)), w.cluster(2, "b", onlySees(c))
	for _, x := range []*cluster{a, b} {
		x.awaitState(c, peer.Connected)
		c.awaitState(x, peer.Connected)
	}
	// Without a word of anybody the common peer makes no peers.
	if v, err := a.Approve(t.Context(), string(b.id())); err != nil || v.State != peer.Refused || !strings.Contains(v.Reason, "same link") {
		t.Fatalf("%+v %v, want b's refusal", v, err)
	}
	if b.store.len() != 1 {
		t.Fatal("b has a record of a")
	}
	_, code, err := b.Invite()
	if err != nil {
		t.Fatal(err)
	}
	if v, err := a.Accept(t.Context(), code.String()); err != nil || v.ID != b.id() {
		t.Fatalf("%+v %v", v, err)
	}
	if v := b.awaitState(a, peer.Connected); v.Trust.How != peer.TrustInvite {
		t.Errorf("b trusts a by %s", v.Trust.How)
	}
	v := a.awaitState(b, peer.Connected)
	if v.Control.IsValid() {
		t.Errorf("a says that b is at %s: it has met b at no address", v.Control)
	}
	for _, p := range a.plane.config().Peers {
		if p.ID == string(b.id()) && p.Endpoint.IsValid() {
			t.Errorf("the tunnel is told %s", p.Endpoint)
		}
	}
	// It is so after a restart.
	a.stop()
	a.start()
	a.awaitState(b, peer.Connected)
	if _, code, err = b.Invite(); err == nil {
		code.Secret = make([]byte, trust.SecretLen)
	}
	a.Unpeer(t.Context(), string(b.id()), Unpeer{}) //nolint:errcheck // whatever is left is refused below
	if _, err := a.Accept(t.Context(), code.String()); err == nil {
		t.Error("an invite that b did not make was good")
	}
}

func TestAskThroughACommonPeer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.cluster(3, "c")
	a, b := w.cluster(1, "a", onlySees(c)), w.cluster(2, "b", onlySees(c))
	a.awaitState(c, peer.Connected)
	b.awaitState(c, peer.Connected)
	b.SetTrust(Policy{Mode: pairing.ModeAsk})
	if _, err := a.Approve(t.Context(), string(b.id())); err != nil {
		t.Fatal(err)
	}
	b.awaitState(a, peer.Waiting)
	if _, err := b.Approve(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	a.awaitState(b, peer.Connected)
	b.awaitState(a, peer.Connected)
}

// Members of a group that are on no common link find each other by one that both know.
func TestGroupThroughACommonPeer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.cluster(3, "c", in("a long enough secret"))
	a, b := w.cluster(1, "a", in("a long enough secret"), onlySees(c)), w.cluster(2, "b", in("a long enough secret"), onlySees(c))
	agreedUpon(t, a, b, peer.TrustGroup, peer.TrustGroup)
}

func TestNothingIsCarriedWhereThatIsOff(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.cluster(3, "c", in("a long enough secret"), func(c *Config) { c.NoRelay = true })
	a, b := w.cluster(1, "a", in("a long enough secret"), onlySees(c)), w.cluster(2, "b", in("a long enough secret"), onlySees(c))
	a.awaitState(c, peer.Connected)
	b.awaitState(c, peer.Connected)
	_, code, err := b.Invite()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Accept(t.Context(), code.String()); err == nil {
		t.Fatal("carried all the same")
	}
	if len(a.introducer.neighbours("")) != 1 {
		t.Error("a has other neighbours than c")
	}
}

// What arrives through another is the exchange and nothing else, and no more of it
// than is bounded.
func TestWhatIsCarriedIsTheExchangeAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.cluster(3, "c")
	a, b := w.cluster(1, "a", onlySees(c)), w.cluster(2, "b", onlySees(c))
	a.awaitState(c, peer.Connected)
	b.awaitState(c, peer.Connected)
	c.awaitState(b, peer.Connected)
	b.Handle("GET /v1/secret", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusNoContent) }))
	ctx := t.Context()
	conn, err := a.relay.Dial(ctx, c.id(), b.id())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	secure := tls.Client(conn, rpc.ClientTLS(a.cfg.Identity, b.id()))
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, "https://b/v1/secret", nil)
	if err := req.Write(secure); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(secure), req)
	if err != nil || resp.StatusCode != http.StatusNotFound {
		t.Fatalf("%v %v, want not found", resp, err)
	}
	var open int
	for range 2 * relay.PerPeer {
		if conn, err := a.relay.Dial(context.Background(), c.id(), b.id()); err == nil {
			defer conn.Close()
			open++
		}
	}
	if open > relay.PerPeer {
		t.Errorf("%d connections at once, want at most %d", open, relay.PerPeer)
	}
	if _, err := a.relay.Dial(ctx, c.id(), peer.ID(strings.Repeat("a", 32))); err == nil {
		t.Error("carried to nobody")
	}
	if _, err := a.relay.Dial(ctx, c.id(), a.id()); err == nil {
		t.Error("carried back to a itself")
	}
}
