// Package peerobjects represents the peers of this cluster as objects of its API: one Peer for each trusted cluster,
// with state, conditions and events, for `kubectl get peers` and other watchers. Changes of an object's spec are passed
// to the fabric, deleting an object ends the peering, and an object with a cluster's address makes it a peer.
//
//	fabric ── Changed ──▶ sync ◀── watch ── API server
//	   ▲                   │ objects, status, events
//	   └─ approval, roles, unpeer
//
// It reads the fabric's peers and the Peer objects, both by notifications. It alone writes Peer objects, their status
// and events; in the fabric it sets approvals and roles, and ends peerings. Restart: it compares both sides. A missing
// object is created again, because only a deletion that waits for its finalizer ends a peering. The object of a cluster
// that is no peer is deleted only if its peering has ended, by a stored revocation; otherwise it stays with what a person
// has written in it, and its status says what to do: an older state.db may have been restored. While the API server is
// away nothing changes in the fabric; the objects are updated later.
package peerobjects

import (
	"context"
	_ "embed"
	"log/slog"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"rivulet/appliance/addons/customresource"
	"rivulet/fabric"
	"rivulet/fabric/peer"
)

//go:embed crd.yaml
var crd []byte

// View is a peer as its object shows it.
type View struct {
	peer.View
	Path string
	// Cordoned: one of its virtual nodes takes no new pods.
	Cordoned bool
}

// Fabric is the needed part of fabric.Fabric.
type Fabric interface {
	// Changed reports changes of Peers.
	Changed() (<-chan struct{}, func())
	// Departed are the clusters with a stored revocation that were peers.
	Departed() []peer.ID
	// Unpeer ends a peering, with Force even if the peer cannot be notified.
	Unpeer(ctx context.Context, id string, how fabric.Unpeer) (peer.View, error)
	// Set changes settings of a peer.
	Set(ctx context.Context, id string, settings peer.Settings) (peer.View, error)
	// ApproveAt stores an operator's approval of the cluster at the address, or with the ID; one of the two may be
	// empty. It returns the cluster.
	ApproveAt(ctx context.Context, id peer.ID, address string) (peer.View, error)
	// Withdraw removes that approval, unless the cluster is a peer by now.
	Withdraw(id peer.ID) error
}

// Config is the input of Run.
type Config struct {
	API *rest.Config
	Fabric
	// Peers returns all known clusters; trusted ones are shown.
	Peers func() []View
	// NodesChanged reports changes of Cordoned.
	NodesChanged func() (<-chan struct{}, func())
	Log          *slog.Logger
}

// gather is how long changes are collected before they are written together.
const gather = 250 * time.Millisecond

// mirror is the running component. One goroutine does all of its work.
type mirror struct {
	Config
	client   dynamic.ResourceInterface
	store    cache.Store
	recorder record.EventRecorder
	shaped   map[string]Status // last written status, by object, to ignore the watch's echo of it
	poke     func()            // triggers a sync

	requestsMu sync.Mutex
	requests   map[string]*asking // by object
}

// Run mirrors until ctx ends. It calls ready after the first pass over all objects.
func Run(ctx context.Context, cfg Config, ready func()) error {
	changed, stop := cfg.Changed()
	defer stop()
	nodes, stopNodes := cfg.NodesChanged()
	defer stopNodes()
	kind := customresource.Kind{Name: "peers", Definition: crd, Resource: Resource, Gather: gather}
	return customresource.Run(ctx, cfg.API, kind, func(o customresource.Objects) customresource.Loop {
		m := &mirror{
			Config: cfg, client: o.Dynamic.Resource(Resource), store: o.Store, recorder: o.Recorder,
			shaped: map[string]Status{}, poke: o.Poke, requests: map[string]*asking{},
		}
		return customresource.Loop{Sync: m.sync, Changed: []<-chan struct{}{changed, nodes}, Log: cfg.Log}
	}, ready)
}

// objects are those in the API, from the watch.
func (m *mirror) objects() []*Peer {
	var out []*Peer
	for _, o := range m.store.List() {
		u, ok := o.(*unstructured.Unstructured)
		if !ok {
			continue
		}
		p, err := fromAPI(u)
		if err != nil {
			m.Log.Warn("a Peer object is unreadable", "name", u.GetName(), "err", err)
			continue
		}
		out = append(out, p)
	}
	return out
}
