// Package offload runs pods of this cluster on others, and pods of others on
// this one. It wires the parts; what each does is in its own package comment and
// in docs/offload.md.
//
// It reads the peers of the fabric, the labels of namespaces, and the Nodes that
// stand for targets. Peers are one source of targets; others tell of theirs by
// SetTargets. It alone decides which virtual nodes exist: those of each target, from
// its first offer until it is none any more, whatever its link does in between. And
// it alone gives twins back, of namespaces that are not offloaded any more.
//
// Restart: nothing is remembered outside the clusters' own objects, and nothing
// that runs is touched. Failure as the user sees it: in Status, in the conditions
// of the virtual node and in the events of pods. Every part that fails is started
// again, with growing pauses, and holds up no other.
package offload

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
	"rivulet/offload/guests"
	"rivulet/offload/move"
	"rivulet/offload/netpol"
	"rivulet/offload/offer"
	"rivulet/offload/policy"
	"rivulet/offload/target"
	"rivulet/offload/tenancy"
	"rivulet/offload/volume"
)

// Peers is what offloading needs of the fabric.
type Peers interface {
	// Links lists the peers that have a tunnel, up or not. A peer that is missing
	// is no peer any more.
	Links() []peer.Link
	// Changed returns a channel that gets a value after Links changed, and the
	// function that ends the subscription.
	Changed() (<-chan struct{}, func())
	// TLS is what a client needs to reach the peer's control address.
	TLS(id peer.ID) (certPEM, keyPEM, serverCertPEM []byte, serverName string, err error)
	// Client reaches the peer's control routes under the URL.
	Client(id peer.ID) (*http.Client, string, error)
	// Dial opens a connection inside the tunnel.
	Dial(ctx context.Context, network, addr string) (net.Conn, error)
	// Handle serves a route to peers.
	Handle(pattern string, h http.Handler)
	// Pass hands over connections to our control address inside the tunnel whose TLS
	// clients ask for one of the names; a nil h ends it.
	Pass(h func(net.Conn), names ...string)
}

// Config is what an Offload needs. All fields but Share, HandBack, Grace, Policies, Missing and Isolation are required.
type Config struct {
	Home        *rest.Config
	ClusterID   string
	ClusterName func() string // for messages; it may change
	NodeName    string        // of the home node on which this runs
	NodeIP      netip.Addr    // its address, on which virtual nodes serve their kubelet API
	PodCIDR     netip.Prefix
	// Control is the control address inside the tunnel, as this cluster sees it.
	Control netip.AddrPort
	// ServerTLSDir is the engine's server/tls folder.
	ServerTLSDir string
	Peers        Peers
	// Share bounds what is lent to all consumers together; nil lends everything.
	Share func() offer.Share
	// HandBack is how long pods may stay on a target that lends less than they use,
	// Grace how long a consumer may use more than its part; 0 is the default.
	HandBack, Grace time.Duration
	// Volumes are the folders of this device's volumes; nil carries no data.
	Volumes Volumes
	// Policies knows the NetworkPolicies of home and the pods that they speak of; nil
	// makes one, for reflection alone.
	Policies *netpol.Watcher
	// Missing is how long a target may be without nodes of a platform before the virtual
	// node of it goes; 0 is DefaultMissing.
	Missing time.Duration
	// Isolation keeps the pods of other clusters apart; nil does not.
	Isolation *Isolation
	// Images says for which architectures the images are made that home knows; nil waits
	// for what targets say.
	Images func() (map[string][]string, error)
	Log    *slog.Logger
}

// Offload is both sides of offloading.
type Offload struct {
	cfg    Config
	home   kubernetes.Interface
	policy *policy.Watcher
	// ownPolicies is set where nobody else runs cfg.Policies.
	ownPolicies bool
	tenancy     *tenancy.Tenancy
	guests      *guests.Guests
	recorder    record.EventRecorder
	volumes     *volume.Controller
	mover       *move.Mover // guarded by mu; nil before Run, and where there are no folders
	events      record.EventBroadcaster

	retarget chan struct{} // wakes runTargets

	mu       sync.Mutex
	targets  map[target.Kind]targets
	stacks   map[string]*stack // by target
	served   map[string]bool   // targets that had a stack in this run, or have ended
	problems map[string]string // what does not run, and why, by part
}

