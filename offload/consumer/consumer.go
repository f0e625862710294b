// Package consumer runs pods of one cluster, its home, on others (docs/design/offload.md). It reads home's namespace
// labels, pods and virtual nodes, and the last SetTargets. It alone decides which virtual nodes home has (those of a
// target exist from its first offer until it is removed, whatever its link does), and alone releases twins. All
// dependencies are in Config, so several consumers can run in one process. Restart: all state is in the clusters'
// objects, and running pods are not touched. Failure: in Problems, in the conditions of the virtual node and in the
// events of pods.
package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"net/url"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"rivulet/fabric/changes"
	"rivulet/offload/consumer/homecache"
	"rivulet/offload/consumer/move"
	"rivulet/offload/consumer/pod/translate"
	"rivulet/offload/consumer/stream"
	"rivulet/offload/consumer/volume"
	"rivulet/offload/homeapi"
	"rivulet/offload/networkpolicy"
	"rivulet/offload/parts"
	"rivulet/offload/policy"
	"rivulet/offload/target"
)

// Config are the dependencies of a Consumer. Home, ID, NodeIP, Authority and Log are required.
type Config struct {
	// Home is a configuration with all rights on home's API server.
	Home *rest.Config
	// ID is home's; targets identify the owner of pods by it.
	ID string
	// Host is the node name in the source of events.
	Host string
	// HomeNode is home's own node: its pods are not watched, and no virtual node gets its name. "" if it has none.
	HomeNode string
	// NodeIP is the address on which virtual nodes serve their kubelet API, Authority signs its certificates.
	NodeIP    netip.Addr
	Authority stream.Authority
	// Address returns an address of this machine for one virtual node, until release is called; nil puts all at NodeIP.
	Address func(node string) (addr netip.Addr, release func(), err error)
	// NodePort is the port of the first node, if it is free; 0 is any.
	NodePort uint16
	// Everywhere: home has no nodes of its own. All of its namespaces are offloaded, except those labelled off and the
	// cluster's own. Pods get no tolerations then, because their scheduler ignores Rivulet's taints.
	Everywhere bool
	// Words are for the texts of pods, claims and Services.
	Words translate.Words
	// Router routes pods away to home's API server; nil routes none.
	Router *homeapi.Router
	// HandBack is how long pods may stay on a target that lends less than they request; 0 is DefaultHandBack.
	HandBack time.Duration
	// Missing is how long a target may lack nodes of a platform before that virtual node is removed; 0 is
	// DefaultMissing.
	Missing time.Duration
	// Parting is how long pods stay at home after their target has become unable to report them; 0 is DefaultParting.
	Parting time.Duration
	// Volumes are the folders of the volumes of this cluster's nodes; nil disables moves of data.
	Volumes move.Local
	// Policies caches the NetworkPolicies of home and the pods that they select; nil makes one for reflection only.
	Policies *networkpolicy.Watcher
	// Images returns the architectures of home's images; nil leaves these to the reports of targets.
	Images func() (map[string][]string, error)
	// Moved is notified after home's pods at a target may have changed; may be nil.
	Moved *changes.Signal
	// NodesChanged is called after a virtual node became ready or cordoned, or stopped being so; may be nil.
	NodesChanged func()
	Log          *slog.Logger
}

// Consumer is home's side of offloading. Its exported methods may be called at any time.
type Consumer struct {
	*parts.Parts
	cfg    Config
	home   kubernetes.Interface
	policy *policy.Watcher
	cache  *homecache.Cache
	// ownPolicies: this Consumer runs cfg.Policies.
	ownPolicies bool
	recorder    record.EventRecorder
	volumes     *volume.Controller
	retarget    chan struct{} // wakes runTargets
	begun       time.Time
	closed      closings

	mu      sync.Mutex
	mover   *move.Mover // nil before Run and without cfg.Volumes
	targets map[target.Kind]targets
	stacks  map[string]*stack    // by target
	parting map[string]time.Time // targets whose offers withdraw everything, since when
	served  map[string]bool      // targets that had a stack in this run, or have ended
	ended   map[string]bool      // targets that have ended
}

