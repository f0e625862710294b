package pod

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"

	"rivulet/fabric/changes"
	"rivulet/offload/policy"
	"rivulet/offload/target"
	"rivulet/offload/watch"
)

// workers run reconciliations; they mostly wait for the network. What several of them
// create at the same time the provider's quota counts in one write.
const workers = 24

// Config is what a Controller needs. All fields but Parse, Look, Bring, Unreferred, Unfit, Unwelcome, Keeps, HomeAddresses, Moved and NoHomeAPI are required.
type Config struct {
	Home    kubernetes.Interface
	Target  target.Target
	Cluster string     // this cluster's ID
	HostIP  netip.Addr // the virtual node's address
	Words   Words
	// Offloaded reports whether pods of the namespace may go away. After a change
	// Resync has to be called.
	Offloaded func(namespace string) bool
	// Parse reads how a namespace is offloaded; nil is policy.Parse.
	Parse func(*corev1.Namespace) (policy.Namespace, error)
	// Check has Offloaded answer by what the API server says of the namespace now; nil if it
	// always does. Resync is called after it where that changes the answer.
	Check func(ctx context.Context, namespace string) error
	// Up reports whether the target is reachable. While it is not, no status is
	// written. After a change to true Resync has to be called.
	Up func() bool
	// Lost reports whether the target is known not to answer: its pods are not ready then.
	// After a change Resync has to be called. nil if that is never known.
	Lost func() bool
	// Departed is called after a pod of the namespace is gone from home.
	Departed func(namespace string)
	// Nodes are the target's virtual nodes; see Serve.
	Nodes []string
	// Platform is that of a virtual node; nil leaves it open.
	Platform func(node string) (os, arch string)
	// Claim gives the name in the twin of a claim of home, or why it has none there; nil
	// if the target has no volumes.
	Claim func(ctx context.Context, namespace, name string) (claim, why string, err error)
	// Bring returns when the target has what a pod refers to (reflect.Supply); nil brings nothing.
	Bring func(ctx context.Context, all []policy.Reference) error
	// Unreferred is called after a pod has come to refer to an object no more; nil is not.
	Unreferred func(policy.Object)
	// Unfit is told that an image does not run on an architecture, and reports whether new
	// pods of the namespace with it are kept off that by now; nil leaves such pods waiting.
	Unfit func(ctx context.Context, namespace, image, arch string) (kept bool, err error)
	// Unwelcome is told that the target takes no pods of the owner, and reports whether new ones are kept off it by
	// now; nil leaves such pods waiting.
	Unwelcome func(ctx context.Context, namespace string, owner metav1.OwnerReference) (kept bool, err error)
	// Keeps reports whether the target replaces pods that are their own record (package
	// replacement); nil if it never does.
	Keeps func() bool
	// HomeAddresses is what new pods on the target are made for, a value of
	// policy.HomeAddressesAnnotation; "" is the target's own addresses.
	HomeAddresses func() string
	// Moved is called after Addresses may answer differently; nil is not.
	Moved func()
	// NoHomeAPI says that there is no way to home's API server, and none to wait for.
	NoHomeAPI bool
	Recorder  record.EventRecorder
	Log       *slog.Logger
}

// Controller keeps the pods bound to a target's virtual nodes and what runs for them
// on the target equal. See the package comment.
type Controller struct {
	cfg   Config
	queue workqueue.TypedRateLimitingInterface[types.NamespacedName]
	ahead workqueue.TypedRateLimitingInterface[string] // namespaces, see Prepare
	pods  bound
	twins twins
	// reconnect wakes what renews the watches.
	reconnect chan struct{}

	life context.Context // of Run; the twins', too

	complaints complaints
	ends       ends

	unstarted unstarted                                          // see busy
	open      func(ctx context.Context, home, name string) *twin // newTwin, but in tests

	mu        sync.Mutex
	refused   map[types.UID]string    // why, of living pods
	sent      map[types.UID]time.Time // when, by this process, of living pods
	unsure    map[types.UID]bool      // living pods of which a create's answer was lost
	requested map[types.UID]time.Time // when, of living pods: see takeBack
}

