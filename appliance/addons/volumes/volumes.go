// Package volumes provisions folders on this device as volumes of the StorageClass local-path, without a helper pod or
// a CSI driver.
//
//	claim ──scheduler chose this node──▶ folder ──▶ PersistentVolume ──▶ bound (by Kubernetes)
//	claim deleted ──▶ volume Released ──▶ volume marked deleted ──▶ folder removed ──▶ volume gone
//	                  (by Kubernetes)     (by the server)           (by the node)
//
// It watches PersistentVolumeClaims, PersistentVolumes and StorageClasses, and reads nodes when needed. Package volume
// handles claims of pods on other clusters. It alone writes <state>/storage, the StorageClass local-path, and the
// PersistentVolumes of provisioner rivulet.dev/local-path on this node; of claims only the status after growth and the
// chosen node, if that is not available. The server marks volumes of all nodes as deleted. On a worker it writes neither the
// StorageClass nor the chosen node.
//
// Restart, also after a power cut between any two steps: a volume's name follows from its claim's UID, so its folder is
// found again; a folder in transfer is moved back; a deleted volume has the finalizer until its folder is gone; an
// empty folder without a volume is removed. A folder with content is removed only for a volume with reclaim policy
// Delete, whose claim was seen in the present history of the datastore (package volume, Release).
//
// Failure: an event on the claim or the volume, with a cure, and a retry with back-off; permanent ones are retried only
// after a change of the claim. A volume without its folder is in `rivulet status`.
package volumes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	storageutil "k8s.io/component-helpers/storage/volume"

	"rivulet/appliance/health"
	"rivulet/offload/consumer/volume"
)

const (
	// Provisioner is the name in StorageClasses.
	Provisioner = volume.Provisioner
	// ClassName is the StorageClass created here.
	ClassName = "local-path"
)

// Config of a Controller. All fields but Worker must be set.
type Config struct {
	Client kubernetes.Interface
	// Local has the folders of volumes and this device's node: volumes can be used only there.
	Local *Local
	// Worker leaves what is not of one node to the server: the StorageClass, and claims whose chosen node is gone.
	Worker bool
	Health *health.Tracker
	Log    *slog.Logger
}

// Controller creates and removes volumes.
type Controller struct {
	cfg      Config
	log      *slog.Logger
	local    *Local
	folders  folders
	node     string
	recorder record.EventRecorder

	claims  corelisters.PersistentVolumeClaimLister
	volumes corelisters.PersistentVolumeLister
	classes storagelisters.StorageClassLister

	// Two queues, because the removal of a large folder must not delay claims.
	claimQueue, volumeQueue queue
	// step is called between the steps of creation and removal; tests stop there.
	step func(string) error
}

type queue = workqueue.TypedRateLimitingInterface[string]

// Keys of the claim queue that are no claims.
const (
	keyClass = "class" // a claim's key has a slash
	keySweep = "sweep"
)

// New returns a Controller that does nothing yet.
func New(cfg Config) *Controller {
	newQueue := func() queue {
		return workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](500*time.Millisecond, time.Minute))
	}
	return &Controller{
		cfg: cfg, log: cfg.Log, local: cfg.Local, folders: cfg.Local.folders, node: cfg.Local.node,
		claimQueue: newQueue(), volumeQueue: newQueue(), step: func(string) error { return nil },
	}
}

// Run works until ctx ends; it may be called once. It calls ready when claims are served.
func (c *Controller) Run(ctx context.Context, ready func()) error {
	err := c.folders.prepare()
	if err == nil {
		err = c.local.recover()
	}
	c.cfg.Health.Report(health.StorageUnusable, err)
	if err != nil {
		return err
	}
	events := record.NewBroadcaster(record.WithContext(ctx))
	defer events.Shutdown()
	events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: c.cfg.Client.CoreV1().Events("")})
	c.recorder = events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: Provisioner, Host: c.node})

	factory := informers.NewSharedInformerFactoryWithOptions(c.cfg.Client, 0, informers.WithTransform(trim))
	synced, err := c.watch(factory)
	if err != nil {
		return err
	}
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return nil // ctx ended
	}
	if err := c.keepClass(ctx); err != nil {
		return err
	}
	c.claimQueue.Add(keySweep)
	ready()
	var workers sync.WaitGroup
	workers.Go(func() { c.work(ctx, c.claimQueue, c.syncClaimKey) })
	workers.Go(func() { c.work(ctx, c.volumeQueue, c.syncVolumeKey) })
	<-ctx.Done()
	c.claimQueue.ShutDown()
	c.volumeQueue.ShutDown()
	workers.Wait()
	return nil
}

