package gatewaypeers

import (
	"context"
	"errors"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"rivulet/fabric/gateway/gatewayproto"
	"rivulet/fabric/peer"
	"rivulet/fabric/tunnel"
	"rivulet/fabric/tunnel/paths"
	"rivulet/fabric/wgkey"
)

func newKey(t *testing.T) wgkey.Public {
	t.Helper()
	k, err := wgkey.Generate()
	if err != nil {
		t.Fatal(err)
	}
	return k.Public()
}

var pods = netip.MustParsePrefix("10.42.0.0/16")

// A gateway is a peer of the tunnel as long as it has a usable key and a prefix; each change is reported.
func TestRegistered(t *testing.T) {
	changes := 0
	g := New(Config{PodCIDR: pods, Changed: func() { changes++ }})
	one, two := netip.MustParsePrefix("240.1.0.0/16"), netip.MustParsePrefix("240.0.0.0/16")
	key := newKey(t)
	g.SetGateway("one", key.String(), one)
	g.SetGateway("two", newKey(t).String(), two)
	if got := g.Gateways(); !slices.Equal(got, []netip.Prefix{two, one}) {
		t.Errorf("the prefixes are %v", got)
	}
	if got := g.PrefixesBut(peer.ID(ID("one"))); !slices.Equal(got, []netip.Prefix{two}) {
		t.Errorf("without one: %v", got)
	}
	if got := g.TunnelPeers(); len(got) != 2 || !reflect.DeepEqual(got[0], tunnel.Peer{ID: ID("one"), PublicKey: key, LocalMappedCIDR: pods, PeerMappedCIDR: one}) {
		t.Errorf("in the tunnel: %+v", got)
	}
	if g.KeyOwner(newKey(t), key) != "one" || g.KeyOwner(newKey(t), wgkey.Public{}) != "" {
		t.Error("the owner of the key is wrong")
	}
	g.SetGateway("one", "no key", one)
	g.SetGateway("two", "", netip.Prefix{})
	if got := g.TunnelPeers(); len(got) != 0 || g.KeyOwner(key) != "" || changes != 4 {
		t.Errorf("afterwards %+v, %d changes", got, changes)
	}
}

func TestGatewayPath(t *testing.T) {
	at := netip.MustParseAddrPort("192.0.2.7:7442")
	direct := paths.PathStatus{Kind: paths.Direct, Addr: at, RTT: time.Millisecond, Used: true}
	local := paths.PathStatus{Kind: paths.Stream, Addr: netip.MustParseAddrPort("127.0.0.1:4000"), Used: true}
	for name, c := range map[string]struct {
		status tunnel.PeerStatus
		err    error
		want   gatewayproto.Path
		up     bool
	}{
		"direct":           {status: tunnel.PeerStatus{ID: ID("g"), Sent: 7, Paths: []paths.PathStatus{direct}}, want: gatewayproto.Path{Sent: 7, Kind: string(paths.Direct), RTT: time.Millisecond, Address: at.String()}, up: true},
		"a forwarded port": {status: tunnel.PeerStatus{ID: ID("g"), Paths: []paths.PathStatus{local}}, want: gatewayproto.Path{Kind: string(paths.Stream)}, up: true},
		"none in use":      {status: tunnel.PeerStatus{ID: ID("g"), Received: 9, Paths: []paths.PathStatus{{Kind: paths.Direct}}}, want: gatewayproto.Path{Received: 9}},
		"another gateway":  {status: tunnel.PeerStatus{ID: ID("h"), Paths: []paths.PathStatus{direct}}},
		"no tunnel":        {err: errors.New("no process")},
	} {
		g := New(Config{Status: func(context.Context) (tunnel.Status, error) {
			return tunnel.Status{Peers: []tunnel.PeerStatus{c.status}}, c.err
		}})
		if got, up := g.GatewayPath(t.Context(), "g"); got != c.want || up != c.up {
			t.Errorf("%s: %+v, %t", name, got, up)
		}
	}
}
