package external

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/connrotation"

	"rivulet/fabric/panics"
	"rivulet/offload/foreign"
	"rivulet/offload/offer"
	"rivulet/offload/target"
	"rivulet/offload/target/external/rewrite"
)

const Kind target.Kind = "burst"

// Network connects pods there and home; package gatewaypod has one.
type Network interface {
	// Home and Away translate addresses, see target.Target.
	Home(netip.Addr) (netip.Addr, bool)
	Away(netip.Addr) (netip.Addr, bool)
	// DNS is the DNS configuration of the home namespace's pods; false before it is loaded.
	DNS(namespace string) (*corev1.PodDNSConfig, bool)
}

// Config are the dependencies of a Target. Network, Received and CheckEvery may be left out.
type Config struct {
	// Node is the virtual node's name.
	Node       string
	Settings   Settings // complete
	Credential Credential
	Cluster    string // home's ID
	// ID is that of the target; empty is ID of server and namespace. It stays when the namespace gets another address.
	ID string
	// Network is nil if pods there and home do not reach each other.
	Network Network
	// Received is called with the target's state after every check; may be nil.
	Received func(Health)
	// CheckEvery is the interval of checks of the campus; zero is checkEvery.
	CheckEvery time.Duration
	Log        *slog.Logger
}

// Target is one namespace of a foreign cluster. It implements target.Target.
type Target struct {
	cfg     Config
	id      string
	raw     *rest.Config // without translation
	rest    *rest.Config
	client  kubernetes.Interface // with translation
	campus  kubernetes.Interface // without
	conns   *connrotation.Dialer
	streams *connrotation.Dialer
	link    target.Link
	kept    *foreign.Kept
	rules   rules
	reached bool // the way to home was ready once; used by the loop of Offers only

	mu   sync.Mutex
	used map[string]bool // namespaces that the engine uses in this run
}

var _ target.Target = (*Target)(nil)

// ID identifies a namespace of a cluster, whatever the target's name is.
func ID(server, namespace string) string {
	sum := sha256.Sum256([]byte(strings.TrimRight(server, "/") + "\x00" + namespace))
	return "burst." + hex.EncodeToString(sum[:8])
}

// New makes a Target. It does not use the network.
func New(cfg Config) (*Target, error) {
	raw, err := cfg.Credential.REST()
	if err != nil {
		return nil, err
	}
	cfg.CheckEvery = cmp.Or(cfg.CheckEvery, checkEvery)
	t := &Target{cfg: cfg, kept: &foreign.Kept{From: cfg.Credential.Origin()}, id: cmp.Or(cfg.ID, ID(cfg.Credential.Server, cfg.Settings.Namespace)), used: map[string]bool{}}
	t.conns, t.streams = connrotation.NewDialer(raw.Dial), connrotation.NewDialer(raw.Dial)
	raw.Dial = t.conns.DialContext
	raw.Wrap(t.link.Wrap)
	server, err := url.Parse(raw.Host)
	if err != nil {
		return nil, fmt.Errorf("burst: address of %s: %w", cfg.Settings.Name, err)
	}
	glass := rewrite.New(rewrite.Config{Names: rewrite.Names{Cluster: cfg.Cluster}, Namespace: cfg.Settings.Namespace,
		Prefix: server.Path, Prepare: t.prepare})
	t.raw, t.rest = raw, rest.CopyConfig(raw)
	t.rest.Wrap(glass.Wrap)
	t.rest.ContentType, t.rest.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON // the format that package rewrite supports
	if t.campus, err = kubernetes.NewForConfig(t.raw); err != nil {
		return nil, fmt.Errorf("burst: client of %s: %w", cfg.Settings.Name, err)
	}
	if t.client, err = kubernetes.NewForConfig(t.rest); err != nil {
		return nil, fmt.Errorf("burst: client of %s: %w", cfg.Settings.Name, err)
	}
	t.rest.Dial = t.streams.DialContext
	return t, nil
}

// for rewrite
func (t *Target) Name() string { return t.cfg.Node }

// ID identifies the namespace of the cluster.
func (t *Target) ID() string { return t.id }

// Client is a client of the campus through package rewrite.
func (t *Target) Client() kubernetes.Interface { return t.client }

// Config is that of Client, for connections of the caller's own.
func (t *Target) Config() *rest.Config { return rest.CopyConfig(t.rest) }

// Link is that of Client and Config.
func (t *Target) Link() *target.Link { return &t.link }

// Kept bounds what home keeps of the campus's objects.
func (t *Target) Kept() *foreign.Kept { return t.kept }

// Close drops the connections.
func (t *Target) Close() {
	t.conns.CloseAll()
	t.streams.CloseAll()
}

// Holds reports whether objects of the kind are reflected there. Services need the gateway, which makes its own;
// ordinary users may not write endpoints.
func (t *Target) Holds(kind string) bool { return kind == "ConfigMap" || kind == "Secret" }

// Namespace is the same name there, by package rewrite.
func (t *Target) Namespace(_ context.Context, home string) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.used[home] = true
	return home, nil
}

// Twins are the home namespaces with objects there now or soon.
func (t *Target) Twins(ctx context.Context) (map[string]string, error) {
	found, err := list(ctx, t.raw, t.cfg.Settings.Namespace, rewrite.HomeLabel+"="+t.cfg.Cluster)
	if err != nil {
		return nil, fmt.Errorf("burst: what is in namespace %s of %s: %w", t.cfg.Settings.Namespace, t.cfg.Settings.Name, err)
	}
	out := map[string]string{}
	for _, o := range found {
		if home := o.GetAnnotations()[rewrite.NamespaceAnnotation]; home != "" {
			out[home] = home
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for home := range maps.Keys(t.used) {
		out[home] = home
	}
	return out, nil
}

// Gone reports whether nothing of the home namespace is there, objects being deleted included.
func (t *Target) Gone(ctx context.Context, home string) (bool, error) {
	held, err := t.Twins(ctx)
	_, there := held[home]
	return err == nil && !there, err
}

// Release deletes the home namespace's objects there, and returns when they are gone.
func (t *Target) Release(ctx context.Context, home string) error {
	t.mu.Lock()
	delete(t.used, home)
	t.mu.Unlock()
	names := rewrite.Names{Cluster: t.cfg.Cluster}
	_, err := clear(ctx, t.raw, t.cfg.Settings.Namespace, rewrite.HomeLabel+"="+t.cfg.Cluster+","+rewrite.SpaceLabel+"="+names.Space(home))
	if err != nil {
		return fmt.Errorf("burst: give back namespace %s on %s: %w", home, t.cfg.Settings.Name, err)
	}
	return nil
}

// Home translates an address of a pod there.
func (t *Target) Home(addr netip.Addr) (netip.Addr, bool) {
	if t.cfg.Network == nil {
		return netip.Addr{}, false
	}
	return t.cfg.Network.Home(addr)
}

// Away translates an address of home.
func (t *Target) Away(addr netip.Addr) (netip.Addr, bool) {
	if t.cfg.Network == nil {
		return netip.Addr{}, false
	}
	return t.cfg.Network.Away(addr)
}

// Offers streams what the campus has capacity for, see Room.
func (t *Target) Offers(ctx context.Context) <-chan offer.Offer {
	out := make(chan offer.Offer, 1)
	ctx, end := context.WithCancelCause(ctx)
	go func() {
		defer func() { offer.End(ctx, out) }()
		defer end(nil)
		defer panics.To(end)
		t.follow(ctx, end, out)
	}()
	return out
}
