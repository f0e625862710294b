// Package fabric makes clusters discover and trust each other, and controls the tunnels between them. Discovery and
// inbound requests lead to the pairing exchange, its result to a record, the records to the data plane's configuration,
// and pings through the tunnel to each peer's state.
//
//	Discovered --exchange--> Connecting --ping--> Connected <--ping-- Lost
//	     |  ^                                        |-- 3 misses --> |
//	     v  | retry, up to 60 s
//	   Refused, Waiting, Denied
//
// It reads discovery entries (hints), messages of peers (proved by mutual TLS) and the LAN interfaces. It alone writes
// peer records, through peer.Store, and configures the data plane. After a restart records are loaded and tunnels
// configured at once, without discovery. Failures are in the Reason of a peer or in Problems, with a cure, and retried.
package fabric

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"rivulet/fabric/broker"
	"rivulet/fabric/changes"
	"rivulet/fabric/control"
	"rivulet/fabric/discovery"
	"rivulet/fabric/keyring"
	"rivulet/fabric/lanpeers"
	"rivulet/fabric/netmon"
	"rivulet/fabric/pairing"
	"rivulet/fabric/panics"
	"rivulet/fabric/peer"
	"rivulet/fabric/relay"
	"rivulet/fabric/rpc"
	"rivulet/fabric/trust"
	"rivulet/fabric/tunnel"
)

// DataPlane is the tunnel as the fabric uses it.
type DataPlane interface {
	// Apply makes cfg the whole state; the same cfg twice changes nothing.
	Apply(ctx context.Context, cfg tunnel.Config) error
	Status(ctx context.Context) (tunnel.Status, error)
}

// LANs is the part of netmon.Monitor that the fabric uses.
type LANs interface {
	LANs() netmon.LANs
	Changed() (<-chan struct{}, func())
}

// Config has the inputs of the fabric. All fields are needed unless stated otherwise.
type Config struct {
	Identity rpc.Identity
	// Name is the initial name; SetName changes it.
	Name    string
	Version string
	// KubeVersion is called for each message to a peer; it returns "" while the API server is down.
	KubeVersion func() string
	// Port is the control port, TCP, on all addresses.
	Port uint16
	// TunnelPort is the WireGuard port, UDP.
	TunnelPort uint16
	// Interface names the TUN device.
	Interface string
	// Leased: the tunnel is in force only until the data plane's deadline, which others set (tunnel.Controller.Deadline).
	Leased      bool
	PodCIDR     netip.Prefix
	ServiceCIDR netip.Prefix
	// TunnelAddress is this cluster's address inside the tunnel, one of PodCIDR.
	TunnelAddress netip.Addr
	// Node is this device's own address in Nodes, the range of addresses of this cluster's nodes.
	Node  netip.Addr
	Nodes netip.Prefix
	// WireGuardKey is this cluster's private key, base64. Rotation changes it.
	WireGuardKey string
	Rotation     keyring.Rotation
	Store        peer.Store
	DataPlane    DataPlane
	Sources      []discovery.Source
	LANs         LANs
	// PeerCIDR is the initial block of the prefixes of peers; the zero value is ipam.Default. SetPeerCIDR changes it.
	PeerCIDR netip.Prefix
	// TakenPrefixes must not be used for peers: the host's networks, resolvers and time servers. It may be nil.
	TakenPrefixes func() []netip.Prefix
	// Dial opens connections inside the tunnel; nil dials from TunnelAddress.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Addresses are this cluster's reachable addresses, for invites; nil takes those of the LANs.
	Addresses func() []netip.Addr
	// OnLink reports whether a stranger at the address may be trusted on first use; nil uses LANs.
	OnLink func(netip.Addr) bool
	// Hardware is the hardware address of a neighbour on a link, empty if unknown. It may be nil.
	Hardware func(netip.Addr) string
	// InUse are the peers with pods or data of this cluster, or the reverse; false while that is unknown. It is called
	// without Fabric's lock; nil is none.
	InUse func(context.Context) (map[peer.ID]bool, bool)
	// LANPeers bounds the peers that are trusted by lan alone; zero is lanpeers.Default.
	LANPeers lanpeers.Limits
	// Trust is the initial policy for new peers; SetTrust changes it.
	Trust Policy
	// Notes stores the trust store beside the records; nil keeps it in memory.
	Notes trust.Notes
	// NoRelay forbids peers to reach each other through this device, initially; SetPaths changes it.
	NoRelay bool
	// Brokers are where members of the group meet that share no LAN, initially; SetBrokers changes them.
	Brokers []broker.Address
	// Clock may be nil: then no times are sent or received.
	Clock Clock
	// Timing may be zero for DefaultTiming.
	Timing Timing
	Log    *slog.Logger
}