// New makes a Controller; Run starts it.
func New(cfg Config) *Controller {
	if cfg.Parse == nil {
		cfg.Parse = policy.Parse
	}
	c := &Controller{
		cfg:     cfg,
		twins:   twins{all: map[string]*twin{}},
		ends:    ends{of: map[types.UID]*corev1.Pod{}},
		refused: map[types.UID]string{}, sent: map[types.UID]time.Time{}, unsure: map[types.UID]bool{}, requested: map[types.UID]time.Time{}, reconnect: make(chan struct{}, 1),
		queue: watch.Queue[types.NamespacedName](50*time.Millisecond, 10*time.Second),
		ahead: watch.Queue[string](time.Second, 10*time.Second),
	}
	c.open = c.newTwin
	for _, node := range cfg.Nodes {
		c.Serve(node)
	}
	return c
}

// Run blocks until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	c.life = ctx
	var wg sync.WaitGroup
	defer func() {
		cancel()
		c.queue.ShutDown()
		c.ahead.ShutDown()
		wg.Wait()
		c.twins.closeAll()
	}()
	wg.Go(func() { c.pods.run(ctx) })
	if !cache.WaitForCacheSync(ctx.Done(), c.pods.synced) {
		return ctx.Err()
	}
	wg.Go(func() { c.adopt(ctx) })
	wg.Go(func() { watch.Work(ctx, c.queue, workers, func(k types.NamespacedName) { c.handle(ctx, k) }) })
	wg.Go(func() { watch.Work(ctx, c.ahead, preparers, func(namespace string) { c.prepareTwin(ctx, namespace) }) })
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.reconnect:
			c.twins.renew(func(home, name string) *twin { return c.open(ctx, home, name) })
		}
	}
}

// attempt bounds one reconciliation: requests over a connection that is dead
// would hold a worker, and there are few.
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
		// Conflicts only say that somebody was faster; being without a link is told once, by the node.
		if !apierrors.IsConflict(err) && !errors.Is(err, errNotYet) && c.cfg.Up() && c.complaints.isNews(k, err.Error(), time.Now()) {
			c.cfg.Log.Warn("pod not in step with the target", "namespace", k.Namespace, "pod", k.Name, "err", err)
		}
		c.queue.AddRateLimited(k)
	}
}

// adopt watches the twins that the target holds from before, so that what
// belongs to no pod of home any more is found and removed.
func (c *Controller) adopt(ctx context.Context) {
	pause := changes.Backoff{First: 100 * time.Millisecond, Longest: 10 * time.Second}
	held, err := c.cfg.Target.Twins(ctx)
	for err != nil && pause.Wait(ctx) {
		held, err = c.cfg.Target.Twins(ctx)
	}
	for home, name := range held {
		if c.cfg.Offloaded(home) {
			c.watch(home, name)
		}
	}
}

// watch starts watching the twin, if it is not watched yet.
func (c *Controller) watch(home, name string) *twin {
	return c.twins.ensure(home, name, func() *twin { return c.open(c.life, home, name) })
}

func (c *Controller) newTwin(ctx context.Context, home, name string) *twin {
	changed := func(pod string) {
		if pod == "" {
			c.resyncNamespace(home)
			return
		}
		c.queue.Add(types.NamespacedName{Namespace: home, Name: pod})
	}
	lost := func(err error) {
		if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
			c.checkTwin(ctx, home)
		}
	}
	furnish := func(ctx context.Context, t *twin) {
		t.furnish(ctx, c.cfg.NoHomeAPI, func() { changed("") }, func(err error) {
			c.cfg.Log.Warn("no pod is sent yet: the twin lacks what pods there need", "namespace", home, "err", err)
		})
	}
	t := newTwin(ctx, c.cfg.Target.Client(), c.cfg.Cluster, home, name, &c.ends, changed, lost, c.followEvents, furnish)
	if c.cfg.Moved != nil {
		_, _ = t.pods.AddEventHandler(cache.ResourceEventHandlerFuncs{ // fails only on an informer that has ended
			AddFunc: func(any) { c.cfg.Moved() }, DeleteFunc: func(any) { c.cfg.Moved() },
			UpdateFunc: func(was, is any) {
				before, _ := addresses(was)
				if now, _ := addresses(is); !slices.Equal(before, now) {
					c.cfg.Moved()
				}
			}})
	}
	return t
}

// Reconnect watches the target afresh, at once: watches that failed during a cut
// may be pausing for half a minute.
func (c *Controller) Reconnect() {
	changes.Poke(c.reconnect)
}

