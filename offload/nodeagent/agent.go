// Package nodeagent holds the pods of other clusters that run on this node to what is theirs, and keeps what packets of
// other clusters reach of it. It wires what does that. It reads which namespaces are whose (Twins), the links of the
// fabric, CNI results, where pods of this cluster run (At), and what the owner opens. It alone writes the tables of
// isolation, reach and homeaddr, which stay until it is known after a restart what they should be. Failure: in
// Problems.
package nodeagent

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"rivulet/fabric/changes"
	"rivulet/fabric/nft"
	"rivulet/fabric/peer"
	"rivulet/offload/elsewhere"
	"rivulet/offload/nodeagent/homeaddr"
	"rivulet/offload/nodeagent/isolation"
	"rivulet/offload/nodeagent/peerrules"
	"rivulet/offload/parts"
)

// Peers is what an Agent needs of the fabric.
type Peers interface {
	peer.Following
	// Gateways are the prefixes of what is behind gateways of external targets.
	Gateways() []netip.Prefix
}

// Twins knows which namespaces are whose.
type Twins interface {
	// WaitTwins returns when they are known, false if ctx ended before.
	WaitTwins(ctx context.Context) bool
	// Twins gives the consumer of each twin namespace.
	Twins() map[string]peer.ID
	TwinsChanged() (<-chan struct{}, func())
}

// Hosted are consumers whose API servers are on this host.
type Hosted interface {
	// API is where a consumer's pods find its API server; not valid for others.
	API(id peer.ID) netip.AddrPort
	Changed() (<-chan struct{}, func())
}

// Node is what is this node's alone.
type Node struct {
	// Results is the folder of CNI results, DNS the cluster IP of cluster DNS.
	Results string
	DNS     netip.Addr
	// Held are the guests whose network is being made; the container network tells of them.
	Held *isolation.Held
	// HomeAddrs are the guests that reach Services by the cluster IPs of their homes; nil are none.
	HomeAddrs *homeaddr.Pods
	// Rules sees what other programs do to nftables.
	Rules *nft.Guard
	// Interface is the tunnel's.
	Interface string
	// Networks are those of the device.
	Networks func() []netip.Prefix
}

// Config is what an Agent needs. All fields but Hosted are required.
type Config struct {
	Node
	// Home reaches this cluster's API server.
	Home    *rest.Config
	PodCIDR netip.Prefix
	// Control is the address of the control port inside the tunnel.
	Control netip.Addr
	Peers   Peers
	Twins   Twins
	Hosted  Hosted
	// Elsewhere is told where pods of this cluster are, and tells where those of others are.
	Elsewhere *elsewhere.Elsewhere
	// At is what is known of this cluster's pods at a peer, Moved when that is another.
	At    func(peer.ID) (peerrules.Peer, bool)
	Moved *changes.Signal
	// TenantsChanged is called after Tenants answers differently.
	TenantsChanged func()
	Log            *slog.Logger
}

// Agent is what offloading needs on every node.
type Agent struct {
	*parts.Parts
	cfg      Config
	home     kubernetes.Interface
	services tenantServices
	opened   atomic.Pointer[map[string][]string]      // see Open
	tenants  atomic.Pointer[map[peer.ID][]netip.Addr] // of each consumer, that run here
}

// New makes an Agent; Run starts it.
func New(cfg Config) (*Agent, error) {
	client, err := kubernetes.NewForConfig(cfg.Home)
	if err != nil {
		return nil, err
	}
	return &Agent{Parts: parts.New(cfg.Log), cfg: cfg, home: client}, nil
}

// Run keeps the tables until ctx ends; it may be called once.
func (a *Agent) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { a.Keep(ctx, "isolation", a.isolate) })
	wg.Go(func() { a.Keep(ctx, "reach", a.keepReach) })
	if a.cfg.HomeAddrs != nil {
		wg.Go(func() { a.Keep(ctx, "addresses of home", a.keepHomeAddresses) })
	}
	wg.Wait()
	return ctx.Err()
}

// Open is what other clusters reach, a namespace or namespace/service: by the ID of a peer,
// policy.OpenToAll or policy.OpenToGroup.
func (a *Agent) Open() map[string][]string {
	if open := a.opened.Load(); open != nil {
		return *open
	}
	return nil
}

// Tenants are the addresses of the consumer's pods here, in order.
func (a *Agent) Tenants(id peer.ID) []netip.Addr {
	if all := a.tenants.Load(); all != nil {
		return (*all)[id]
	}
	return nil
}
