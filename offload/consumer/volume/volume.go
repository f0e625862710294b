// Package volume gives claims of home a volume on the cluster where the scheduler has placed the claim's first pod; the
// volume's node affinity keeps later pods there (docs/design/volumes.md). It reads claims, volumes and StorageClasses
// of home. It alone writes volumes with AwayLabel, their claims in twins, ReachableCondition, and a claim's chosen node
// if the volume cannot be made. Names are derived from the UID of the claim at home, so nothing is made twice. Restart:
// all state is in the objects; a claim away without a volume at home is deleted after home's API has confirmed it, and
// kept if home's API is of another history (Moment). Nothing is deleted on a silent target. Failure: an event on the
// claim, and retries with back-off; what is kept is in View.
package volume

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"

	"rivulet/offload/target"
	"rivulet/offload/watch"
)

const (
	// Provisioner is Rivulet's name in StorageClasses, for volumes at home and away.
	Provisioner = "rivulet.dev/local-path"
	// AwayLabel on a volume of home: its data are on the target with this ID.
	AwayLabel = "rivulet.dev/away-on"
	// VolumeLabel on a claim in a twin is the name of its volume at home.
	VolumeLabel = "rivulet.dev/home-volume"
	// RetainedLabel on a claim in a twin: its data outlive the volume at home. Only a person deletes it.
	RetainedLabel = "rivulet.dev/retained"
	// ClaimAnnotation on a volume of home is the name of its claim in the twin; HomeClaimAnnotation on a claim in a
	// twin that of the claim at home.
	ClaimAnnotation     = "rivulet.dev/away-claim"
	HomeClaimAnnotation = "rivulet.dev/home-claim"
	// ClassAnnotation, set by users on a claim, is the provider's StorageClass, which it has to lend (policy.LentLabel);
	// without it the provider's default is used.
	ClassAnnotation = "rivulet.dev/away-class"
	// MoveAnnotation on a volume: it is being moved, see package move.
	MoveAnnotation = "rivulet.dev/move"
	// ReachableCondition of a claim is whether its data are reachable.
	ReachableCondition corev1.PersistentVolumeClaimConditionType = "rivulet.dev/Reachable"
	// finalizer keeps a volume's object until its claim away is gone.
	finalizer = "rivulet.dev/away-volume"
)

// checkEvery is the interval in which every volume away is checked.
const checkEvery = 10 * time.Minute

// errNotYet causes a retry shortly.
var errNotYet = errors.New("volume: waiting for the target")

// Config are the dependencies of a Controller. All fields are required.
type Config struct {
	Home    kubernetes.Interface
	Cluster string // this cluster's ID
	// Peer returns the name of a cluster that is a peer, reachable or not; "" for others.
	Peer     func(id string) string
	Recorder record.EventRecorder
	Log      *slog.Logger
}

// Place is one virtual node and its target.
type Place struct {
	Node   string
	Target target.Target
	Owner
}

// Owner is who has made a Place.
type Owner interface {
	// Offloaded reports whether claims of the namespace may get a volume there, Up whether the target is reachable.
	Offloaded(namespace string) bool
	Up() bool
	// Freed is called with the namespace of a claim when the target has confirmed that its data are gone there.
	Freed(namespace string)
}

// Controller reconciles the claims of home with those in twins.
type Controller struct {
	cfg     Config
	claims  corelisters.PersistentVolumeClaimLister
	volumes corelisters.PersistentVolumeLister
	classes storagelisters.StorageClassLister
	queue   workqueue.TypedRateLimitingInterface[string]

	mu      sync.Mutex
	running bool                // the caches are filled
	places  map[string]*Place   // by node
	unknown map[string][]string // see Unknown; by target
}

// New makes a Controller; Run starts it, once.
func New(cfg Config) *Controller {
	return &Controller{
		cfg: cfg, places: map[string]*Place{}, unknown: map[string][]string{},
		queue: watch.Queue[string](100*time.Millisecond, 30*time.Second),
	}
}

// Serve adds a place until the function that it returns is called.
func (c *Controller) Serve(p *Place) (end func()) {
	c.mu.Lock()
	c.places[p.Node] = p
	c.mu.Unlock()
	c.Check(p.Node)
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.places[p.Node] == p {
			delete(c.places, p.Node)
			c.queue.Add(keyAll)
		}
	}
}

// Running reports whether the caches are filled.
func (c *Controller) Running() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.running
}

// Place returns a place by the name of its node, nil if there is none.
func (c *Controller) Place(node string) *Place {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.places[node]
}

// of returns a place of the target with the ID, nil if there is none.
func (c *Controller) of(id string) *Place {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.places {
		if p.Target.ID() == id {
			return p
		}
	}
	return nil
}

// Check queues everything of a place, after its target was lost or found.
func (c *Controller) Check(node string) { c.queue.Add(keyPlace + node) }

