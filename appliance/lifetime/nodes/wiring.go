package nodes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"rivulet/appliance/addons/loadbalancer"
	"rivulet/appliance/addons/volumes"
	"rivulet/appliance/api"
	"rivulet/appliance/health"
	"rivulet/appliance/lifecycle"
	"rivulet/appliance/lifetime/upgrade"
	"rivulet/appliance/network"
	"rivulet/fabric"
	"rivulet/fabric/changes"
	"rivulet/fabric/discovery"
	"rivulet/fabric/pairing"

	"rivulet/fabric/peer"
)

// What differs on a worker. A nil Joined is a device that is a cluster of its own, where nothing does.

// Component is the name of the component of this package.
const Component = "nodes"

// base are the components of a device that was removed from its cluster, node those that a worker has besides, in the
// order in which they start.
var (
	base = []string{"api", "config", "clock", "lans", "status-page", "console", "metrics-endpoint", "data", "alone", "rules", "history", "watchdog", "doctor"}
	node = []string{"bundle", "host-firewall", "pod-gate", "images", "tunnel", leaseComponent, "fabric", Component, "dns", "engine", "certificates", "policies", "node", "storage", "offload"}
)

// leaseComponent is the name of Device.RunLease, on the server of a cluster with standbys and on these.
const leaseComponent = "lease"

// Components selects this device's of all components.
func (r Role) Components(all []lifecycle.Component) (out []lifecycle.Component) {
	if r.Serving == nil && r.Copy == nil {
		all = slices.DeleteFunc(all, func(c lifecycle.Component) bool { return c.Name == leaseComponent })
	}
	j := r.Joined
	if j == nil {
		for i := range all {
			if c := &all[i]; r.Serving != nil && (c.Name == "fabric" || c.Name == "engine") {
				c.Needs = append(slices.Clone(c.Needs), leaseComponent)
			}
		}
		return all
	}
	names := base
	if !j.Removed {
		names = slices.Concat(base, node)
	}
	for _, name := range names {
		i := slices.IndexFunc(all, func(c lifecycle.Component) bool { return c.Name == name })
		if i < 0 {
			continue
		}
		c := all[i]
		switch name {
		case "engine":
			c.Needs = append(slices.Clone(c.Needs), Component) // its API server is behind the tunnel
		case Component:
			c.Needs = []string{"fabric"}
		case "offload":
			c.Needs = []string{"engine", "fabric"} // the rest is of a server
		}
		out = append(out, c)
	}
	return out
}

// serverPrefix is the prefix under which a worker sees its server's pods in the manner of a peer; it is outside of the
// blocks of clusters that a worker sees, and only the server's own address in the tunnel is used.
var serverPrefix = netip.MustParsePrefix("248.0.0.0/16")

// Ranges receives the prefixes of peers; a worker's are its server's (runWorker).
func (j *Joined) Ranges(own network.Ranges) network.Ranges {
	if j == nil {
		return own
	}
	return unranged{}
}

type unranged struct{}

func (unranged) SetPeers([]netip.Prefix) {}

// Policy is whom this device trusts.
func (j *Joined) Policy(own fabric.Policy) fabric.Policy {
	if j == nil {
		return own
	}
	return fabric.Policy{Mode: pairing.ModeClosed, Why: "this device is a node of the cluster " + j.Cluster}
}

// silent is a source by which others do not find this device: a worker has no peers.
type silent struct{ discovery.Source }

func (silent) Announce(ctx context.Context, _ discovery.Announcement) error {
	<-ctx.Done()
	return nil
}

// Sources are this device's discovery sources.
func (j *Joined) Sources(all []discovery.Source) []discovery.Source {
	if j == nil {
		return all
	}
	out := slices.Clone(all)
	for i := range out {
		out[i] = silent{out[i]}
	}
	return out
}

// Report reports a removed device.
func (j *Joined) Report(t *health.Tracker) {
	if j != nil && j.Removed {
		t.Set(health.WorkerRemoved, "this device was a node of "+j.Cluster+" and is none any more; none of its pods run, and its volumes are still here", "make it a cluster of its own, which deletes them: rivulet leave")
	}
}

