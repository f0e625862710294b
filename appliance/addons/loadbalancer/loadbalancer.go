// Package loadbalancer assigns this device's LAN addresses to Services of type LoadBalancer: kube-proxy then accepts
// traffic from the LAN to the addresses in a Service's status.
//
// It watches Services of that type, and reads the device's LANs (from netmon, as events) and the ports with a listening
// program (/proc/net; at each change, and every 30 s while there is such a Service). It alone writes
// status.loadBalancer of Services whose loadBalancerClass is empty or rivulet.dev/lan, unless another controller has
// written there. Restart: all is computed again, and a correct status is not written; meanwhile addresses stay.
// Failure: a Service whose ports are in use stays pending; an event and `rivulet status` name the port, its user, and
// the cure.
package loadbalancer

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"rivulet/appliance/health"
	"rivulet/fabric/changes"
	"rivulet/fabric/netmon"
	"rivulet/offload/policy"
)

// Class is this controller's loadBalancerClass; it also serves an empty one.
const Class = "rivulet.dev/lan"

// fieldManager identifies this package's writes.
const fieldManager = "rivulet-loadbalancer"

// defaultLook is the interval of checks of the device's ports while a Service needs some: the kernel has no event for a
// new listener.
const defaultLook = 30 * time.Second

// LANs is the needed part of netmon.Monitor.
type LANs interface {
	LANs() netmon.LANs
	Changed() (<-chan struct{}, func())
}

// Node is another node of the cluster on a LAN of this device.
type Node struct {
	Name  string
	Addr  netip.Addr
	Taken map[Port]bool // ports that its programs use
}

// Config of a Controller. All fields must be set but Yields, Nodes and Listeners.
type Config struct {
	Client kubernetes.Interface
	LANs   LANs
	// Own are the device's own ports, with their purpose.
	Own map[Port]string
	// Yields reports whether the device itself listens on a port that it leaves to a Service; nil is none.
	Yields func(Port) bool
	// Nodes are other nodes, whose kube-proxy accepts the same traffic, and NodesChanged their changes; nil are none.
	Nodes        func() []Node
	NodesChanged func() (<-chan struct{}, func())
	// Opened receives the Services that have their addresses.
	Opened *Opened
	Health *health.Tracker
	Log    *slog.Logger
	// Listeners returns the ports with a listener at any of the addresses; nil reads them from the kernel.
	Listeners func(addrs []netip.Addr) map[Port]bool
}

// Controller assigns addresses to Services.
type Controller struct {
	cfg      Config
	log      *slog.Logger
	services corelisters.ServiceLister
	recorder record.EventRecorder
	memory   memory
	reported map[string]string // the last event of each Service
	every    time.Duration
}

// New returns a Controller that does nothing yet.
func New(cfg Config) *Controller {
	if cfg.Listeners == nil {
		cfg.Listeners = listeners
	}
	return &Controller{cfg: cfg, log: cfg.Log, memory: memory{}, reported: map[string]string{}, every: defaultLook}
}

// Run works until ctx ends; it may be called once. It calls ready after the first pass over all Services.
func (c *Controller) Run(ctx context.Context, ready func()) error {
	events := record.NewBroadcaster(record.WithContext(ctx))
	defer events.Shutdown()
	events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: c.cfg.Client.CoreV1().Events("")})
	c.recorder = events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: Class})

	factory := informers.NewSharedInformerFactoryWithOptions(c.cfg.Client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("spec.type", string(corev1.ServiceTypeLoadBalancer)).String()
	}))
	services := factory.Core().V1().Services()
	c.services = services.Lister()
	changed := make(chan struct{}, 1)
	kick := func(any) {
		changes.Poke(changed)
	}
	registration, err := services.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: kick, UpdateFunc: func(_, o any) { kick(o) }, DeleteFunc: kick,
	})
	if err != nil {
		return fmt.Errorf("loadbalancer: %w", err)
	}
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	if !cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		return nil // ctx ended
	}
	lans, end := c.cfg.LANs.Changed()
	defer end()
	if c.cfg.NodesChanged != nil {
		var all changes.Signal
		merged, stop := all.Changed()
		defer stop()
		all.Follow(ctx, c.cfg.LANs.Changed, c.cfg.NodesChanged)
		lans = merged
	}
	kick(nil)
	return c.follow(ctx, changed, lans, ready)
}

// follow computes everything again after each change: there are few Services of this kind on a device.
func (c *Controller) follow(ctx context.Context, services, lans <-chan struct{}, ready func()) error {
	timer := time.NewTimer(c.every)
	defer timer.Stop()
	var before map[Port]bool
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-services:
		case <-lans:
		case <-timer.C:
			if now := c.listening(); now == nil || sameKeys(now, before) {
				c.rest(timer)
				continue
			}
		}
		before = c.listening()
		if err := c.settle(ctx, before); err != nil && ctx.Err() == nil {
			c.log.Warn("cannot give Services their addresses, trying again", "err", err)
			before = map[Port]bool{{}: true} // differs from any: the timer retries
			timer.Reset(time.Second)
			continue
		}
		ready()
		c.rest(timer)
	}
}

// rest starts the timer for the next check, if any Service wants ports.
func (c *Controller) rest(timer *time.Timer) {
	timer.Stop()
	if len(c.wanted()) > 0 {
		timer.Reset(c.every)
	}
}

