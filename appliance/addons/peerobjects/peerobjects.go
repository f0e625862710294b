// Package peerobjects shows the peers of this cluster as objects of its API: one Peer for
// each cluster that has been trusted, with state, conditions and events, so that
// `kubectl get peers` and what watches objects see what `rivulet peers` shows. What
// is written in an object's spec goes back to the fabric, and deleting an object ends
// the peering. An object that says where a cluster is makes it a peer.
//
//	fabric ── Changed ──▶ sync ◀── watch ── API server
//	   ▲                   │ objects, status, events
//	   └─ word, roles, unpeer
//
// It reads the fabric's peers and the Peer objects, both by being told of changes. It
// alone writes Peer objects and their status, and their events; in the fabric it
// gives the user's word, changes roles and ends peerings when an object says so. After a restart it compares
// both sides: an object that is gone while nobody was looking is made again, since
// only a deletion that waits for its finalizer ends a peering. An API server that
// is away changes nothing for the fabric; the objects catch up when it is back.
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

// View is a peer as the objects show it.
type View struct {
	peer.View
	Path  string
	Roles Roles
	// Cordoned: one of its virtual nodes takes no new pods.
	Cordoned bool
}

// Fabric is what objects want done about peers; fabric.Fabric is one.
type Fabric interface {
	// Changed tells that Peers may be another.
	Changed() (<-chan struct{}, func())
	// Unpeer ends a peering, with Force though the peer cannot be told.
	Unpeer(ctx context.Context, id string, how fabric.Unpeer) (peer.View, error)
	// SetRoles switches directions; nil leaves one as it is.
	SetRoles(ctx context.Context, id string, consume, provide *bool) (peer.View, error)
	// ApproveAt gives a person's word that the cluster at the address, or with the ID, may
	// be a peer; one of the two may be empty. It returns who that is.
	ApproveAt(ctx context.Context, id peer.ID, address string) (peer.View, error)
	// Withdraw takes that word back, unless the cluster is a peer by now.
	Withdraw(id peer.ID) error
}

// Config is what it is made of.
type Config struct {
	API *rest.Config
	Fabric
	// Peers returns all clusters that are known; those with a trust are shown.
	Peers func() []View
	// NodesChanged tells that Cordoned may be another.
	NodesChanged func() (<-chan struct{}, func())
	Log          *slog.Logger
}

// gather is how long changes are collected before they are written as one.
const gather = 250 * time.Millisecond

// mirror is the running component. One goroutine does all of its work.
type mirror struct {
	Config
	client   dynamic.ResourceInterface
	store    cache.Store
	recorder record.EventRecorder
	shaped   map[string]Status // what was written last, by object, so that our own echo is no news
	poke     func()            // has everything looked at again

	requestsMu sync.Mutex
	requests   map[string]*asking // by object
}

// Run mirrors until ctx ends. ready is called when all objects have been looked at.
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

// objects are those in the API, as the watch has them.
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
