package fabric

import (
	"context"
	"encoding/base64"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"rivulet/fabric/discovery"
	"rivulet/fabric/discovery/discoverytest"
	"rivulet/fabric/netmon"
	"rivulet/fabric/pairing"
	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
	"rivulet/fabric/tunnel"
	"rivulet/test/harness/await"
	"rivulet/test/harness/locks"
)

// world is a LAN of fabrics in one process: the hub for multicast, loopback for
// the LAN, and a wire between data planes that dials loopback for addresses in
// the tunnel. All use the same pod CIDR, as k3s does.
type world struct {
	t   *testing.T
	hub *discoverytest.Hub
	mu  sync.Mutex
	cut map[uint16]bool // control ports that no tunnel reaches
	// open are the connections in the tunnels, by the control ports of their ends.
	open map[net.Conn][2]uint16
}

func newWorld(t *testing.T) *world {
	return &world{t: t, hub: discoverytest.NewHub(), cut: map[uint16]bool{}, open: map[net.Conn][2]uint16{}}
}

var (
	podCIDR    = netip.MustParsePrefix("127.42.0.0/16") // on loopback, so that the tunnel address is there
	inTunnel   = netip.MustParseAddr("127.42.255.254")
	onLAN      = netip.MustParseAddr("127.0.0.1")
	testTiming = Timing{Ping: 50 * time.Millisecond, Probe: 30 * time.Millisecond, PingTimeout: time.Second, Misses: 3, Retry: 30 * time.Millisecond, Forget: 100 * time.Millisecond, Confirm: 5 * time.Second, Decision: 6 * time.Second}
)

// cluster is one fabric with what outlives it.
type cluster struct {
	*Fabric
	w      *world
	cfg    Config
	store  *store
	plane  *fakePlane
	cancel context.CancelFunc
	done   chan error
}

func (w *world) cluster(n byte, name string, change ...func(*Config)) *cluster {
	w.t.Helper()
	c := &cluster{w: w, cfg: baseConfig(n, name, slog.New(slog.NewTextHandler(w.t.Output(), nil)).With("cluster", name))}
	c.plane = c.cfg.DataPlane.(*fakePlane)
	c.store = c.cfg.Store.(*store)
	c.cfg.Port, c.cfg.Timing, c.cfg.OnLink = freePort(w.t), testTiming, netip.Addr.IsLoopback
	c.cfg.Sources = []discovery.Source{w.hub.Source(c.cfg.Identity.ID, onLAN)}
	c.cfg.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
		return w.dial(ctx, c, network, addr)
	}
	for _, f := range change {
		f(&c.cfg)
	}
	c.start()
	w.t.Cleanup(c.stop)
	return c
}

// baseConfig is that of the nth cluster; it lacks a port and sources.
func baseConfig(n byte, name string, log *slog.Logger) Config {
	id, err := rpc.NewIdentity(newKey(n), name)
	if err != nil {
		panic(err)
	}
	key := make([]byte, 32)
	key[1] = n // the lowest bits of byte 0 do not count
	return Config{
		Identity: id, Name: name, Version: "test", KubeVersion: func() string { return "v1.35.0" },
		TunnelPort: 7442, Interface: "riv0",
		PodCIDR: podCIDR, ServiceCIDR: netip.MustParsePrefix("10.43.0.0/16"), TunnelAddress: inTunnel,
		WireGuardKey: base64.StdEncoding.EncodeToString(key), Store: &store{records: map[peer.ID]peer.Record{}}, DataPlane: &fakePlane{pid: 1},
		LANs: noLANs{}, Trust: Policy{Mode: pairing.ModeLAN}, Notes: &memory{blobs: map[string][]byte{}},
		Addresses: func() []netip.Addr { return []netip.Addr{onLAN} }, Log: log,
	}
}

// start makes a fabric from what is on disk and runs it.
func (c *cluster) start() {
	c.w.t.Helper()
	f, err := New(c.cfg)
	if err != nil {
		c.w.t.Fatal(err)
	}
	var ctx context.Context
	ctx, c.cancel = context.WithCancel(context.Background())
	c.Fabric, c.done = f, make(chan error, 1)
	go func() { c.done <- f.Run(ctx) }()
}

func (c *cluster) stop() {
	if c.cancel != nil {
		c.cancel()
		<-c.done
		c.cancel = nil
	}
}