// New makes a Consumer; Run starts it.
func New(cfg Config) (*Consumer, error) {
	if cfg.Home == nil || cfg.ID == "" || !cfg.NodeIP.IsValid() || cfg.Log == nil {
		return nil, errors.New("offload: Home, ID, NodeIP and Log of a consumer must be set")
	}
	if cfg.HandBack == 0 {
		cfg.HandBack = DefaultHandBack
	}
	if cfg.Missing == 0 {
		cfg.Missing = DefaultMissing
	}
	if cfg.Parting == 0 {
		cfg.Parting = DefaultParting
	}
	if cfg.NodesChanged == nil {
		cfg.NodesChanged = func() {}
	}
	ownPolicies := cfg.Policies == nil
	if ownPolicies {
		cfg.Policies = networkpolicy.NewWatcher(cfg.Log.With("part", "policies"))
	}
	cfg.Home = rest.CopyConfig(cfg.Home)
	cfg.Home.QPS, cfg.Home.Burst = 200, 400
	client, err := kubernetes.NewForConfig(cfg.Home)
	if err != nil {
		return nil, fmt.Errorf("offload: client of home: %w", err)
	}
	follow := policy.New
	if cfg.Everywhere {
		follow = policy.NewAll
	}
	return &Consumer{
		Parts: parts.New(cfg.Log), cfg: cfg, home: client, ownPolicies: ownPolicies,
		policy:   follow(client, cfg.Log.With("part", "policy")),
		cache:    homecache.New(cfg.Log.With("part", "cache of home")),
		retarget: make(chan struct{}, 1), targets: map[target.Kind]targets{}, stacks: map[string]*stack{},
		served: map[string]bool{}, ended: map[string]bool{}, parting: map[string]time.Time{},
		closed: closings{since: map[string]time.Time{}}, begun: time.Now(),
	}, nil
}

// Run serves home until ctx ends; it may be called once.
func (c *Consumer) Run(ctx context.Context) error {
	events := record.NewBroadcaster(record.WithContext(ctx))
	defer events.Shutdown()
	events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: c.home.CoreV1().Events("")})
	c.recorder = worded{events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "rivulet", Host: c.cfg.Host}), c.cfg.Words}
	c.mu.Lock()
	c.volumes = c.newVolumes()
	c.mu.Unlock()

	var wg sync.WaitGroup
	keep := func(part string, run func(context.Context) error) { wg.Go(func() { c.Keep(ctx, part, run) }) }
	keep("volumes", c.volumes.Run)
	if c.cfg.Volumes != nil {
		keep("moves of volumes", c.runMoves)
	}
	keep("policy", c.policy.Run)
	if !c.cfg.Everywhere {
		keep("pending pods", c.takeUpPending)
		keep("admission", c.admission)
	}
	keep("platforms of images", c.fitImages)
	if c.ownPolicies {
		keep("policies", func(ctx context.Context) error { return c.cfg.Policies.Run(ctx, c.home) })
	}
	keep("targets", func(ctx context.Context) error { c.runTargets(ctx); return ctx.Err() })
	if c.cfg.Router != nil {
		keep("API of home", func(ctx context.Context) error { c.cfg.Router.Serve(ctx, c.gate()); return ctx.Err() })
	}
	wg.Wait()
	return ctx.Err()
}

// admission installs, once, the policies with which the API server prepares pods of offloaded namespaces.
func (c *Consumer) admission(ctx context.Context) error {
	if err := policy.EnsureAdmission(ctx, c.cfg.Home); err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

// gate routes pods of home that run away to home's API server.
func (c *Consumer) gate() *homeapi.Gate {
	api := c.cfg.Home.Host
	if u, err := url.Parse(api); err == nil && u.Host != "" {
		api = u.Host
	}
	return &homeapi.Gate{API: api, Names: homeapi.Names, Ours: c.runsAway, Log: c.cfg.Log.With("part", "homeapi")}
}

// worded records events in home's terms.
type worded struct {
	record.EventRecorder
	words translate.Words
}

func (w worded) Event(o runtime.Object, kind, reason, message string) {
	w.EventRecorder.Event(o, kind, reason, w.words.Of(message))
}

func (w worded) Eventf(o runtime.Object, kind, reason, format string, args ...any) {
	w.Event(o, kind, reason, fmt.Sprintf(format, args...))
}
