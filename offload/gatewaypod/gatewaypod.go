// Package gatewaypod is home's side of the network of a burst (docs/design/burst-network.md): it maintains the gateway
// pod in the namespace of a foreign cluster, connects the tunnel to it, configures it, and makes home's Services there.
// It reads Services and EndpointSlices of offloaded namespaces at home, and at the campus home's pods and its own
// objects. It alone writes the objects labelled rivulet.dev/part=gateway there: a Secret, a Deployment, Services and
// NetworkPolicies. Restart: all state is in that Secret. While the campus is unreachable everything there stays as it
// is. Failure: Status, in `rivulet burst status`.
package gatewaypod

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"rivulet/fabric/changes"
	"rivulet/fabric/gateway/gatewayproto"
	"rivulet/offload/foreign"
)

// Fabric is the part of the fabric that a gateway uses.
type Fabric interface {
	// SetGateway makes the gateway a peer of the tunnel; an invalid prefix removes it.
	SetGateway(name, publicKey string, prefix netip.Prefix)
	GatewayPrefix(name string, previous netip.Prefix) (netip.Prefix, error)
	// GatewayConfig returns home's public key, its pod CIDR, and its addresses for the gateway.
	GatewayConfig() (publicKey string, pods netip.Prefix, udp, streams []netip.AddrPort)
	// GatewayStream passes a connection to the tunnel; the caller closes its own copy.
	GatewayStream(conn net.Conn) error
	GatewayPath(ctx context.Context, name string) (gatewayproto.Path, bool)
}

// How the tunnel reaches the gateway.
const (
	TransportAuto   = "auto"   // UDP if it passes, otherwise streams
	TransportStream = "stream" // through the API server only
	TransportUDP    = "udp"    // UDP only; control messages still pass the API server
)

// Config are the dependencies of a Gateway. All but Image, Program, Zone and HomeAPI must be set.
type Config struct {
	// Name is that of the target, ClusterID home's.
	Name, ClusterID string
	// Campus is a configuration for the foreign cluster, without translation; Namespace is the one there.
	Campus    *rest.Config
	Namespace string
	// Labels are on every object that is made there, and on home's pods there.
	Labels map[string]string
	Home   kubernetes.Interface
	// Reflects reports whether Services of a namespace of home are there; Changed reports changes of that.
	Reflects func(namespace string) bool
	Changed  func() (<-chan struct{}, func())
	// ServiceName is the name there of a Service of home.
	ServiceName func(namespace, name string) string
	Transport   string
	Fabric      Fabric
	// Image has the gateway's program as its entry point. Without it Shell is run, and the program for its architecture
	// (a GOARCH), from Program, is copied into it.
	Image   string
	Shell   string // DefaultShell if empty
	Program func(arch string) ([]byte, error)
	// Zone is the domain of home's cluster; cluster.local if empty.
	Zone string
	// HomeAPI is where home serves its API server to away pods (offload/homeapi), in its pod CIDR. Not valid: no way
	// there.
	HomeAPI netip.AddrPort
	Log     *slog.Logger
}

// Status is the state of a gateway.
type Status struct {
	// Ready: pods there and home reach each other; otherwise Reason has the cause.
	Ready  bool   `json:"ready"`
	Reason string `json:"reason,omitempty"`
	Pod    string `json:"pod,omitempty"`
	// Transport is "udp ADDRESS" or "stream through the API server".
	Transport string        `json:"transport,omitempty"`
	RTT       time.Duration `json:"rtt,omitempty"` // nanoseconds
	// Rates over the last 10 s, in bytes per second.
	Receiving uint64 `json:"receiving"`
	Sending   uint64 `json:"sending"`
	Received  uint64 `json:"received"` // bytes
	Sent      uint64 `json:"sent"`
	// Prefix is that of the pods there in home's view.
	Prefix   netip.Prefix       `json:"prefix,omitzero"`
	Services int                `json:"services"`
	Flows    gatewayproto.Flows `json:"flows"`
	Problems []string           `json:"problems,omitempty"`
}

// Gateway is one gateway. Methods may be called concurrently.
type Gateway struct {
	cfg    Config
	campus kubernetes.Interface
	kept   *foreign.Kept // of its objects
	log    *slog.Logger
	name   string // of its objects

	mu       sync.Mutex
	want     gatewayproto.Gateway // Generation 0 before the state is loaded
	table    *table
	services map[string]gatewayproto.Service // by namespace/name; IP is the campus's
	pod      string                          // the running one
	linked   bool                            // a stream is open
	last     gatewayproto.Status             // of the pod
	path     gatewayproto.Path
	pathUp   bool
	rate     rate
	dns      netip.Addr
	problems map[string]string
	subs     changes.Signal // results of Home, Away and DNS
	news     changes.Signal // of want
}