// trim drops fields for other clients.
func trim(o any) (any, error) {
	if m, err := meta.Accessor(o); err == nil {
		m.SetManagedFields(nil)
	}
	return o, nil
}

func (c *Controller) watch(factory informers.SharedInformerFactory) ([]cache.InformerSynced, error) {
	claims, volumes, classes := factory.Core().V1().PersistentVolumeClaims(), factory.Core().V1().PersistentVolumes(), factory.Storage().V1().StorageClasses()
	c.claims, c.volumes, c.classes = claims.Lister(), volumes.Lister(), classes.Lister()

	var synced []cache.InformerSynced
	var errs []error
	follow := func(i cache.SharedIndexInformer, changed func(any), gone func(any)) {
		r, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: changed, UpdateFunc: func(_, o any) { changed(o) },
			DeleteFunc: func(o any) {
				if t, ok := o.(cache.DeletedFinalStateUnknown); ok {
					o = t.Obj
				}
				gone(o)
			},
		})
		if err != nil {
			errs = append(errs, fmt.Errorf("storage: %w", err))
			return
		}
		synced = append(synced, r.HasSynced)
	}
	follow(claims.Informer(), c.claimChanged, func(o any) {
		if claim, ok := o.(*corev1.PersistentVolumeClaim); ok && claim.Spec.VolumeName == "" {
			c.claimQueue.Add(keySweep) // it may have a folder and no volume
		}
	})
	follow(volumes.Informer(), c.volumeChanged, func(o any) {
		if v, ok := o.(*corev1.PersistentVolume); ok {
			c.cfg.Health.ClearFor(health.VolumeMissing, v.Name)
			c.cfg.Health.ClearFor(health.VolumeUnclaimed, v.Name)
		}
	})
	follow(classes.Informer(), func(o any) {
		c.claimQueue.Add(keyClass)
		if class, ok := o.(*storagev1.StorageClass); ok && class.Provisioner == Provisioner {
			c.wakeClaims(class.Name)
		}
	}, func(any) { c.claimQueue.Add(keyClass) })
	return synced, errors.Join(errs...)
}

func (c *Controller) claimChanged(o any) {
	if claim, ok := o.(*corev1.PersistentVolumeClaim); ok && mayConcernUs(claim) {
		c.claimQueue.Add(claim.Namespace + "/" + claim.Name)
	}
}

func (c *Controller) volumeChanged(o any) {
	if v, ok := o.(*corev1.PersistentVolume); ok && (c.ours(v) || !c.cfg.Worker && v.Annotations[storageutil.AnnDynamicallyProvisioned] == Provisioner && v.Labels[volume.AwayLabel] == "") {
		c.volumeQueue.Add(v.Name)
	}
}

// wakeClaims queues the claims that wait for a class.
func (c *Controller) wakeClaims(class string) {
	claims, err := c.claims.List(everything)
	if err != nil {
		return // a cache's list does not fail
	}
	for _, claim := range claims {
		if claim.Spec.VolumeName == "" && className(claim) == class {
			c.claimChanged(claim)
		}
	}
}

// work handles one key after the other; failed ones are retried later.
func (c *Controller) work(ctx context.Context, q queue, sync func(context.Context, string) error) {
	for {
		key, shutdown := q.Get()
		if shutdown {
			return
		}
		if err := sync(ctx, key); err != nil && ctx.Err() == nil {
			c.log.Warn("storage work failed, trying again", "key", key, "err", err)
			q.AddRateLimited(key)
		} else {
			q.Forget(key)
		}
		q.Done(key)
	}
}
