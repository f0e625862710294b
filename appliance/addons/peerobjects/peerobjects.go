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
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"rivulet/appliance/lifecycle"
	"rivulet/fabric"
	"rivulet/fabric/peer"
	"rivulet/offload/policy"
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

const (
	// gather is how long changes are collected before they are written as one.
	gather = 250 * time.Millisecond
	// firstRetry and lastRetry are the pauses after a failure.
	firstRetry, lastRetry = time.Second, 30 * time.Second
)

// mirror is the running component. One goroutine does all of its work.
type mirror struct {
	Config
	client   dynamic.ResourceInterface
	store    cache.Store
	recorder record.EventRecorder
	shaped   map[string]Status // what was written last, by object, so that our own echo is no news
	poke     func()            // has everything looked at again

	askMu sync.Mutex
	asked map[string]*asking // by object
}

// Run mirrors until ctx ends. ready is called when all objects have been looked at.
func Run(ctx context.Context, cfg Config, ready func()) error {
	if err := policy.Apply(ctx, cfg.API, crd); err != nil {
		return fmt.Errorf("peers: %w", err)
	}
	dyn, err := dynamic.NewForConfig(cfg.API)
	if err != nil {
		return fmt.Errorf("peers: %w", err)
	}
	kube, err := kubernetes.NewForConfig(cfg.API)
	if err != nil {
		return fmt.Errorf("peers: %w", err)
	}
	if err := established(ctx, dyn); err != nil {
		return err
	}
	events := record.NewBroadcaster(record.WithContext(ctx))
	defer events.Shutdown()
	events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: kube.CoreV1().Events("")})

	informer := dynamicinformer.NewDynamicSharedInformerFactory(dyn, 0).ForResource(Resource).Informer()
	told := make(chan struct{}, 1)
	poke := func(any) {
		select {
		case told <- struct{}{}:
		default:
		}
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: poke, UpdateFunc: func(_, o any) { poke(o) }, DeleteFunc: poke}); err != nil {
		return fmt.Errorf("peers: %w", err)
	}
	running := make(chan struct{})
	go func() { defer close(running); informer.RunWithContext(ctx) }()
	defer func() { <-running }()
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return nil // stopped
	}
	m := &mirror{
		Config: cfg, client: dyn.Resource(Resource), store: informer.GetStore(),
		recorder: events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "rivulet"}), shaped: map[string]Status{},
		poke: func() { poke(nil) }, asked: map[string]*asking{},
	}
	m.follow(ctx, told, ready)
	return nil
}

// follow syncs whenever one of both sides has changed.
func (m *mirror) follow(ctx context.Context, told <-chan struct{}, ready func()) {
	changed, stop := m.Changed()
	defer stop()
	nodes, stopNodes := m.NodesChanged()
	defer stopNodes()
	retry := time.NewTimer(0)
	defer retry.Stop()
	pause := firstRetry
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-nodes:
		case <-told:
		case <-retry.C:
		}
		if !lifecycle.Pause(ctx, gather) {
			return
		}
		if err := m.sync(ctx); err != nil && ctx.Err() == nil {
			m.Log.Debug("peer objects are not up to date, trying again", "err", err)
			retry.Reset(pause)
			pause = min(2*pause, lastRetry)
		} else {
			pause = firstRetry
		}
		if ready != nil { // what fails now is one peer's: its events say so
			ready()
			ready = nil
		}
	}
}

// established waits until the API server serves Peers.
func established(ctx context.Context, dyn dynamic.Interface) error {
	for {
		_, err := dyn.Resource(Resource).List(ctx, listNothing)
		if err == nil {
			return nil
		}
		if !lifecycle.Pause(ctx, 200*time.Millisecond) {
			return fmt.Errorf("peers: the API server does not serve them: %w", err)
		}
	}
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