// listening returns the ports that Services want and that have, or recently had, a listener; nil if no Service wants
// any.
func (c *Controller) listening() map[Port]bool {
	wanted := c.wanted()
	if len(wanted) == 0 {
		return nil
	}
	all := c.memory.recall(c.cfg.Listeners(Addresses(c.cfg.LANs.LANs())), time.Now())
	out := map[Port]bool{}
	for p := range wanted {
		if all[p] && (c.cfg.Yields == nil || !c.cfg.Yields(p)) {
			out[p] = true
		}
	}
	return out
}

func (c *Controller) wanted() map[Port]bool {
	out := map[Port]bool{}
	for _, s := range c.ours() {
		for _, p := range portsOf(s) {
			out[p] = true
		}
	}
	return out
}

// ours are the Services to be served, the oldest first.
func (c *Controller) ours() []*corev1.Service {
	all, err := c.services.List(labels.Everything())
	if err != nil {
		return nil // a cache's list does not fail
	}
	all = slices.DeleteFunc(all, func(s *corev1.Service) bool {
		class := s.Spec.LoadBalancerClass
		return s.Spec.Type != corev1.ServiceTypeLoadBalancer || class != nil && *class != Class || s.DeletionTimestamp != nil || foreign(s)
	})
	slices.SortFunc(all, older)
	return all
}

// foreign reports whether another controller has written the Service's addresses: two would overwrite each other for
// ever.
func foreign(s *corev1.Service) bool {
	if len(s.Status.LoadBalancer.Ingress) == 0 {
		return false
	}
	return !slices.ContainsFunc(s.ManagedFields, func(m metav1.ManagedFieldsEntry) bool {
		return m.Manager == fieldManager && m.FieldsV1 != nil && strings.Contains(string(m.FieldsV1.Raw), `"f:ingress"`)
	})
}

// settle writes the status of every Service, and sends events.
func (c *Controller) settle(ctx context.Context, taken map[Port]bool) error {
	services := c.ours()
	tenants, err := c.tenants(ctx, services)
	if err != nil {
		return err
	}
	var nodes []Node
	if c.cfg.Nodes != nil {
		nodes = c.cfg.Nodes()
	}
	decisions := assign(services, situation{
		addrs: Addresses(c.cfg.LANs.LANs()), nodes: nodes, own: c.cfg.Own, tenants: tenants,
		listener: func(p Port) (string, bool) { return listenerName(p), taken[p] },
	})
	told := map[string]string{}
	opened := []open{}
	for i, s := range services {
		d, key := decisions[i], s.Namespace+"/"+s.Name
		if err := c.write(ctx, s, d.addrs); err != nil {
			return err
		}
		if len(d.addrs) > 0 {
			opened = append(opened, open{key, d.addrs, portsOf(s)})
		}
		told[key] = d.String()
		if c.reported[key] != told[key] {
			c.report(s, key, d)
		}
	}
	for key := range c.reported {
		if _, there := told[key]; !there {
			c.cfg.Health.ClearFor(health.ServicePending, key)
		}
	}
	c.reported = told
	c.cfg.Opened.services.Store(&opened)
	return nil
}

// tenants are the namespaces of other clusters among those of the Services. Admission refuses such Services there; this
// is a second check.
func (c *Controller) tenants(ctx context.Context, services []*corev1.Service) (map[string]bool, error) {
	out := map[string]bool{}
	for _, s := range services {
		if _, known := out[s.Namespace]; known {
			continue
		}
		ns, err := c.cfg.Client.CoreV1().Namespaces().Get(ctx, s.Namespace, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("loadbalancer: namespace %s: %w", s.Namespace, err)
		}
		out[s.Namespace] = err == nil && ns.Labels[policy.OriginLabel] != ""
	}
	return out, nil
}

func (c *Controller) write(ctx context.Context, s *corev1.Service, addrs []netip.Addr) error {
	var want []corev1.LoadBalancerIngress
	for _, a := range addrs {
		want = append(want, corev1.LoadBalancerIngress{IP: a.String()})
	}
	sameIP := func(a, b corev1.LoadBalancerIngress) bool { return a.IP == b.IP && a.Hostname == b.Hostname }
	if slices.EqualFunc(want, s.Status.LoadBalancer.Ingress, sameIP) {
		return nil
	}
	update := s.DeepCopy()
	update.Status.LoadBalancer.Ingress = want
	_, err := c.cfg.Client.CoreV1().Services(s.Namespace).UpdateStatus(ctx, update, metav1.UpdateOptions{FieldManager: fieldManager})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil // its change triggers the next pass
	}
	if err != nil {
		return fmt.Errorf("loadbalancer: status of service %s/%s: %w", s.Namespace, s.Name, err)
	}
	return nil
}

func (c *Controller) report(s *corev1.Service, key string, d decision) {
	if d.reason == "" {
		c.cfg.Health.ClearFor(health.ServicePending, key)
		c.recorder.Event(s, corev1.EventTypeNormal, reasonGiven, d.String())
		return
	}
	c.cfg.Health.SetFor(health.ServicePending, key, d.text, d.cure)
	c.recorder.Event(s, corev1.EventTypeWarning, d.reason, d.String())
	c.log.Info("a Service stays without address", "service", key, "reason", d.String())
}

func sameKeys(a, b map[Port]bool) bool {
	if len(a) != len(b) {
		return false
	}
	for k := range a {
		if !b[k] {
			return false
		}
	}
	return true
}