// New makes an Offload and adds the provider's routes to the fabric.
func New(cfg Config) (*Offload, error) {
	if cfg.Home == nil || cfg.Peers == nil || cfg.Log == nil || cfg.ClusterID == "" || !cfg.NodeIP.IsValid() || !cfg.PodCIDR.IsValid() {
		return nil, errors.New("offload: Home, Peers, Log, ClusterID, NodeIP and PodCIDR must be set")
	}
	if cfg.HandBack == 0 {
		cfg.HandBack = DefaultHandBack
	}
	if cfg.Missing == 0 {
		cfg.Missing = DefaultMissing
	}
	cfg.Home = rest.CopyConfig(cfg.Home)
	cfg.Home.QPS, cfg.Home.Burst = 200, 400
	ownPolicies := cfg.Policies == nil
	if ownPolicies {
		cfg.Policies = netpol.NewWatcher(cfg.Log.With("part", "policies"))
	}
	client, err := kubernetes.NewForConfig(cfg.Home)
	if err != nil {
		return nil, fmt.Errorf("offload: client of home: %w", err)
	}
	o := &Offload{
		cfg: cfg, home: client, ownPolicies: ownPolicies,
		policy:   policy.New(client, cfg.Log.With("part", "policy")),
		retarget: make(chan struct{}, 1), targets: map[target.Kind]targets{},
		stacks: map[string]*stack{}, served: map[string]bool{}, problems: map[string]string{},
	}
	o.guests = guests.New(guests.Config{Client: client, IsPeer: o.isPeer, Log: cfg.Log.With("part", "guests")})
	o.tenancy, err = tenancy.New(tenancy.Config{
		Local: cfg.Home, ClusterName: cfg.ClusterName, Log: cfg.Log.With("part", "tenancy"),
		PeerID: rpc.PeerID, PeerName: o.peerName, Neighbours: o.neighbours, Share: cfg.Share, Lends: o.lends,
		Grace: cfg.Grace, Volumes: cfg.Volumes,
	})
	if err != nil {
		return nil, err
	}
	for pattern, handler := range o.tenancy.Routes() {
		cfg.Peers.Handle(pattern, o.guests.Hear(handler))
	}
	return o, nil
}

// Run serves both sides until ctx ends; it may be called once.
func (o *Offload) Run(ctx context.Context) error {
	o.events = record.NewBroadcaster(record.WithContext(ctx))
	defer o.events.Shutdown()
	o.events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: o.home.CoreV1().Events("")})
	o.recorder = o.events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "rivulet", Host: o.cfg.NodeName})

	var wg sync.WaitGroup
	o.volumes = o.newVolumes()
	wg.Go(func() { o.keep(ctx, "volumes", o.volumes.Run) })
	if o.cfg.Volumes != nil {
		wg.Go(func() { o.keep(ctx, "moves of volumes", o.runMoves) })
	}
	wg.Go(func() { o.keep(ctx, "policy", o.policy.Run) })
	wg.Go(func() { o.keep(ctx, "pending pods", o.takeUpPending) })
	wg.Go(func() { o.keep(ctx, "tenancy", o.tenancy.Run) })
	wg.Go(func() { o.keep(ctx, "admission", o.admission) })
	wg.Go(func() { o.followPeers(ctx) })
	wg.Go(func() { o.runTargets(ctx) })
	wg.Go(func() { o.keep(ctx, "platforms of images", o.fitImages) })
	wg.Go(func() { o.keep(ctx, "guests", o.followGuests) })
	wg.Go(func() { o.keep(ctx, "silent guests", o.guests.Run) })
	if o.ownPolicies {
		wg.Go(func() {
			o.keep(ctx, "policies", func(ctx context.Context) error { return o.cfg.Policies.Run(ctx, o.home) })
		})
	}
	if o.cfg.Isolation != nil {
		wg.Go(func() { o.keep(ctx, "isolation", o.isolate) })
	}
	stop := o.serveHomeAPI(ctx, &wg)
	<-ctx.Done()
	stop()
	wg.Wait()
	return ctx.Err()
}

// admission has the API server prepare pods of offloaded namespaces, once.
func (o *Offload) admission(ctx context.Context) error {
	if err := policy.EnsureAdmission(ctx, o.cfg.Home); err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

// ShareChanged tells consumers of another Config.Share at once.
func (o *Offload) ShareChanged() { o.tenancy.ShareChanged() }

func (o *Offload) peerName(id peer.ID) string {
	for _, l := range o.cfg.Peers.Links() {
		if l.ID == id {
			return l.Name
		}
	}
	return ""
}

func (o *Offload) isPeer(id peer.ID) bool {
	return slices.ContainsFunc(o.cfg.Peers.Links(), func(l peer.Link) bool { return l.ID == id })
}

func (o *Offload) neighbours() map[peer.ID]netip.Prefix {
	out := map[peer.ID]netip.Prefix{}
	for _, l := range o.cfg.Peers.Links() {
		out[l.ID] = l.Remote
	}
	return out
}