// dial is the tunnel: it leads to a peer only if both data planes know each other
// by the same prefixes.
func (w *world) dial(ctx context.Context, from *cluster, network, addr string) (net.Conn, error) {
	at := netip.MustParseAddrPort(addr)
	w.mu.Lock()
	cut := w.cut[at.Port()] || w.cut[from.cfg.Port]
	w.mu.Unlock()
	configured := slices.ContainsFunc(from.plane.config().Peers, func(p tunnel.Peer) bool { return p.PeerMappedCIDR.Contains(at.Addr()) && p.LocalMappedCIDR.IsValid() })
	if cut || !configured {
		return nil, fmt.Errorf("test: no way to %s", addr)
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, network, netip.AddrPortFrom(inTunnel, at.Port()).String())
	if err == nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.open[conn] = [2]uint16{from.cfg.Port, at.Port()}
	}
	return conn, err
}

// sever ends the connections of a cluster in its tunnels.
func (w *world) sever(c *cluster) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for conn, ends := range w.open {
		if slices.Contains(ends[:], c.cfg.Port) {
			conn.Close()
			delete(w.open, conn)
		}
	}
}

func (w *world) setCut(c *cluster, cut bool) {
	w.mu.Lock()
	w.cut[c.cfg.Port] = cut
	w.mu.Unlock()
	w.sever(c)
}

// await polls until the condition holds.
func (c *cluster) await(what string, ok func() bool) {
	c.w.t.Helper()
	await.NoError(c.w.t, context.Background(), 15*time.Second, c.cfg.Name+": "+what, func() error {
		if !ok() {
			return fmt.Errorf("peers:%s\nproblems: %v", c.list(), c.Problems())
		}
		return nil
	})
}

// list is what a person would look at.
func (c *cluster) list() (out string) {
	for _, v := range c.Peers() {
		out += fmt.Sprintf("\n  %s %s %s %s %s", v.ID.Short(), v.Name, v.State, v.Trust.How, v.Reason)
	}
	return out
}

func (c *cluster) view(of *cluster) peer.View { return c.viewOf(of.cfg.Identity.ID) }

func (c *cluster) viewOf(id peer.ID) peer.View {
	for _, v := range c.Peers() {
		if v.ID == id {
			return v
		}
	}
	return peer.View{}
}

func (c *cluster) awaitState(of *cluster, s peer.State) peer.View {
	c.w.t.Helper()
	c.await(fmt.Sprintf("state %s of %s", s, of.cfg.Name), func() bool { return c.view(of).State == s })
	return c.view(of)
}

type noLANs struct{}

func (noLANs) LANs() netmon.LANs                  { return nil }
func (noLANs) Changed() (<-chan struct{}, func()) { return nil, func() {} }

// store is a peer.Store in memory; its disk can be full.
type store struct {
	mu      sync.Mutex
	records map[peer.ID]peer.Record
	full    bool
}

func (s *store) PutPeer(r peer.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.full {
		return fmt.Errorf("no space left on device")
	}
	s.records[r.ID] = r
	return nil
}

func (s *store) DeletePeer(id peer.ID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.records, id)
	return nil
}

func (s *store) Peers() (out []peer.Record, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.records {
		out = append(out, r)
	}
	return out, nil
}

func (s *store) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.records)
}

func (s *store) setFull(full bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.full = full
}

// fakePlane remembers what it is told, until it is killed.
type fakePlane struct {
	mu     sync.Mutex
	cfg    tunnel.Config
	pid    int
	broken bool
	told   int
	refuse map[string]tunnel.Problem // by peer
}

func (p *fakePlane) Apply(_ context.Context, c tunnel.Config) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.broken {
		return fmt.Errorf("no TUN device")
	}
	p.cfg = c
	p.told++
	return nil
}

func (p *fakePlane) Status(context.Context) (tunnel.Status, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.broken && p.cfg.Port == 0 {
		return tunnel.Status{}, fmt.Errorf("no process")
	}
	st := tunnel.Status{PID: p.pid, Port: p.cfg.Port}
	for _, q := range p.cfg.Peers {
		s := tunnel.PeerStatus{ID: q.ID}
		if why, ok := p.refuse[q.ID]; ok {
			s.Problem = &why
		}
		st.Peers = append(st.Peers, s)
	}
	return st, nil
}

func (p *fakePlane) config() tunnel.Config {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cfg
}

// killPlane replaces the tunnel process by one that knows nothing.
func (c *cluster) killPlane() {
	c.plane.kill()
	c.w.sever(c)
}

func (p *fakePlane) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pid++
	p.cfg = tunnel.Config{}
}

func (p *fakePlane) setBroken(b bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.broken = b
}

// setRefuse makes the process serve a peer no more, or again with none.
func (p *fakePlane) setRefuse(refuse map[string]tunnel.Problem) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = refuse
}

func freePort(t *testing.T) uint16 { return uint16(locks.Ports(t, 1)) }
