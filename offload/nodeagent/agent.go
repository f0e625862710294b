// Package nodeagent isolates the pods of other clusters that run on this node, and restricts what packets of other
// clusters reach of it. It wires the parts. It reads the owners of namespaces (Twins), what is known of Consumers, CNI
// results, where pods of this cluster run (At), and what the owner opens. It alone writes the tables of isolation,
// reach and homeaddr. Restart: the tables stay until their new content is known. Failure: in Problems.
package nodeagent

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"
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

// Peers is the part of the fabric that an Agent uses.
type Peers interface {
	peer.Following
	// Gateways are the prefixes behind gateways of external targets.
	Gateways() []netip.Prefix
	// Nodes are the records of this cluster's other nodes, with the prefixes behind them.
	Nodes() []peer.Record
}

// Twins returns the owners of namespaces.
type Twins interface {
	// WaitTwins returns when they are loaded, false if ctx ended before.
	WaitTwins(ctx context.Context) bool
	// Twins returns the consumer of each twin namespace.
	Twins() map[string]peer.ID
	TwinsChanged() (<-chan struct{}, func())
}

// Node are the settings of this node.
type Node struct {
	// Results is the folder of CNI results, DNS the cluster IP of cluster DNS.
	Results string
	DNS     netip.Addr
	// Held are the tenants whose network is being made, as reported by the container network.
	Held *isolation.Held
	// HomeAddrs are the tenants that reach Services by the cluster IPs of their homes; nil are none.
	HomeAddrs *homeaddr.Pods
	// Rules detects changes of nftables by other programs.
	Rules *nft.Guard
	// Interface is the tunnel's.
	Interface string
	// Server is this cluster's server if that is another node: its address in the tunnel. Otherwise it is not valid.
	Server netip.Addr
	// Networks are those of the device.
	Networks func() []netip.Prefix
}

// Config are the dependencies of an Agent. All fields but Reach are required.
type Config struct {
	Node
	// Home is a configuration for this cluster's API server.
	Home      *rest.Config
	PodCIDR   netip.Prefix
	Twins     Twins
	Consumers Consumers
	// Reach is of the node with tunnels to peers; nil on a worker, which receives what that node lets in.
	Reach *Reach
	Log   *slog.Logger
}

// Reach are the dependencies of what packets of peers reach here. All fields are required.
type Reach struct {
	Peers Peers
	// Control is the address of the control port inside the tunnel.
	Control netip.Addr
	// Elsewhere exchanges with peers where pods of this cluster and of others are.
	Elsewhere *elsewhere.Elsewhere
	// At returns this cluster's pods at a peer; Moved reports a change of it.
	At    func(peer.ID) (peerrules.Peer, bool)
	Moved *changes.Signal
	// Others are the addresses of each consumer's pods on other nodes of this cluster; Moved reports a change of it, too.
	Others func() map[peer.ID][]netip.Addr
	// Exported are Services that are open to these peers without a label; nil is none. Moved reports a change of it, too.
	Exported func() (services []types.NamespacedName, to []peer.ID)
	// TenantsChanged is called after the result of Tenants has changed.
	TenantsChanged func()
}

// Agent are the parts of offloading that every node needs.
type Agent struct {
	*parts.Parts
	cfg      Config
	home     kubernetes.Interface
	services tenantServices
	opened   atomic.Pointer[map[string][]string]      // see Open
	tenants  atomic.Pointer[map[peer.ID][]netip.Addr] // running in this cluster, by consumer
}

// New makes an Agent; Run starts it.
func New(cfg Config) (*Agent, error) {
	client, err := kubernetes.NewForConfig(cfg.Home)
	if err != nil {
		return nil, err
	}
	return &Agent{Parts: parts.New(cfg.Log), cfg: cfg, home: client}, nil
}

// Run maintains the tables until ctx ends; it may be called once.
func (a *Agent) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { a.Keep(ctx, "isolation", a.isolate) })
	if a.cfg.Reach != nil {
		wg.Go(func() { a.Keep(ctx, "reach", a.keepReach) })
	}
	if a.cfg.HomeAddrs != nil {
		wg.Go(func() { a.Keep(ctx, "addresses of home", a.keepHomeAddresses) })
	}
	wg.Wait()
	return ctx.Err()
}

// Open are the namespaces or namespace/services open to other clusters: by the ID of a peer, policy.OpenToAll or
// policy.OpenToGroup.
func (a *Agent) Open() map[string][]string {
	if open := a.opened.Load(); open != nil {
		return *open
	}
	return nil
}

// Tenants are the addresses of the consumer's pods in this cluster, sorted; none without Config.Reach.
func (a *Agent) Tenants(id peer.ID) []netip.Addr {
	if all := a.tenants.Load(); all != nil {
		return (*all)[id]
	}
	return nil
}
