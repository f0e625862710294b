// Package offload runs pods of this cluster on others, and pods of others on this one. It wires the roles of a device:
// consumer (what home borrows), provider (what it lends) and nodeagent (what runs on a node). A role gets parts of the
// others only as parameters from here, so that each can be run without them, and several consumers in one process
// (docs/design/architecture.md).
package offload

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"rivulet/fabric/changes"
	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
	"rivulet/offload/consumer"
	"rivulet/offload/consumer/homeimages"
	"rivulet/offload/consumer/move"
	"rivulet/offload/consumer/stream"
	"rivulet/offload/elsewhere"
	"rivulet/offload/homeapi"
	"rivulet/offload/networkpolicy"
	"rivulet/offload/nodeagent"
	"rivulet/offload/nodeagent/homeaddr"
	"rivulet/offload/offer"
	"rivulet/offload/policy"
	"rivulet/offload/provider"
	"rivulet/offload/provider/tenancy"
	"rivulet/offload/target"
	peertarget "rivulet/offload/target/peer"
)

// Peers is the part of the fabric that offloading uses.
type Peers interface {
	peertarget.Fabric
	provider.Peers
	nodeagent.Peers
	// Pass delivers connections to this cluster's control address inside the tunnel whose TLS clients request one of
	// the names; a nil h ends it.
	Pass(h func(net.Conn), names ...string)
}

// Volumes are the folders of the volumes of this cluster's nodes.
type Volumes interface {
	move.Local
	tenancy.Volumes
}

// Config are the dependencies of an Offload. Home to Log are required; the rest is described in the configuration of
// its role.
type Config struct {
	Home        *rest.Config
	ClusterID   string
	ClusterName func() string // for messages; it may change
	NodeName    string        // of the home node on which this runs
	NodeIP      netip.Addr    // its address, on which virtual nodes serve their kubelet API
	// NodeAddress is consumer.Config.Address.
	NodeAddress func(node string) (addr netip.Addr, release func(), err error)
	PodCIDR     netip.Prefix
	// Control is the control address inside the tunnel, as this cluster sees it.
	Control netip.AddrPort
	// ServerTLSDir is the engine's server/tls folder.
	ServerTLSDir string
	Peers        Peers
	Log          *slog.Logger

	Missing, Parting time.Duration
	NodesChanged     func()

	// Nodes selects the peers that get a virtual node; nil selects all. Choose applies changes.
	Nodes func() policy.Nodes

	Shares   func() offer.Shares
	Withheld func() []string
	Memory   uint64
	// PodMemory is as in tenancy.Config.
	PodMemory tenancy.PodMemory
	Volumes   Volumes
	// LAN is as in tenancy.Config.
	LAN      *tenancy.LAN
	Policies *networkpolicy.Watcher
	Images   func() (map[string][]string, error)
	// PeerImages are home's images, which providers pull for home's pods there while PeerImagesOn; nil serves none.
	PeerImages   homeimages.Store
	PeerImagesOn func() bool
	// Hosted are consumers on this device in addition to peers; nil are none.
	Hosted provider.Hosted
	// Exported is as in nodeagent.Config; ExportedChanged reports changes.
	Exported func() (services []types.NamespacedName, to []peer.ID)
	// Isolation isolates the pods of other clusters; nil does not, and peers get no addresses of pods.
	Isolation *nodeagent.Node
}

// Offload is all roles of a device.
type Offload struct {
	*consumer.Consumer
	*provider.Provider
	agent     *nodeagent.Agent // nil without Config.Isolation
	elsewhere *elsewhere.Elsewhere
	consumers *consumers
	peers     *peertarget.Source
	router    *homeapi.Router
	moved     *changes.Signal
}

