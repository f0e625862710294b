package peercheck

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"rivulet/appliance/diagnose/doctor"
	"rivulet/fabric/peer"
	"rivulet/fabric/tunnel"
	"rivulet/fabric/tunnel/paths"
	"rivulet/fabric/wgkey"
)

const theID = peer.ID("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")

var theKey = func() wgkey.Public { k, _ := wgkey.Generate(); return k.Public() }()

var now = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// reached is the Access of a test.
type reached struct {
	dial     func(context.Context, netip.AddrPort) (net.Conn, error)
	identify func(context.Context, net.Conn) (peer.ID, error)
	query    func(context.Context, int) (Answer, error)
	api      func(context.Context) (string, error)
}

func (r *reached) Dial(ctx context.Context, at netip.AddrPort) (net.Conn, error) {
	return r.dial(ctx, at)
}
func (r *reached) Identify(ctx context.Context, c net.Conn) (peer.ID, error) {
	return r.identify(ctx, c)
}
func (r *reached) Query(ctx context.Context, n int) (Answer, error) { return r.query(ctx, n) }
func (r *reached) API(ctx context.Context) (string, error)          { return r.api(ctx) }

// aCase is a Case with its Access.
type aCase struct {
	Case
	*reached
}

// well is a peer with which nothing is wrong.
func well() aCase {
	at := netip.MustParseAddrPort("192.0.2.2:7442")
	r := peer.Record{ID: theID, Name: "b", Trust: peer.Trust{How: "lan", At: now}, WireGuardKey: theKey,
		PeerCIDR: netip.MustParsePrefix("10.42.0.0/16"), PeerMappedCIDR: netip.MustParsePrefix("10.64.0.0/16"), LocalMappedCIDR: netip.MustParsePrefix("10.72.0.0/16"),
		TunnelAddress: netip.MustParseAddr("10.42.255.254"), Control: at, Tunnel: at, Version: "1", KubeVersion: "v1.35.0"}
	access := &reached{
		dial:     func(context.Context, netip.AddrPort) (net.Conn, error) { c, _ := net.Pipe(); return c, nil },
		identify: func(context.Context, net.Conn) (peer.ID, error) { return theID, nil },
		query: func(_ context.Context, n int) (Answer, error) {
			return Answer{SeenAs: netip.MustParseAddr("10.72.255.254"), Payload: make([]byte, n), Took: time.Millisecond}, nil
		},
		api: func(context.Context) (string, error) { return "v1.35.0", nil },
	}
	return aCase{Case{
		Peer: peer.View{Record: r, State: peer.Connected, Found: []string{"mdns"}}, Addrs: []netip.AddrPort{at}, Version: "1", KubeVersion: "v1.35.0",
		Tunnel: &tunnel.Status{Port: 7442, Peers: []tunnel.PeerStatus{{ID: string(theID), Endpoint: at, LastHandshake: now.Add(-time.Minute), Received: 1000, Sent: 1000}}},
		Access: access, Now: func() time.Time { return now },
	}, access}
}

func refusedDial(context.Context, netip.AddrPort) (net.Conn, error) {
	return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
}