// checkTwin drops the watches of a twin that the target does not hold any more, or that
// is on its way out, and reports whether it did.
func (c *Controller) checkTwin(ctx context.Context, home string) (gone bool) {
	held, err := c.cfg.Target.Twins(ctx)
	if err != nil {
		return false
	}
	if name, ok := held[home]; ok {
		if t := c.twins.get(home); t == nil || t.name == name {
			return false
		}
	}
	c.twins.drop(home)
	c.Prepare(home)
	c.resyncNamespace(home)
	return true
}

// Busy reports whether pods of the namespace that were sent away still live at
// home. It is true until the pods of home were listed once.
func (c *Controller) Busy(namespace string) bool {
	if !c.pods.synced() {
		return true
	}
	for _, p := range c.pods.list() {
		if p.Namespace != namespace || terminal(p.Status.Phase) && p.DeletionTimestamp == nil {
			continue
		}
		if c.wasSent(p) {
			return true
		}
	}
	return false
}

// Forget stops watching the twin of a namespace that is no longer offloaded.
func (c *Controller) Forget(home string) { c.twins.drop(home) }

// forget drops what is remembered of a pod that is gone.
func (c *Controller) forget(home *corev1.Pod) {
	c.mu.Lock()
	delete(c.sent, home.UID)
	delete(c.unsure, home.UID)
	delete(c.requested, home.UID)
	c.mu.Unlock()
	c.unstarted.done(home.UID)
}

// Resync looks at every pod again.
func (c *Controller) Resync() { c.resyncNamespace("") }

func (c *Controller) resyncNamespace(ns string) {
	for _, p := range c.pods.list() {
		if ns == "" || p.Namespace == ns {
			c.queue.Add(types.NamespacedName{Namespace: p.Namespace, Name: p.Name})
		}
	}
	c.twins.mu.Lock()
	defer c.twins.mu.Unlock()
	for home, t := range c.twins.all {
		if ns == "" || home == ns {
			for _, name := range t.names() {
				c.queue.Add(types.NamespacedName{Namespace: home, Name: name})
			}
		}
	}
}

// ErrNotKnown is Away's answer until the target has told what it runs.
var ErrNotKnown error = apierrors.NewServiceUnavailable("offload: the target has not told yet which pods it runs; try again in a moment")

// Away tells under which name a pod of home runs on the target now.
func (c *Controller) Away(namespace, name string) (twin, pod string, err error) {
	home := c.home(types.NamespacedName{Namespace: namespace, Name: name})
	if home == nil {
		return "", "", apierrors.NewNotFound(corev1.Resource("pods"), name)
	}
	t := c.twins.get(namespace)
	if t == nil {
		return "", "", ErrNotKnown
	}
	if p := Current(t.podsOf(home.UID)); p != nil {
		return t.name, p.Name, nil
	}
	if !t.synced() {
		return "", "", ErrNotKnown
	}
	return "", "", apierrors.NewServiceUnavailable("offload: pod " + name + " has not started on " + c.cfg.Target.Name() + " yet")
}

// On lists the pods of home that are bound to the virtual node. They are the cache's.
func (c *Controller) On(node string) []*corev1.Pod {
	return slices.DeleteFunc(c.pods.list(), func(p *corev1.Pod) bool { return p.Spec.NodeName != node })
}

// Counts reports whether a pod counts wherever pods are counted: it runs or is to run. One that
// has finished does not, nor one that was refused: it is nowhere.
func Counts(p *corev1.Pod) bool {
	return !terminal(p.Status.Phase) && p.Status.Reason != ReasonRefused
}

// Counts tells how many pods that count are bound to the virtual node, and why others were
// refused, by namespace/name.
func (c *Controller) Counts(node string) (pods int, refused map[string]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	refused = map[string]string{}
	living := map[types.UID]string{}
	for _, p := range c.pods.list() {
		why, ok := c.refused[p.UID]
		if ok {
			living[p.UID] = why
		}
		if p.Spec.NodeName != node {
			continue
		}
		if ok {
			refused[p.Namespace+"/"+p.Name] = why
		}
		if Counts(p) {
			pods++
		}
	}
	c.refused = living
	return pods, refused
}

// Images are those of the pods of home that are bound to the target, as they name them.
func (c *Controller) Images() (out []string) {
	for _, p := range c.pods.list() {
		for _, of := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
			for _, one := range of {
				out = append(out, one.Image)
			}
		}
		for _, one := range p.Spec.EphemeralContainers {
			out = append(out, one.Image)
		}
	}
	return out
}

func (c *Controller) home(k types.NamespacedName) *corev1.Pod { return c.pods.get(k) }