type Timing struct {
	// Ping is the interval of pings to a connected peer, unless that one pings; Probe to one that is not connected.
	Ping, Probe time.Duration
	// PingTimeout bounds one ping; after Misses of them in a row a peer is lost.
	PingTimeout time.Duration
	Misses      int
	// Retry is the first wait before a local failure (a port, the data plane) is retried.
	Retry time.Duration
	// Forget is how long a cluster that is no peer is shown after its last sign of life.
	Forget time.Duration
	// Confirm is how long a cluster that has called may take to show that this one is its peer.
	Confirm time.Duration
	// Decision is how long the API waits for the result of an operator decision.
	Decision time.Duration
}

var DefaultTiming = Timing{
	Ping: 3 * time.Second, Probe: 500 * time.Millisecond, PingTimeout: 2 * time.Second, Misses: 3,
	Retry: time.Second, Forget: 2 * time.Minute, Confirm: time.Minute, Decision: 6 * time.Second,
}

// Fabric is the running fabric: the wiring of its parts, and their public face. Its methods may be called concurrently.
// docs/design/fabric.md has what each part reads and writes.
type Fabric struct {
	cfg       Config
	log       *slog.Logger
	keys      *keyring.Ring
	decisions *trust.Store
	settings  *settings
	party     *pairing.Party
	*members
	*problems
	*prefixes
	*plane
	*clients
	*gateways
	*endings
	*operator
	*control.Port
	admission  *admission
	exchanger  *exchanger
	introducer *introducer
	pinger     *pinger
	paths      *pathView
	relay      *relay.Relay
	brokers    *broker.Client
}

// New checks the configuration and loads the records. Nothing runs yet.
func New(cfg Config) (*Fabric, error) {
	if cfg.Timing == (Timing{}) {
		cfg.Timing = DefaultTiming
	}
	if !cfg.PodCIDR.Contains(cfg.TunnelAddress) {
		return nil, fmt.Errorf("fabric: the tunnel address %s is not in the pod CIDR %s", cfg.TunnelAddress, cfg.PodCIDR)
	}
	if cfg.OnLink == nil {
		cfg.OnLink = func(a netip.Addr) bool { return cfg.LANs.LANs().OnLink(a) }
	}
	if cfg.Addresses == nil {
		cfg.Addresses = func() []netip.Addr { return invitable(cfg.LANs.LANs()) }
	}
	if cfg.Notes == nil {
		cfg.Notes = &memory{blobs: map[string][]byte{}}
	}
	keys, err := keyring.Open(cfg.WireGuardKey, cfg.Rotation)
	if err != nil {
		return nil, err
	}
	decisions, err := trust.Open(cfg.Notes)
	if err != nil {
		return nil, err
	}
	f := &Fabric{cfg: cfg, log: cfg.Log, keys: keys, decisions: decisions, settings: newSettings(cfg)}
	f.wire()
	if err := f.restore(); err != nil {
		return nil, err
	}
	for _, s := range cfg.Sources {
		if k, ok := s.(discovery.Retainer); ok {
			k.Keep(f.real)
		}
	}
	return f, nil
}