// New makes one. It does not use the network.
func New(cfg Config) (*Gateway, error) {
	if cfg.Name == "" || cfg.ClusterID == "" || cfg.Campus == nil || cfg.Namespace == "" || len(cfg.Labels) == 0 || cfg.Home == nil ||
		cfg.Reflects == nil || cfg.Changed == nil || cfg.ServiceName == nil || cfg.Fabric == nil || cfg.Log == nil {
		return nil, errors.New("gateway: a field of Config is not set")
	}
	switch cfg.Transport {
	case TransportAuto, TransportStream, TransportUDP:
	default:
		return nil, fmt.Errorf("gateway: %q is no transport: use auto, stream or udp", cfg.Transport)
	}
	if cfg.Image == "" && cfg.Program == nil {
		return nil, errors.New("gateway: there is neither an image nor a program: name an image")
	}
	if cfg.Shell == "" {
		cfg.Shell = DefaultShell
	}
	if cfg.Zone == "" {
		cfg.Zone = "cluster.local"
	}
	client, err := kubernetes.NewForConfig(cfg.Campus)
	if err != nil {
		return nil, fmt.Errorf("gateway: client of %s: %w", cfg.Name, err)
	}
	return &Gateway{cfg: cfg, campus: client, kept: &foreign.Kept{From: foreign.Origin{Name: cfg.Campus.Host, Cure: "rivulet burst list"}}, log: cfg.Log.With("gateway", cfg.Name),
		name: "rivulet-gateway-" + strings.ToLower(cfg.ClusterID[:min(6, len(cfg.ClusterID))]), services: map[string]gatewayproto.Service{},
		problems: map[string]string{}}, nil
}

// Run makes and maintains it until ctx ends or a part of it fails; the caller runs it again, after a pause. The objects
// at the campus stay.
func (g *Gateway) Run(ctx context.Context) error {
	if err := g.load(ctx); err != nil {
		g.problem("state", err)
		return err
	}
	g.problem("state", nil)
	if err := g.ensure(ctx); err != nil {
		g.problem("objects", err)
		return err
	}
	g.problem("objects", nil)
	defer g.cfg.Fabric.SetGateway(g.cfg.Name, "", netip.Prefix{})
	return together(ctx, g.followPods, g.followServices, g.followHome, g.save, g.link, g.control, g.measure)
}

// Home translates the address of one of home's pods there to home's view. The pod is reachable from then on.
func (g *Gateway) Home(real netip.Addr) (netip.Addr, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.table == nil {
		return netip.Addr{}, false
	}
	seen, isNew := g.table.see(real, time.Now())
	if isNew {
		g.renew()
	}
	return seen, seen.IsValid()
}

// Away translates the address of a pod in home's view to that at the campus: its real one, if it is one of home's pods
// there. The gateway uses home's addresses for pods of home.
func (g *Gateway) Away(seen netip.Addr) (netip.Addr, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.want.Prefix.Contains(seen) {
		if g.table == nil {
			return netip.Addr{}, false
		}
		real, ok := g.table.bySeen[seen]
		return real, ok
	}
	return seen, g.want.Home.Contains(seen)
}

// DNS is the DNS configuration of the home namespace's pods there; false before it is loaded.
func (g *Gateway) DNS(namespace string) (*corev1.PodDNSConfig, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.dns.IsValid() {
		return nil, false
	}
	dots := "5"
	zone := "svc." + g.cfg.Zone
	return &corev1.PodDNSConfig{
		Nameservers: []string{g.dns.String()}, Searches: []string{namespace + "." + zone, zone, g.cfg.Zone},
		Options: []corev1.PodDNSConfigOption{{Name: "ndots", Value: &dots}},
	}, true
}

// Changed returns a channel that gets a value after the results of Home, Away or DNS have changed, and the function
// that ends the subscription.
func (g *Gateway) Changed() (<-chan struct{}, func()) { return g.subs.Changed() }

// renew computes the configuration again. mu is held.
func (g *Gateway) renew() {
	next := g.want
	next.Pods = g.table.pods()
	next.Services = sorted(g.services)
	public, home, udp, streams := g.cfg.Fabric.GatewayConfig()
	next.PublicKey, next.Home, next.Zone = public, home, g.cfg.Zone
	next.UDP, next.Streams, next.StreamsOnly = udp, streams, false
	switch g.cfg.Transport {
	case TransportStream:
		next.UDP, next.Streams, next.StreamsOnly = nil, nil, true
	case TransportUDP:
		next.Streams = nil
	}
	if equal(next, g.want) {
		return
	}
	next.Generation = g.want.Generation + 1
	g.want = next
	g.news.Notify()
}

// followHome checks regularly for a change of home's addresses or key.
func (g *Gateway) followHome(ctx context.Context) error {
	for {
		g.mu.Lock()
		prefix := g.want.Prefix
		g.renew()
		g.mu.Unlock()
		if free, err := g.cfg.Fabric.GatewayPrefix(g.cfg.Name, prefix); err == nil && free != prefix {
			return fmt.Errorf("gateway: %s is a network of this host now; another prefix is taken", prefix)
		}
		if !changes.Wait(ctx, homeEvery) {
			return ctx.Err()
		}
	}
}

const homeEvery = 5 * time.Second

// problem records the error of a part; nil clears it.
func (g *Gateway) problem(what string, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err == nil {
		delete(g.problems, what)
		return
	}
	if errors.Is(err, context.Canceled) {
		return
	}
	if g.problems[what] != err.Error() {
		g.log.Warn("gateway", "part", what, "err", err)
	}
	g.problems[what] = err.Error()
}

// together runs all parts until ctx ends or one of them returns; it then ends the others. It returns the first error.
func together(ctx context.Context, parts ...func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for _, run := range parts {
		wg.Go(func() { cancel(run(ctx)) })
	}
	wg.Wait()
	return context.Cause(ctx)
}