// Show adds this device's cluster to its status.
func (j *Joined) Show(st *api.Status) {
	if j == nil {
		return
	}
	st.Member = &api.Membership{Cluster: j.Cluster, Server: j.Server, Address: j.Address, Removed: j.Removed}
	if j.Removed {
		st.Ready, st.Waiting = false, "rivulet leave: this device was removed from "+j.Cluster
	}
}

// Split separates other nodes of this cluster from peers.
func (d *Device) Split(all []peer.View) (peers []peer.View, nodes []api.ClusterNode) {
	for _, v := range all {
		if v.Trust.Node() && v.Node == d.NodeName {
			continue // this device, as it is when another one is the server
		}
		if v.Trust.Node() {
			nodes = append(nodes, api.ClusterNode{Node: v.Node, ID: v.ID, State: v.State, Reason: v.Reason, Path: v.Path, RTT: v.RTT, Version: v.Version, Standby: v.Standby, Behind: v.Standby && !d.Ready(v.ID)})
		} else {
			peers = append(peers, v)
		}
	}
	return peers, nodes
}

// Device is this device, a server or a worker. All fields are required.
type Device struct {
	Role
	State, NodeName string
	ID              peer.ID
	Name            func() string // the cluster's, for peers
	Kubernetes      string        // of this program
	API             func() (*rest.Config, error)
	Fabric          func() *fabric.Fabric // nil before it has started
	// Address is that of this node, AddressOf that of a device's. Taken reports addresses that virtual nodes have here.
	Address   netip.Addr
	AddressOf func(peer.ID) netip.Addr
	Taken     func(netip.Addr) bool
	// Block is the configured block of prefixes of peers; Policies receives a worker's.
	Block    func() netip.Prefix
	Policies network.Ranges
	Health   *health.Tracker
	LANs     loadbalancer.LANs
	// Folders are those of this node's volumes.
	Folders *volumes.Local
	// Token is that of the configuration, empty for a cluster of its own.
	Token func() string
	// Upgrade begins an upgrade that the server has sent.
	Upgrade *upgrade.Handover
	Tenants
	Failover
	// Restart ends the supervisor, to begin again.
	Restart func()
	Log     *slog.Logger

	configured chan struct{}

	lanMu      sync.Mutex
	lan        map[peer.ID]lanReport // of workers
	lanChanged changes.Signal
}

// New completes a device.
func New(d *Device) *Device {
	d.configured, d.lan, d.seen = make(chan struct{}, 1), map[peer.ID]lanReport{}, map[peer.ID]time.Time{}
	d.copy.Store(d.Copy)
	d.release, d.had = make(chan chan error), map[peer.ID]time.Time{}
	return d
}

// Run is the component.
func (d *Device) Run(ctx context.Context, stage *lifecycle.Stage) error {
	if d.Joined != nil {
		return d.runWorker(ctx, stage.Ready)
	}
	return d.runServer(ctx, stage.Ready)
}

// PeerBlock is the block of prefixes of what this device has tunnels to.
func (d *Device) PeerBlock() netip.Prefix {
	if d.Joined == nil {
		return d.Block()
	}
	return serverPrefix
}

// PodsBlock is the block in which pods of this device see those of peers.
func (d *Device) PodsBlock() netip.Prefix {
	if d.Joined == nil {
		return d.Block()
	}
	return d.Joined.Block
}

// Reaches reports whether the cluster's server can be asked now; its own is always.
func (d *Device) Reaches() bool {
	if d.Joined == nil {
		return true
	}
	f := d.Fabric()
	if f == nil {
		return false
	}
	l, _ := f.Link(d.Joined.Server)
	return l.State == peer.Connected
}

// restartAfter lets the answer leave before the socket closes.
const restartAfter = 100 * time.Millisecond

