// Package gateway is the program of the gateway pod: the end of the tunnel in a foreign cluster that allows only
// ordinary pods. WireGuard and a network stack run in the process, without TUN, capability or root.
//
//	home pod ── tunnel ══ UDP, or a stream through the API server ══ WireGuard
//	                                                                   │ netstack
//	 campus pod ◀── TCP and UDP sockets of the gateway pod ── forwarder┘    ▲
//	 campus pod ──▶ Service ──▶ a port per (Service, port) ─────────────────┘
//	 campus pod ──▶ DNS of home's names ──▶ all other names to the campus's DNS
//
// It reads its configuration (package config) from a mounted Secret and over its control port; the newest counts. It
// writes no files: after a restart it has the Secret, and home sends the rest. It connects only to home's pods and
// Services and to the local pods that home names. Failures show in `rivulet burst status` and in the pod's readiness.
package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"rivulet/fabric/gateway/gatewayproto"
	"rivulet/fabric/logbound"
	"rivulet/fabric/tunnel"
	"rivulet/fabric/wgkey"
)

// Version is that of the program and its protocol. Home replaces an older one.
const Version = "4"

// Gateway is the gateway of this process. Methods may be called concurrently.
type Gateway struct {
	log    *slog.Logger
	ctx    context.Context
	cancel context.CancelFunc
	bind   string // address of the listeners; empty is all
	port   uint16 // of the tunnel
	stack  *netstack
	tunnel *tunnel.Userspace
	flows  flows
	state  atomic.Pointer[state]
	// strangers is the log of what any pod of the campus can cause.
	strangers *slog.Logger

	mu        sync.Mutex
	listeners map[string]*listener
	problems  []string
}

// state is a configuration in force, indexed for packets.
type state struct {
	cfg    gatewayproto.Gateway
	home   wgkey.Public
	digest string
	set    bool
	ends   map[string][]netip.AddrPort // by protocol and port of the gateway
	as     map[netip.Addr]netip.Addr   // the reverse of Pods
	zone   *zone
}

// seen is the address under which home sees a local address: that of a home pod has its own, all others the gateway's.
func (s *state) seen(real netip.Addr) netip.Addr {
	if a, ok := s.as[real]; ok {
		return a
	}
	return s.cfg.Address
}

// New returns a gateway without configuration. Bind is the address on which pods reach it; empty is all.
func New(bind string, log *slog.Logger) (*Gateway, error) {
	g := &Gateway{log: log, strangers: logbound.New(log), bind: bind, port: gatewayproto.TunnelPort, listeners: map[string]*listener{}}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	g.state.Store(&state{zone: zoneOf(gatewayproto.Gateway{})})
	s, err := newNetstack(func(a netip.Addr) bool {
		s := g.state.Load()
		_, ours := s.cfg.Pods[a]
		return ours || a == s.cfg.Address
	})
	if err != nil {
		return nil, err
	}
	g.stack = s
	s.onTCP(g.tcpFromHome)
	s.onUDP(g.udpFromHome)
	g.tunnel = tunnel.NewUserspace(s, log)
	s.whole = g.tunnel.Whole
	return g, nil
}

// Apply makes cfg the whole state. Open flows continue.
func (g *Gateway) Apply(cfg gatewayproto.Gateway) error {
	if err := cfg.Check(); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	digest := Digest(cfg)
	if old := g.state.Load(); old.set && old.digest == digest && len(g.problems) == 0 {
		return nil
	}
	s := &state{cfg: cfg, digest: digest, set: true, ends: map[string][]netip.AddrPort{}, as: map[netip.Addr]netip.Addr{}, zone: zoneOf(cfg)}
	for _, service := range cfg.Services {
		for _, p := range service.Listeners() {
			s.ends[fmt.Sprint(p.Protocol, p.Listen)] = p.Endpoints
		}
	}
	for seen, real := range cfg.Pods {
		s.as[real] = seen
	}
	want, err := tunnelOf(cfg, g.port)
	if err != nil {
		return err
	}
	if err := g.tunnel.Apply(want); err != nil {
		return err
	}
	s.home = want.Peers[0].PublicKey
	g.state.Store(s)
	g.problems = g.openDoors(cfg)
	g.log.Info("configuration in force", "pods", len(cfg.Pods), "services", len(cfg.Services), "problems", len(g.problems))
	return nil
}

// tunnelOf is the tunnel's configuration. It needs no keepalive: the pings of the paths keep NATs open.
func tunnelOf(cfg gatewayproto.Gateway, port uint16) (tunnel.Config, error) {
	private, err := wgkey.ParsePrivate(cfg.PrivateKey)
	if err != nil {
		return tunnel.Config{}, fmt.Errorf("gateway: its own key: %w", err)
	}
	public, err := wgkey.Parse(cfg.PublicKey)
	if err != nil {
		return tunnel.Config{}, fmt.Errorf("gateway: the key of home: %w", err)
	}
	home := tunnel.Peer{ID: gatewayproto.HomeID, PublicKey: public, LocalMappedCIDR: cfg.Prefix, PeerMappedCIDR: cfg.Home}
	if len(cfg.UDP) > 0 {
		home.Endpoint = cfg.UDP[0]
	}
	return tunnel.Config{
		PrivateKey: private, Port: port, Interface: "netstack", MTU: MTU,
		Address: cfg.Address, PodCIDR: cfg.Prefix, StreamsOnly: cfg.StreamsOnly, Peers: []tunnel.Peer{home},
		Paths: []tunnel.PeerPaths{{ID: gatewayproto.HomeID, UDP: cfg.UDP, TCP: cfg.Streams}},
	}, nil
}

func Digest(cfg gatewayproto.Gateway) string {
	raw, _ := json.Marshal(cfg) // it cannot fail
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:8])
}

func (g *Gateway) Status() gatewayproto.Status {
	s := g.state.Load()
	g.mu.Lock()
	st := gatewayproto.Status{Version: Version, Configured: s.set, Digest: s.digest, Problems: g.problems}
	g.mu.Unlock()
	st.Flows = gatewayproto.Flows{TCP: int(g.flows.tcp.Load()), UDP: int(g.flows.udp.Load()), Refused: g.flows.refused.Load()}
	if t, err := g.tunnel.Status(); err == nil && len(t.Peers) == 1 {
		p := t.Peers[0]
		st.LastHandshake, st.Received, st.Sent = p.LastHandshake, p.Received, p.Sent
		st.Connected = len(p.Paths) > 0 && p.Paths[0].Used
	}
	return st
}

// endLimit is how long the end of the process waits until the tunnel has what resets its flows.
const endLimit = 2 * time.Second

// Close ends the gateway and all flows, by resets.
func (g *Gateway) Close() {
	g.cancel()
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, d := range g.listeners {
		d.close()
	}
	g.flows.ended(endLimit)
	g.tunnel.Close()
}

func (g *Gateway) bindIP() string {
	if g.bind == "" {
		return "0.0.0.0"
	}
	return g.bind
}