// New makes an Offload and adds the provider's routes to the fabric.
func New(cfg Config) (*Offload, error) {
	if cfg.Home == nil || cfg.Peers == nil || cfg.Log == nil || cfg.ClusterID == "" || !cfg.NodeIP.IsValid() || !cfg.PodCIDR.IsValid() {
		return nil, errors.New("offload: Home, Peers, Log, ClusterID, NodeIP and PodCIDR must be set")
	}
	cfg.Home = rest.CopyConfig(cfg.Home)
	cfg.Home.QPS, cfg.Home.Burst = 200, 400
	moved := new(changes.Signal)
	o := &Offload{moved: moved, router: &homeapi.Router{Pass: cfg.Peers.Pass, Log: cfg.Log.With("part", "homeapi")}}
	mine := consumer.Config{
		Home: cfg.Home, ID: cfg.ClusterID, Host: cfg.NodeName, HomeNode: cfg.NodeName, NodeIP: cfg.NodeIP, Address: cfg.NodeAddress, Authority: stream.EngineAuthority(cfg.ServerTLSDir), Router: o.router,
		Missing: cfg.Missing, Parting: cfg.Parting, Policies: cfg.Policies, Images: cfg.Images, Moved: moved, NodesChanged: cfg.NodesChanged, Log: cfg.Log,
	}
	lent := provider.Config{Peers: cfg.Peers, Hosted: cfg.Hosted, Config: tenancy.Config{
		Local: cfg.Home, ClusterName: cfg.ClusterName, PeerID: rpc.PeerID, Shares: cfg.Shares, Withheld: cfg.Withheld,
		Memory: cfg.Memory, PodMemory: cfg.PodMemory, LAN: cfg.LAN, Tenants: o.Tenants, HomeAddresses: cfg.Isolation != nil && cfg.Isolation.HomeAddrs != nil, HomePods: cfg.Isolation != nil && cfg.Isolation.HomeAddrs != nil && homeaddr.Lives(), Log: cfg.Log,
	}}
	if cfg.Volumes != nil {
		mine.Volumes, lent.Volumes = cfg.Volumes, cfg.Volumes
	}
	var err error
	if o.Consumer, err = consumer.New(mine); err != nil {
		return nil, err
	}
	if o.Provider, err = provider.New(lent); err != nil {
		return nil, err
	}
	o.elsewhere = elsewhere.New(elsewhere.Config{
		Peers: cfg.Peers, Provider: o, PeerID: rpc.PeerID, PodCIDR: cfg.PodCIDR,
		Log: cfg.Log.With("part", "elsewhere"),
	})
	o.peers = &peertarget.Source{Fabric: cfg.Peers, PodCIDR: cfg.PodCIDR, Relay: o.elsewhere, Control: cfg.Control, Consumer: o.Consumer, Nodes: cfg.Nodes, Moved: moved}
	for pattern, handler := range o.elsewhere.Routes() {
		cfg.Peers.Handle(pattern, handler)
	}
	if cfg.PeerImages != nil {
		cfg.Peers.Handle(homeimages.Pattern, &homeimages.Server{Store: cfg.PeerImages, Used: o.ImagesAt, On: cfg.PeerImagesOn})
	}
	if cfg.Isolation == nil {
		return o, nil
	}
	o.consumers = &consumers{Offload: o, peers: cfg.Peers, hosted: cfg.Hosted}
	o.agent, err = nodeagent.New(nodeagent.Config{
		Node: *cfg.Isolation, Home: cfg.Home, PodCIDR: cfg.PodCIDR, Twins: o.Twins(), Consumers: o.consumers, Log: cfg.Log,
		Reach: &nodeagent.Reach{
			Peers: cfg.Peers, Control: cfg.Control.Addr(), Elsewhere: o.elsewhere, At: o.At, Moved: moved, Others: o.consumers.byConsumer, Exported: cfg.Exported,
			TenantsChanged: func() { o.TenantsChanged(); o.consumers.changed.Notify() },
		},
	})
	return o, err
}

// Run serves all roles until ctx ends; it may be called once.
func (o *Offload) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { _ = o.Consumer.Run(ctx) }) // each ends with ctx
	wg.Go(func() { _ = o.Provider.Run(ctx) })
	wg.Go(func() { o.peers.Run(ctx) })
	if o.agent != nil {
		wg.Go(func() { _ = o.agent.Run(ctx) })
		wg.Go(func() { o.agent.Keep(ctx, "elsewhere", o.elsewhere.Run) })
		wg.Go(func() { o.consumers.follow(ctx) })
	}
	wg.Wait()
	return ctx.Err()
}