// Routes serves `rivulet join`, `leave`, `token` and what changes nodes.
func (d *Device) Routes(mux *http.ServeMux) {
	say := func(pattern string, do func(ctx context.Context, f *fabric.Fabric, w api.NodeWord) (any, error)) {
		mux.Handle(pattern, api.JSON(func(r *http.Request) (any, error) {
			var w api.NodeWord
			if err := json.NewDecoder(r.Body).Decode(&w); err != nil {
				return nil, fmt.Errorf("the request is unreadable: %w; are the command and the running rivulet of the same version?", err)
			}
			f := d.Fabric()
			if f == nil && (d.Joined == nil || !d.Joined.Removed) {
				return nil, errors.New("the tunnel has not started yet; see: rivulet status")
			}
			return do(r.Context(), f, w)
		}))
	}
	change := func(pattern string, do func(ctx context.Context, f *fabric.Fabric, w api.NodeWord) (any, error)) {
		say(pattern, func(ctx context.Context, f *fabric.Fabric, w api.NodeWord) (any, error) {
			if err := offTrial(); err != nil {
				return nil, err
			}
			return do(ctx, f, w)
		})
	}
	change("POST /v1/nodes/join", d.serveJoin)
	change("POST /v1/nodes/leave", d.serveLeave)
	change("POST /v1/nodes/standby", failover{d}.standby)
	change("POST /v1/nodes/switch", failover{d}.hand)
	say("POST /v1/nodes/remove", d.remove)
	say("POST /v1/tokens", d.token)
	mux.HandleFunc("/v1/nodes/{node}/upgrade", d.passUpgrade)
}

func (d *Device) onServer() error {
	if d.Joined != nil {
		return fmt.Errorf("this device is a node of %s; run this on its server", d.Joined.Cluster)
	}
	return nil
}

func (d *Device) serveJoin(ctx context.Context, f *fabric.Fabric, w api.NodeWord) (any, error) {
	if d.Joined != nil {
		return nil, fmt.Errorf("this device is a node of %s already; to leave that: rivulet leave", d.Joined.Cluster)
	}
	if n := len(f.Nodes()); n > 0 {
		return nil, fmt.Errorf("this cluster has %d workers; remove them first: rivulet nodes remove NODE", n)
	}
	i, err := d.join(ctx, f, w.Token)
	if err != nil {
		return nil, err
	}
	time.AfterFunc(restartAfter, d.Restart)
	return api.JoinedCluster{Cluster: i.Cluster, Node: i.Node}, nil
}

func (d *Device) serveLeave(ctx context.Context, f *fabric.Fabric, _ api.NodeWord) (any, error) {
	if d.Joined == nil {
		return nil, errors.New("this device is a cluster of its own; to begin anew: rivulet reset")
	}
	if err := d.Joined.left().save(d.State); err != nil {
		return nil, err
	}
	if f != nil {
		f.Leave(ctx, true)
	}
	time.AfterFunc(restartAfter, d.Restart)
	return api.JoinedCluster{Cluster: d.Joined.Cluster}, nil
}

func (d *Device) remove(ctx context.Context, f *fabric.Fabric, w api.NodeWord) (any, error) {
	if err := d.onServer(); err != nil {
		return nil, err
	}
	for _, r := range f.Nodes() {
		if r.Node == w.Node || r.Node == "" && r.Name == w.Node {
			v, err := f.Unpeer(ctx, string(r.ID), fabric.Unpeer{Force: w.Force, Forget: true})
			if err == nil && r.Node != "" {
				err = d.removeVolumes(ctx, r.Node)
			}
			return v, err
		}
	}
	return nil, fmt.Errorf("no worker of this cluster is called %q; see: rivulet nodes", w.Node)
}

// removeVolumes removes the objects of a removed worker's volumes.
func (d *Device) removeVolumes(ctx context.Context, node string) error {
	local, err := d.API()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(local)
	if err == nil {
		err = dropVolumes(ctx, client, node, d.Log)
	}
	if err != nil {
		return fmt.Errorf("%s is removed, but not all objects of its volumes: %w; see: rivulet kubectl get pv, and delete those that are on it", node, err)
	}
	return nil
}

// tokenLife is how long a token is valid by default, tokenMost at most.
const tokenLife, tokenMost = 10 * time.Minute, 24 * time.Hour

func (d *Device) token(_ context.Context, f *fabric.Fabric, w api.NodeWord) (any, error) {
	if err := d.onServer(); err != nil {
		return nil, err
	}
	life := w.Life
	if life == 0 {
		life = tokenLife
	}
	if life < time.Minute || life > tokenMost {
		return nil, fmt.Errorf("a token is valid for 1m to %s, not for %s; choose a time between", tokenMost, life)
	}
	i, code, err := f.Token(life)
	return api.Invited{Invite: i, Code: code.String(), URL: code.URL()}, err
}