// Each layer is broken in turn, alone: it is the one that fails, those below it pass
// or say no more than a warning, those above are not asked, and there is a cure.
func TestTheBrokenLayerIsNamed(t *testing.T) {
	down := func(c *aCase) { c.Peer.State = peer.Lost }
	for _, tt := range []struct {
		name  string
		wreck func(*aCase)
		layer string // "" none
		says  string
	}{
		{"nothing", func(*aCase) {}, "", ""},
		{"never found", func(c *aCase) { down(c); c.Peer.Found, c.Addrs = nil, nil }, "discovery", "no address of it is known"},
		{"nobody takes the connection", func(c *aCase) { down(c); c.dial = refusedDial }, "tcp", "192.0.2.2:7442: connection refused"},
		{"the tunnel does not serve it", func(c *aCase) {
			down(c)
			c.Tunnel.Peers[0] = tunnel.PeerStatus{ID: string(theID), Problem: &tunnel.Problem{Text: "its WireGuard key is that of another peer", Cure: "rotate"}}
		}, "udp", "that of another peer"},
		{"no answer", func(c *aCase) {
			down(c)
			c.dial = func(ctx context.Context, _ netip.AddrPort) (net.Conn, error) { return nil, context.DeadlineExceeded }
		}, "tcp", "no answer"},
		{"another cluster has its address", func(c *aCase) {
			down(c)
			c.identify = func(context.Context, net.Conn) (peer.ID, error) { return "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb", nil }
		}, "identity", "is another cluster, bbbbbbbb"},
		{"no TLS there", func(c *aCase) {
			down(c)
			c.identify = func(context.Context, net.Conn) (peer.ID, error) { return "", errors.New("EOF") }
		}, "identity", "does not prove who it is"},
		{"refused", func(c *aCase) {
			c.Peer.State, c.Peer.PeerMappedCIDR, c.Peer.Reason = peer.Refused, netip.Prefix{}, "no common version: upgrade b"
		}, "peering", "refused: no common version"},
		{"no tunnel process", func(c *aCase) { down(c); c.Tunnel = nil }, "udp", "process on this device"},
		{"UDP is blocked from the start", func(c *aCase) {
			c.Peer.State = peer.Connecting
			c.Tunnel.Peers[0].LastHandshake, c.Tunnel.Peers[0].Received = time.Time{}, 0
		}, "udp", "nothing ever came back"},
		{"UDP is blocked later", func(c *aCase) { down(c); c.Tunnel.Peers[0].LastHandshake = now.Add(-4 * time.Minute) }, "handshake", "4m0s ago"},
		{"no way answers", func(c *aCase) {
			down(c)
			c.Tunnel.Peers[0].Paths = []paths.PathStatus{{Kind: paths.Direct, Addr: c.Addrs[0]}}
		}, "udp", "none of 1 ways"},
		{"keys, and no answer", func(c *aCase) {
			down(c)
			c.query = func(context.Context, int) (Answer, error) { return Answer{}, context.DeadlineExceeded }
		}, "tunnel", "no answer comes through"},
		{"a smaller MTU on the way", func(c *aCase) {
			ask := c.query
			c.query = func(ctx context.Context, n int) (Answer, error) {
				if n > 1000 {
					return Answer{}, context.DeadlineExceeded
				}
				return ask(ctx, n)
			}
		}, "mtu", "small packets pass and large ones do not"},
		{"prefixes that do not agree", func(c *aCase) { c.Peer.LocalMappedCIDR = netip.MustParsePrefix("10.99.0.0/16") }, "translation", "10.72.255.254, which is not in 10.99.0.0/16"},
		{"its API server is down", func(c *aCase) {
			c.api = func(context.Context) (string, error) { return "", errors.New("it answered 503") }
		}, "api", "503"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := well()
			tt.wreck(&c)
			rep := Examine(t.Context(), c.Case)
			got, failed := rep.Failed()
			if failed != (tt.layer != "") || got.Name != tt.layer || !strings.Contains(got.Text, tt.says) {
				t.Fatalf("fails at %q (%s), want %q (%s)\n%+v", got.Name, got.Text, tt.layer, tt.says, rep.Layers)
			}
			if failed && got.Cure == "" {
				t.Error("without a cure")
			}
			above := false
			for _, l := range rep.Layers {
				if above && l.Status != doctor.Skip {
					t.Errorf("%s was asked above what fails", l.Name)
				}
				if l.Status == doctor.Warn && l.Cure == "" {
					t.Errorf("%s warns without a cure", l.Name)
				}
				above = above || l.Name == tt.layer
			}
		})
	}
}

// A peer that moved out of sight and keeps its tunnel is well.
func TestTheTunnelSpeaksForWhatIsBelow(t *testing.T) {
	c := well()
	c.Peer.Found, c.dial = nil, refusedDial
	rep := Examine(t.Context(), c.Case)
	if l, failed := rep.Failed(); failed {
		t.Errorf("%s fails: %s", l.Name, l.Text)
	}
	if rep.Layers[1].Status != doctor.Warn {
		t.Errorf("tcp: %+v", rep.Layers[1])
	}
}

func TestApart(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want int
	}{{"v1.35.0", "v1.35.2+k3s1", 0}, {"v1.35.0", "v1.33.1", 2}, {"v1.33.0", "v1.35.0", 2}, {"", "v1.35.0", 0}, {"v2.1.0", "v1.35.0", 0}} {
		if got := apart(tt.a, tt.b); got != tt.want {
			t.Errorf("%s and %s: %d", tt.a, tt.b, got)
		}
	}
}