// restore loads the records. Those of clusters with a revocation are removed: the power failed during the revocation.
func (f *Fabric) restore() error {
	records, err := f.cfg.Store.Peers()
	if err != nil {
		return fmt.Errorf("fabric: load peers: %w", err)
	}
	var kept []peer.Record
	for _, r := range records {
		if _, revoked := f.decisions.Revocation(r.ID); revoked {
			if err := f.cfg.Store.DeletePeer(r.ID); err != nil {
				return fmt.Errorf("fabric: remove %s, which is a peer no more: %w", r.Name, err)
			}
			continue
		}
		kept = append(kept, r)
	}
	kept = keyring.Vetted(kept, f.keys.Now(), f.log)
	rechosen := f.rechoose(kept)
	for _, r := range kept {
		f.load(r)
	}
	for _, id := range rechosen {
		f.due(id)
	}
	return nil
}

// Run works until ctx ends, then sends goodbyes and returns. The data plane keeps its state. It is called once.
func (f *Fabric) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	f.begin(ctx)

	var tasks sync.WaitGroup
	tasks.Go(func() { f.plane.run(ctx) })
	tasks.Go(func() { f.Serve(ctx) })
	tasks.Go(func() { f.followLANs(ctx) })
	tasks.Go(func() { f.paths.run(ctx) })
	tasks.Go(func() { f.keys.Run(ctx, keyring.Peers{Changed: f.keysChanged, Await: f.awaitKey}, f.log) })
	tasks.Go(func() { f.relay.Serve(ctx) })
	tasks.Go(func() { f.introducer.run(ctx) })
	tasks.Go(func() { f.brokers.Run(ctx) })
	tasks.Go(func() { f.operator.expire(ctx) })
	for _, s := range f.cfg.Sources {
		tasks.Go(func() {
			select {
			case <-f.Tried():
			case <-ctx.Done():
			}
			f.keep(ctx, "announce", s, func() error { return f.announce(ctx, s) })
		})
		tasks.Go(func() {
			f.keep(ctx, "watch", s, func() error {
				return s.Watch(ctx, func(e discovery.Event) { f.exchanger.discovered(s.Name(), e) })
			})
		})
	}
	<-ctx.Done()
	tasks.Wait()
	f.end()
	return nil
}

// keep restarts a source that has returned.
func (f *Fabric) keep(ctx context.Context, what string, s discovery.Source, do func() error) {
	for ctx.Err() == nil {
		if err := panics.Call(do); err != nil && ctx.Err() == nil {
			f.log.Warn("discovery failed, trying again", "source", s.Name(), "what", what, "err", err)
			changes.Wait(ctx, 5*f.cfg.Timing.Retry)
		}
	}
}

// followLANs sends peers this device's current addresses, and configures the tunnel for the MTU of the links.
func (f *Fabric) followLANs(ctx context.Context) {
	changed, stop := f.cfg.LANs.Changed()
	defer stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
		f.plane.kick()
		f.brokers.Again()
		f.Refresh()
	}
}

// Peers returns the views of all known clusters, by name and ID.
func (f *Fabric) Peers() []peer.View {
	partings := f.decisions.Revocations()
	f.members.mu.Lock()
	defer f.members.mu.Unlock()
	var out []peer.View
	for _, m := range f.members.all {
		v := m.View()
		if last := m.pings.LastReceived(); v.State == peer.Connected && last.After(v.LastSeen) {
			v.LastSeen = last
		}
		if v.State == peer.Connected && m.works { // the tunnel's own pings were answered
			v.LastSeen = time.Now()
		}
		out = append(out, v)
	}
	out = append(out, f.denied(partings)...)
	f.paths.show(out)
	changes.Poke(f.paths.viewed)
	slices.SortFunc(out, func(a, b peer.View) int {
		return strings.Compare(a.Name+"\x00"+string(a.ID), b.Name+"\x00"+string(b.ID))
	})
	return out
}
