// Package ingress serves Ingresses on ports 80 and 443 of the device with `ingress: true` in the configuration. It runs
// in the supervisor and needs no image. Otherwise an Ingress without a controller gets an event.
//
//	browser ─▶ :80, :443 ─▶ table of hosts and paths ─▶ a ready pod, at home or away
//	                              ▲
//	Ingresses of its class, their Services, EndpointSlices and Secrets
//
// It reads Ingresses, IngressClasses and Namespaces; Services and EndpointSlices of namespaces with an Ingress of its
// class, pods of such twins; only the Secrets that such Ingresses name; the device's LANs. It alone writes the
// IngressClass `rivulet` and status.loadBalancer of Ingresses of its class.
//
// Restart: the table is made again, and a correct status is not written. While the API server is away the last table
// stays in force. Failure: an event of the Ingress and the problem `ingress-unserved`, with a cure; for a port that
// another program holds the problem `ingress-port`, and a retry.
package ingress

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"rivulet/appliance/addons/loadbalancer"
	"rivulet/appliance/health"
	"rivulet/fabric/changes"
)

// The ports that browsers use.
const (
	WebPort    = 80
	SecurePort = 443
)

// fieldManager identifies this package's writes.
const fieldManager = "rivulet-ingress"

// Pauses of the loop.
const (
	pause  = 100 * time.Millisecond // between two tables
	retry  = 2 * time.Second        // after an error of the API server
	absent = 5 * time.Second        // a class and a controller may be created right after their Ingress
)

// Page is the device's status page, which shares port 80.
type Page interface {
	// Lend frees port 80, or takes it back.
	Lend(lent bool)
	// Offer answers a request for the page, and returns false for any other.
	Offer(w http.ResponseWriter, r *http.Request) bool
}

// Config of a Controller. All fields must be set.
type Config struct {
	Client kubernetes.Interface
	LANs   loadbalancer.LANs
	// Networks are those of pods, at home and away. Endpoints outside are not served.
	Networks func() []netip.Prefix
	// Reaches reports whether an address leads to a pod now, and not to the device itself, a peer's device or its LAN.
	// It is called before each connection.
	Reaches func(netip.Addr) bool
	Page    Page
	// File is the path of the configuration, for cures.
	File   string
	Health *health.Tracker
	Log    *slog.Logger
	// Ports replace WebPort and SecurePort in tests.
	Ports [2]int
}

// Controller serves Ingresses while it is switched on.
type Controller struct {
	cfg      Config
	log      *slog.Logger
	recorder record.EventRecorder
	on       atomic.Bool
	switched chan struct{}
	changed  chan struct{}
	server   *server
	certs    certificates
	reported map[string]map[string]bool // last events of each Ingress, by its UID
	missed   map[string]time.Time       // since when an Ingress has no controller, by its UID
	absent   time.Duration              // the constant; tests shorten it
}

// New returns a Controller that is switched off.
func New(cfg Config) *Controller {
	if cfg.Ports == [2]int{} {
		cfg.Ports = [2]int{WebPort, SecurePort}
	}
	return &Controller{
		cfg: cfg, log: cfg.Log, switched: make(chan struct{}, 1), changed: make(chan struct{}, 1), server: newServer(cfg),
		certs: certificates{}, reported: map[string]map[string]bool{}, missed: map[string]time.Time{}, absent: absent,
	}
}

// Switch turns it on or off. It may be called at any time, also on nil, which does nothing.
func (c *Controller) Switch(on bool) {
	if c != nil && c.on.Swap(on) != on {
		poke(c.switched)
	}
}

// Run works until ctx ends; it may be called once at a time. It calls ready after the first pass over all Ingresses.
func (c *Controller) Run(ctx context.Context, ready func()) error {
	events := record.NewBroadcaster(record.WithContext(ctx))
	defer events.Shutdown()
	events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: c.cfg.Client.CoreV1().Events("")})
	c.recorder = events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: ControllerName})
	for ctx.Err() == nil {
		if err := c.round(ctx, c.on.Load(), ready); err != nil {
			return fmt.Errorf("ingress: %w", err)
		}
	}
	return nil
}

// round works until ctx ends or Switch changes the state.
func (c *Controller) round(ctx context.Context, on bool, ready func()) error {
	clear(c.missed) // the switch creates its own class
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	factory := informers.NewSharedInformerFactory(c.cfg.Client, 0)
	defer factory.Shutdown()
	defer cancel()
	w, synced, err := c.watch(ctx, factory, on)
	if err != nil {
		return err
	}
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return nil // ctx ended
	}
	if on {
		running.Go(func() { c.server.run(ctx) })
	}
	lans, end := c.cfg.LANs.Changed()
	defer end()
	poke(c.changed)
	return c.follow(ctx, w, lans, ready)
}

// follow makes the table again after changes, several changes together.
func (c *Controller) follow(ctx context.Context, w *world, lans <-chan struct{}, ready func()) error {
	again := time.NewTimer(0)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.switched:
			if c.on.Load() != w.on {
				return nil
			}
			continue
		case <-c.changed:
		case <-lans:
		case <-again.C:
		}
		next, err := c.settle(ctx, w)
		if err != nil && ctx.Err() == nil {
			c.log.Warn("Ingresses are not settled, trying again", "err", err)
			next = retry
		}
		if err == nil {
			ready()
		}
		again.Stop()
		if next > 0 {
			again.Reset(next)
		}
		if !changes.Wait(ctx, pause) {
			return nil
		}
	}
}

// poke wakes the reader of c, once.
func poke(c chan struct{}) {
	changes.Poke(c)
}
