package fabric

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

// A gateway is a peer of the tunnel as long as it has a usable key and a prefix; each change is reported.
func TestRegistered(t *testing.T) {
	s := &members{}
	changed, stop := s.Changed()
	defer stop()
	g := &gateways{pods: podCIDR, plane: &plane{wanted: make(chan struct{}, 1)}, members: s, byName: map[string]tunnel.Peer{}}
	newKey := func(t *testing.T) wgkey.Public {
		t.Helper()
		k, err := wgkey.Generate()
		if err != nil {
			t.Fatal(err)
		}
		return k.Public()
	}
	set := func(name, key string, prefix netip.Prefix) {
		t.Helper()
		g.SetGateway(name, key, prefix)
		if len(changed) != 1 || len(g.plane.wanted) != 1 {
			t.Errorf("%s: no change is reported", name)
		}
		<-changed
		<-g.plane.wanted
	}
	one, two := netip.MustParsePrefix("240.1.0.0/16"), netip.MustParsePrefix("240.0.0.0/16")
	key := newKey(t)
	set("one", key.String(), one)
	set("two", newKey(t).String(), two)
	if got := g.Gateways(); !slices.Equal(got, []netip.Prefix{two, one}) {
		t.Errorf("the prefixes are %v", got)
	}
	if got := g.prefixesBut(peer.ID(gatewayID("one"))); !slices.Equal(got, []netip.Prefix{two}) {
		t.Errorf("without one: %v", got)
	}
	if got := g.tunnelPeers(); len(got) != 2 || !reflect.DeepEqual(got[0], tunnel.Peer{ID: gatewayID("one"), PublicKey: key, LocalMappedCIDR: podCIDR, PeerMappedCIDR: one}) {
		t.Errorf("in the tunnel: %+v", got)
	}
	if g.keyOwner(newKey(t), key) != "one" || g.keyOwner(newKey(t), wgkey.Public{}) != "" {
		t.Error("the owner of the key is wrong")
	}
	set("one", "no key", one)
	set("two", "", netip.Prefix{})
	if got := g.tunnelPeers(); len(got) != 0 || g.keyOwner(key) != "" {
		t.Errorf("afterwards %+v", got)
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
		"direct":           {status: tunnel.PeerStatus{ID: gatewayID("g"), Sent: 7, Paths: []paths.PathStatus{direct}}, want: gatewayproto.Path{Sent: 7, Kind: string(paths.Direct), RTT: time.Millisecond, Address: at.String()}, up: true},
		"a forwarded port": {status: tunnel.PeerStatus{ID: gatewayID("g"), Paths: []paths.PathStatus{local}}, want: gatewayproto.Path{Kind: string(paths.Stream)}, up: true},
		"none in use":      {status: tunnel.PeerStatus{ID: gatewayID("g"), Received: 9, Paths: []paths.PathStatus{{Kind: paths.Direct}}}, want: gatewayproto.Path{Received: 9}},
		"another gateway":  {status: tunnel.PeerStatus{ID: gatewayID("h"), Paths: []paths.PathStatus{direct}}},
		"no tunnel":        {err: errors.New("no process")},
	} {
		g := &gateways{data: reports{status: tunnel.Status{Peers: []tunnel.PeerStatus{c.status}}, err: c.err}}
		if got, up := g.GatewayPath(t.Context(), "g"); got != c.want || up != c.up {
			t.Errorf("%s: %+v, %t", name, got, up)
		}
	}
}

// reports is a data plane with this status.
type reports struct {
	DataPlane
	status tunnel.Status
	err    error
}

func (r reports) Status(context.Context) (tunnel.Status, error) { return r.status, r.err }