// The queue's keys: a claim's is namespace/name.
const (
	keyPlace  = "place:"
	keyVolume = "volume:"
	keyAll    = "all:"
)

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	factory := informers.NewSharedInformerFactoryWithOptions(c.cfg.Home, 0, informers.WithTransform(watch.Unmanaged))
	claims, volumes, classes := factory.Core().V1().PersistentVolumeClaims(), factory.Core().V1().PersistentVolumes(), factory.Storage().V1().StorageClasses()
	c.claims, c.volumes, c.classes = claims.Lister(), volumes.Lister(), classes.Lister()
	follow(claims.Informer(), func(o any) {
		if claim, ok := o.(*corev1.PersistentVolumeClaim); ok && concernsUs(claim) {
			c.queue.Add(claim.Namespace + "/" + claim.Name)
		}
	})
	follow(volumes.Informer(), func(o any) {
		if v, ok := o.(*corev1.PersistentVolume); ok && v.Labels[AwayLabel] != "" {
			c.queue.Add(keyVolume + v.Name)
		}
	})
	follow(classes.Informer(), func(any) {})
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	if !cache.WaitForCacheSync(ctx.Done(), claims.Informer().HasSynced, volumes.Informer().HasSynced, classes.Informer().HasSynced) {
		return ctx.Err()
	}
	c.mu.Lock()
	c.running = true
	c.mu.Unlock()
	var workers sync.WaitGroup
	workers.Go(func() { watch.Work(ctx, c.queue, 2, func(key string) { c.checkEvery(ctx, key) }) })
	tick := time.NewTicker(checkEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-tick.C:
			c.queue.Add(keyAll)
		}
	}
	c.queue.ShutDown()
	workers.Wait()
	return ctx.Err()
}

// follow calls changed for existing objects and for every change.
func follow(i cache.SharedIndexInformer, changed func(any)) {
	_, _ = i.AddEventHandler(watch.All(changed)) // fails only on a stopped informer
}

func (c *Controller) checkEvery(ctx context.Context, key string) {
	bounded, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	err := c.sync(bounded, key)
	switch {
	case err == nil:
		c.queue.Forget(key)
	case ctx.Err() != nil:
	default:
		if !errors.Is(err, errNotYet) {
			c.cfg.Log.Debug("volume not in step with its target", "key", key, "err", err)
		}
		c.queue.AddRateLimited(key)
	}
}

func (c *Controller) sync(ctx context.Context, key string) error {
	if node, ok := strings.CutPrefix(key, keyPlace); ok {
		return c.syncPlace(ctx, node)
	}
	if name, ok := strings.CutPrefix(key, keyVolume); ok {
		return c.syncVolume(ctx, name)
	}
	if key == keyAll {
		return c.syncAll()
	}
	namespace, name, _ := strings.Cut(key, "/")
	claim, err := c.claims.PersistentVolumeClaims(namespace).Get(name)
	if err != nil || claim.DeletionTimestamp != nil {
		return nil //nolint:nilerr // gone
	}
	if claim.Spec.VolumeName != "" {
		c.queue.Add(keyVolume + claim.Spec.VolumeName)
		return c.grow(ctx, claim)
	}
	return c.provision(ctx, claim)
}

// syncAll queues all places, and volumes whose place is gone.
func (c *Controller) syncAll() error {
	volumes, err := c.volumes.List(labels.Everything())
	for _, v := range volumes {
		if v.Labels[AwayLabel] != "" {
			c.queue.Add(keyVolume + v.Name)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for node := range c.places {
		c.queue.Add(keyPlace + node)
	}
	return err
}

// syncPlace queues all volumes of a place, the claims that wait for it, and, if it is reachable, the search for
// orphans.
func (c *Controller) syncPlace(ctx context.Context, node string) error {
	p := c.Place(node)
	if p == nil {
		return nil
	}
	volumes, err := c.volumes.List(labels.SelectorFromSet(labels.Set{AwayLabel: p.Target.ID()}))
	if err != nil {
		return err
	}
	for _, v := range volumes {
		c.queue.Add(keyVolume + v.Name)
	}
	claims, err := c.claims.List(labels.Everything())
	if err != nil {
		return err
	}
	for _, claim := range claims {
		if claim.Spec.VolumeName == "" && selected(claim) == node && concernsUs(claim) {
			c.queue.Add(claim.Namespace + "/" + claim.Name)
		}
	}
	if !p.Up() || !slices.Contains(c.targets(), p) {
		return nil // queued again when it is; one place of each target is searched
	}
	return c.removeOrphans(ctx, p)
}

// class returns the StorageClass of a claim if it is one of Rivulet's.
func (c *Controller) class(claim *corev1.PersistentVolumeClaim) *storagev1.StorageClass {
	class, err := c.classes.Get(className(claim))
	if err != nil || class.Provisioner != Provisioner {
		return nil
	}
	return class
}
