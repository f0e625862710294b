package pod

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"rivulet/fabric/changes"
	"rivulet/fabric/panics"
	"rivulet/offload/consumer/homecache"
	"rivulet/offload/consumer/pod/translate"
	"rivulet/offload/consumer/pod/twin"
	"rivulet/offload/policy"
	"rivulet/offload/target"
	"rivulet/offload/watch"
)

// workers are concurrent reconciliations, which mostly wait for the network. The provider's quota accounts for
// concurrent creations in one write.
const workers = 24

// Home is the cluster whose pods run elsewhere, as the Controllers of all its targets know it.
type Home struct {
	Client kubernetes.Interface
	// Cache shares the watch of home's pods with other targets; nil makes one.
	Cache *homecache.Cache
	// Node is home's own node, whose pods are not watched; "" if home has none.
	Node     string
	ID       string     // the cluster's
	HostIP   netip.Addr // of virtual nodes
	Words    translate.Words
	Recorder record.EventRecorder
	// Moved is notified after the result of Addresses may have changed; may be nil.
	Moved *changes.Signal
}

// Config are the dependencies of a Controller. All fields but Claims, Supply, Fit and NoHomeAPI are required.
type Config struct {
	Home       Home
	Target     target.Target
	Namespaces Namespaces
	Nodes      Nodes
	Claims     Claims // nil if the target has no volumes
	Supply     Supply // nil: nothing has to be brought
	Fit        Fit    // nil leaves pods that do not run on the target waiting
	// NoHomeAPI: there will be no way to home's API server.
	NoHomeAPI bool
	Log       *slog.Logger
}

// Namespaces are the offload policies of home's namespaces: a policy.Watcher. Call Resync after a change of Get.
type Namespaces interface {
	Get(name string) (policy.Namespace, bool)
	// Check refreshes the answer of Get from the API server.
	Check(ctx context.Context, name string) error
	Parse(ns *corev1.Namespace) (policy.Namespace, error)
}

// Nodes are the target's virtual nodes.
type Nodes interface {
	// Up reports whether the target is reachable. No status is written while it is not. Call Resync after a change to
	// true.
	Up() bool
	// Platform is that of a virtual node; empty does not restrict it.
	Platform(node string) (os, arch string)
}

// Supply copies to the target what its pods refer to: a reflect.Supply.
type Supply interface {
	// Bring returns when the target has the objects.
	Bring(ctx context.Context, all []policy.Reference) error
	// Check is called after a pod has stopped referring to an object.
	Check(policy.Object)
}

// Fit keeps pods off the target that do not run there. The results report whether admission already keeps new ones
// off; the error ErrNoOther leaves pods waiting.
type Fit interface {
	// Unfit is called for an image that does not run on an architecture, Unwelcome for an owner whose pods the target
	// refuses.
	Unfit(ctx context.Context, namespace, image, arch string) (kept bool, err error)
	Unwelcome(ctx context.Context, namespace string, owner metav1.OwnerReference) (kept bool, err error)
	// Elsewhere reports whether a pod that the target refuses for good may run somewhere else, by the policy of its
	// namespace; away: at another target, too.
	Elsewhere(ctx context.Context, home *corev1.Pod, ns policy.Namespace, away bool) (bool, error)
}

// rivulet is implemented by targets that are Rivulet clusters.
type rivulet interface {
	// Keeps reports whether the target replaces pods without a ReplicaSet (package replacement).
	Keeps() bool
	// HomeAddresses is the value of policy.HomeAddressesAnnotation for new pods on the target; "" is the target's own
	// addresses.
	HomeAddresses() string
	// Lost reports whether the target has stopped answering; its pods are not ready then. Call Resync after a change.
	Lost() bool
}

// Controller reconciles the pods bound to a target's virtual nodes with their wrappers and pods on the target. See the
// package comment.
type Controller struct {
	index

	queue  *watch.Retries[types.NamespacedName]
	ahead  *watch.Retries[string] // namespaces, see Prepare
	atHome *homecache.Informer    // of pods
	// reconnect triggers the renewal of all watches.
	reconnect chan struct{}

	life context.Context         // of Run, and of the twins
	end  context.CancelCauseFunc // of life

	complaints complaints
	ends       twin.Ends

	// Departed is notified after a pod of a namespace that is not offloaded is gone from home.
	Departed changes.Signal

	unstarted unstarted                                               // see busy
	open      func(ctx context.Context, home, name string) *twin.Twin // newTwin, except in tests
}

// New makes a Controller; Run starts it.
func New(cfg Config) *Controller {
	if cfg.Home.Cache == nil {
		cfg.Home.Cache = homecache.New(cfg.Log)
	}
	atHome := allBound(&cfg.Home)
	c := &Controller{
		index:     index{cfg: cfg, pods: bound{all: atHome, nodes: map[string]bool{}}, memory: newMemory()},
		atHome:    atHome,
		reconnect: make(chan struct{}, 1),
		queue:     watch.Queue[types.NamespacedName](50*time.Millisecond, 10*time.Second),
		ahead:     watch.Queue[string](time.Second, 10*time.Second),
	}
	c.rivulet, _ = cfg.Target.(rivulet)
	c.open = c.newTwin
	return c
}

