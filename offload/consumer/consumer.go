// Package consumer runs pods of one cluster, its home, on others. It wires the parts of home's side
// (docs/design/offload.md). It reads the labels of home's namespaces, pods, Nodes that stand for targets, and the last
// SetTargets. It alone decides which virtual nodes home has (those of each target, from its first offer until it is
// none any more, whatever its link does), and alone gives twins back. What it needs of its home and host is in its
// Config, so that several consumers run in one process. Restart: nothing is remembered outside the clusters' own
// objects, and nothing that runs is touched. Failure: in Problems, in the conditions of the virtual node and in the
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

	"rivulet/offload/consumer/move"
	"rivulet/offload/consumer/pod"
	"rivulet/offload/consumer/stream"
	"rivulet/offload/consumer/volume"
	"rivulet/offload/homeapi"
	"rivulet/offload/networkpolicy"
	"rivulet/offload/parts"
	"rivulet/offload/policy"
	"rivulet/offload/target"
)

// Config is what a Consumer needs. Home, ID, NodeIP, Authority and Log are required.
type Config struct {
	// Home reaches home's API server with all rights.
	Home *rest.Config
	// ID is home's, by which targets know whose the pods are.
	ID string
	// Host is the name of the node that events come from.
	Host string
	// NodeIP is the address on which virtual nodes serve their kubelet API, Authority what
	// signs for that.
	NodeIP    netip.Addr
	Authority stream.Authority
	// Address gives a virtual node an address of its own on this machine, until release is called;
	// nil leaves all at NodeIP.
	Address func(node string) (addr netip.Addr, release func(), err error)
	// NodePort is the port of the first one's, if nobody else has it; 0 is any.
	NodePort uint16
	// Everywhere says that home has no nodes of its own: all of its namespaces are offloaded, but
	// for those that are labelled off and the cluster's own. Pods get no tolerations then: who
	// binds them does not go by Rivulet's taints.
	Everywhere bool
	// Words are those of pods, claims and Services.
	Words pod.Words
	// Router leads pods away to home's API server; nil leads none.
	Router *homeapi.Router
	// HandBack is how long pods may stay on a target that lends less than they use; 0 is
	// DefaultHandBack.
	HandBack time.Duration
	// Missing is how long a target may be without nodes of a platform before the virtual
	// node of it goes; 0 is DefaultMissing.
	Missing time.Duration
	// Parting is how long pods stay at home that nobody can tell of any more; 0 is
	// DefaultParting.
	Parting time.Duration
	// Volumes are the folders of this device's volumes; nil moves no data.
	Volumes move.Local
	// Policies knows the NetworkPolicies of home and the pods that they speak of; nil
	// makes one, for reflection alone.
	Policies *networkpolicy.Watcher
	// Images says for which architectures the images are made that home knows; nil waits
	// for what targets say.
	Images func() (map[string][]string, error)
	// Moved is called after pods of home at a target may be others; nil is not.
	Moved func()
	// NodesChanged is called after a virtual node became ready, cordoned or neither; nil is not.
	NodesChanged func()
	Log          *slog.Logger
}

// Consumer is home's side of offloading. Its exported methods may be called at any time.
type Consumer struct {
	*parts.Parts
	cfg    Config
	home   kubernetes.Interface
	policy *policy.Watcher
	// ownPolicies is set where nobody else runs cfg.Policies.
	ownPolicies bool
	recorder    record.EventRecorder
	volumes     *volume.Controller
	retarget    chan struct{} // wakes runTargets

	mu      sync.Mutex
	mover   *move.Mover // nil before Run, and where there are no folders
	targets map[target.Kind]targets
	stacks  map[string]*stack    // by target
	parting map[string]time.Time // targets whose offers say that they lend nothing any more, since when
	served  map[string]bool      // targets that had a stack in this run, or have ended
	ended   map[string]bool      // targets that are known to be none any more
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
	if cfg.Moved == nil {
		cfg.Moved = func() {}
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
		retarget: make(chan struct{}, 1), targets: map[target.Kind]targets{}, stacks: map[string]*stack{},
		served: map[string]bool{}, ended: map[string]bool{}, parting: map[string]time.Time{},
	}, nil
}

// Run serves home until ctx ends; it may be called once.
func (c *Consumer) Run(ctx context.Context) error {
	events := record.NewBroadcaster(record.WithContext(ctx))
	defer events.Shutdown()
	events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: c.home.CoreV1().Events("")})
	c.recorder = worded{events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "rivulet", Host: c.cfg.Host}), c.cfg.Words}
	c.volumes = c.newVolumes()

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
		keep("platforms of images", c.fitImages)
	}
	if c.ownPolicies {
		keep("policies", func(ctx context.Context) error { return c.cfg.Policies.Run(ctx, c.home) })
	}
	wg.Go(func() { c.runTargets(ctx) })
	if c.cfg.Router != nil {
		wg.Go(func() { c.cfg.Router.Serve(ctx, c.gate()) })
	}
	wg.Wait()
	return ctx.Err()
}

// admission has the API server prepare pods of offloaded namespaces, once.
func (c *Consumer) admission(ctx context.Context) error {
	if err := policy.EnsureAdmission(ctx, c.cfg.Home); err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

// gate leads pods of home that run away to its API server.
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
	words pod.Words
}

func (w worded) Event(o runtime.Object, kind, reason, message string) {
	w.EventRecorder.Event(o, kind, reason, w.words.Of(message))
}

func (w worded) Eventf(o runtime.Object, kind, reason, format string, args ...any) {
	w.Event(o, kind, reason, fmt.Sprintf(format, args...))
}
