package fabric

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"

	"rivulet/fabric/broker"
	"rivulet/fabric/pairing"
	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
	"rivulet/fabric/wgkey"
)

// meeting runs a broker.
func meeting(t *testing.T) (broker.Address, context.CancelFunc) {
	t.Helper()
	id, err := rpc.NewIdentity(ed25519.NewKeyFromSeed(bytes.Repeat([]byte{200}, 32)), "broker")
	if err != nil {
		t.Fatal(err)
	}
	key, err := wgkey.Generate()
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", freePort(t)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- broker.NewServer(id, key, nil, slog.New(slog.DiscardHandler)).Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return broker.Address{ID: id.ID, Host: "127.0.0.1", Port: uint16(l.Addr().(*net.TCPAddr).Port)}, cancel
}

// at is a cluster that sees nobody, and knows a broker.
func at(b broker.Address) func(*Config) {
	return func(c *Config) {
		hidden(c)
		c.Sources, c.Brokers = nil, []broker.Address{b}
	}
}

// Two sites of a group that see nothing but a broker become peers, and the broker becomes nobody's.
func TestGroupThroughABroker(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b0, stop := meeting(t)
	a, b := w.cluster(1, "a", in("a long enough secret"), at(b0)), w.cluster(2, "b", in("a long enough secret"), at(b0))
	x := w.cluster(4, "x", in("another long secret"), at(b0))
	agreedUpon(t, a, b, peer.TrustGroup, peer.TrustGroup)
	a.await("b is found by the broker", func() bool { return strings.HasPrefix(strings.Join(a.view(b).Found, " "), "broker") })
	if v := a.view(b); v.Control.IsValid() {
		t.Errorf("b is at %s: a has met it at no address", v.Control)
	}
	for _, c := range []*cluster{a, b} {
		got := c.plane.config()
		if len(got.Peers) != 1 || len(got.Brokers) != 1 || got.Brokers[0].ID != string(b0.ID) {
			t.Errorf("the tunnel of %s has %+v and %+v", c.cfg.Name, got.Peers, got.Brokers)
		}
		if c.store.len() != 1 {
			t.Errorf("%s has a record of more than the other", c.cfg.Name)
		}
	}
	if len(x.Peers()) != 0 || len(a.Peers()) != 1 {
		t.Errorf("another group sees %s, and is seen in %s", x.list(), a.list())
	}

	// Without the broker they stay peers, and status has a problem with a cure.
	stop()
	a.await("the problem", func() bool {
		p := a.Problems()
		return len(p) == 1 && p[0].Code == "broker" && p[0].Cure != ""
	})
	if got := a.view(b); got.State != peer.Connected {
		t.Errorf("b is %s without the broker", got.State)
	}
	a.SetBrokers(nil)
	a.await("no broker, no problem", func() bool { return len(a.Problems()) == 0 && len(a.plane.config().Brokers) == 0 })
}

// What a person has ended stays so, though the broker shows it again; and what comes from a broker is trusted by the
// group alone.
func TestDeniedThroughABroker(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b0, _ := meeting(t)
	a, b := w.cluster(1, "a", in("a long enough secret"), at(b0)), w.cluster(2, "b", in("a long enough secret"), at(b0))
	agreedUpon(t, a, b, peer.TrustGroup, peer.TrustGroup)
	if _, err := b.Deny(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	b.awaitState(a, peer.Denied)
	a.await("b is no peer", func() bool { return a.store.len() == 0 })
	a.await("a is refused", func() bool { v := a.view(b); return v.State == peer.Refused || v.State == peer.Denied || v.State == "" })
	if b.store.len() != 0 {
		t.Error("denied, and a peer again")
	}
	b.SetTrust(Policy{Mode: pairing.ModeLAN})
	b.await("no broker outside of a group", func() bool { return len(b.Brokers()) == 0 && len(b.plane.config().Brokers) == 0 })
}