// Run blocks until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	ctx, end := context.WithCancelCause(ctx)
	c.life, c.end = ctx, end
	var wg sync.WaitGroup
	defer func() {
		end(nil)
		c.queue.ShutDown()
		c.ahead.ShutDown()
		wg.Wait()
		c.twins.CloseAll()
	}()
	wg.Go(func() {
		defer panics.To(end)
		c.atHome.Run(ctx, c.pods.events(c))
	})
	if !cache.WaitForCacheSync(ctx.Done(), c.pods.synced) {
		return context.Cause(ctx)
	}
	wg.Go(func() {
		defer panics.To(end)
		c.adopt(ctx)
	})
	wg.Go(func() {
		defer panics.To(end)
		target.FollowLink(ctx, c.cfg.Target, func() {
			c.ahead.RetryAll()
			c.queue.RetryAll()
		})
	})
	wg.Go(func() { watch.Work(ctx, c.queue, workers, func(k types.NamespacedName) { c.handle(ctx, k) }) })
	wg.Go(func() { watch.Work(ctx, c.ahead, preparers, func(namespace string) { c.prepareTwin(ctx, namespace) }) })
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-c.reconnect:
			c.twins.Renew(func(home, name string) *twin.Twin { return c.open(ctx, home, name) })
		}
	}
}

// attempt bounds one reconciliation: requests over a dead connection would hold a worker, and there are few.
const attempt = 30 * time.Second

func (c *Controller) handle(ctx context.Context, k types.NamespacedName) {
	bounded, cancel := context.WithTimeout(ctx, attempt)
	err := c.reconcile(bounded, k)
	cancel()
	switch {
	case err == nil:
		c.queue.Forget(k)
		c.complaints.over(k)
	case ctx.Err() != nil:
	default:
		// A conflict only means that another writer was faster; the node reports a lost link, once.
		if !apierrors.IsConflict(err) && !errors.Is(err, errNotYet) && c.cfg.Nodes.Up() && c.complaints.isNews(k, err.Error(), time.Now()) {
			c.cfg.Log.Warn("pod not in step with the target", "namespace", k.Namespace, "pod", k.Name, "err", err)
		}
		c.queue.AddRateLimited(k)
	}
}

// adopt watches the twins of earlier runs, so that wrappers without a home pod are found and removed.
func (c *Controller) adopt(ctx context.Context) {
	pause := changes.Backoff{First: 100 * time.Millisecond, Longest: 10 * time.Second}
	held, err := c.cfg.Target.Twins(ctx)
	for err != nil && pause.Wait(ctx) {
		held, err = c.cfg.Target.Twins(ctx)
	}
	for home, name := range held {
		if ns, _ := c.cfg.Namespaces.Get(home); ns.Reflects(c.cfg.Target.Name()) {
			c.watch(home, name)
		}
	}
}

// watch watches the twin, unless it is watched already.
func (c *Controller) watch(home, name string) *twin.Twin {
	return c.twins.Ensure(home, name, func() *twin.Twin { return c.open(c.life, home, name) })
}

func (c *Controller) newTwin(ctx context.Context, home, name string) *twin.Twin {
	at := c.cfg.Target
	return twin.New(ctx, twin.Config{Home: home, Name: name, Cluster: c.cfg.Home.ID, Client: at.Client(), Kept: target.Kept(at), NoHomeAPI: c.cfg.NoHomeAPI, Ends: &c.ends,
		Events: twin.EventCopy{Home: c.cfg.Home.Client, Target: at.Name(), Words: c.cfg.Home.Words}, Moved: c.cfg.Home.Moved, User: &user{c, ctx, home}, Log: c.cfg.Log})
}

// user is the twin.User of the twin of a namespace.
type user struct {
	c    *Controller
	ctx  context.Context
	home string
}

func (u *user) Changed(pod string) {
	if pod == "" {
		u.c.resyncNamespace(u.home)
		return
	}
	u.c.queue.Add(types.NamespacedName{Namespace: u.home, Name: pod})
}

func (u *user) Lost(err error) {
	if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
		u.c.checkTwin(u.ctx, u.home)
	}
}

func (u *user) Failed(err error) { u.c.end(err) }

// Reconnect renews all watches, with a list, after a silence of the target: it may have been restored from a backup, and
// then has none of the versions from which they would continue.
func (c *Controller) Reconnect() {
	changes.Poke(c.reconnect)
}

// checkTwin drops the watches of a twin that is gone from the target or being deleted there, and reports whether it
// did.
func (c *Controller) checkTwin(ctx context.Context, home string) (gone bool) {
	held, err := c.cfg.Target.Twins(ctx)
	if err != nil {
		return false
	}
	if name, ok := held[home]; ok {
		if t := c.twins.Get(home); t == nil || t.Name == name {
			return false
		}
	}
	c.twins.Drop(home)
	c.Prepare(home)
	c.resyncNamespace(home)
	return true
}

// Watches reports whether the twin of the namespace is watched.
func Watches(c *Controller, home string) bool { return c.twins.Get(home) != nil }

// Forget stops watching the twin of a namespace that is no longer offloaded.
func (c *Controller) Forget(home string) { c.twins.Drop(home) }

// forget drops the state of a pod that is gone.
func (c *Controller) forget(home *corev1.Pod) {
	c.memory.forget(home.UID)
	c.unstarted.done(home.UID)
}

// Resync queues every pod.
func (c *Controller) Resync() { c.resyncNamespace("") }

func (c *Controller) resyncNamespace(ns string) {
	for _, p := range c.pods.list() {
		if ns == "" || p.Namespace == ns {
			c.queue.Add(types.NamespacedName{Namespace: p.Namespace, Name: p.Name})
		}
	}
	for _, t := range c.twins.List() {
		if ns == "" || t.Home == ns {
			for _, name := range t.Names() {
				c.queue.Add(types.NamespacedName{Namespace: t.Home, Name: name})
			}
		}
	}
}