// Linked is Provider.Linked; a nil Offload adds none.
func (o *Offload) Linked(links []peer.Link) []peer.Link {
	if o == nil {
		return links
	}
	return o.Provider.Linked(links)
}

// HomeAPI routes pods away to API servers of this device.
func (o *Offload) HomeAPI() *homeapi.Router { return o.router }

// SettingsChanged applies changed Config.Nodes, Shares and Withheld at once.
func (o *Offload) SettingsChanged() {
	o.ShareChanged()
	o.WithheldChanged()
	o.peers.Choose()
}

// ExportedChanged applies a changed Config.Exported at once.
func (o *Offload) ExportedChanged() { o.moved.Notify() }

// Tenants returns the addresses of a consumer's pods here, sorted.
func (o *Offload) Tenants(id peer.ID) []netip.Addr {
	if o.agent == nil {
		return nil
	}
	return o.agent.Tenants(id)
}

// VirtualNode and Consumer are parts of Status.
type (
	VirtualNode = consumer.VirtualNode
	Consumer    = provider.Consumer
)

// Under is how a consumer sees the pods of other peers; nothing for a nil Offload: tenants' pods query cluster DNS before
// it runs.
func (o *Offload) Under(consumer peer.ID) elsewhere.Under {
	if o == nil {
		return elsewhere.Under{}
	}
	return o.elsewhere.Under(consumer)
}

// Status is the part of `rivulet status` about offloading.
type Status struct {
	// VirtualNodes are what this cluster may borrow, by name.
	VirtualNodes []VirtualNode `json:"virtualNodes"`
	// LendNothing are the IDs of targets that exist and lend this cluster nothing.
	LendNothing []string `json:"lendNothing,omitempty"`
	// Unchosen are the IDs of peers that Config.Nodes does not select.
	Unchosen   []string                    `json:"unchosen,omitempty"`
	Namespaces map[string]policy.Namespace `json:"namespaces,omitempty"`
	// Open are the namespaces or namespace/services that are open to other clusters: by the ID of a peer,
	// policy.OpenToAll or policy.OpenToGroup.
	Open map[string][]string `json:"open,omitempty"`
	// Relayed are the peers whose pods of this cluster reach those at the listed ones through it, by ID.
	Relayed map[peer.ID][]peer.ID `json:"relayed,omitempty"`
	// Consumers are the clusters that borrow from this one; Lent is what they may use together.
	Consumers []Consumer          `json:"consumers,omitempty"`
	Lent      corev1.ResourceList `json:"lent,omitempty"`
}

// Status may be called at any time.
func (o *Offload) Status() Status {
	st := Status{VirtualNodes: append([]VirtualNode{}, o.VirtualNodes()...), LendNothing: o.LendNothing(), Unchosen: o.peers.Unchosen(), Namespaces: o.Namespaces().Namespaces()}
	st.Consumers, st.Lent = o.Consumers()
	if o.agent != nil {
		st.Open, st.Relayed = o.agent.Open(), o.elsewhere.Relayed()
	}
	return st
}

// Problems are the parts that do not run, with the reason. They are retried.
func (o *Offload) Problems() map[string]string {
	out := o.Consumer.Problems()
	maps.Copy(out, o.Provider.Problems())
	if o.agent != nil {
		maps.Copy(out, o.agent.Problems())
	}
	return out
}

// PeersInUse are the peers with pods or data of home, and those with twins here; false before that is loaded.
func (o *Offload) PeersInUse(ctx context.Context) (map[peer.ID]bool, bool) {
	twins, known := o.Twins().KnownTwins()
	if !known {
		return nil, false
	}
	used := map[peer.ID]bool{}
	for _, id := range twins {
		used[id] = true
	}
	borrowed, known := o.InUse(ctx, target.Peer)
	for id := range borrowed {
		used[peer.ID(id)] = true
	}
	return used, known
}
