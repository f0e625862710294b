package replacement

import (
	"context"
	"fmt"
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
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/client-go/util/workqueue"

	"rivulet/offload/homeapi"
	"rivulet/offload/policy"
	"rivulet/offload/watch"
)

const (
	workers = 8
	// Replacements are four writes each; those of all pods of a node must not overload the API server.
	perSecond, inARow = 50, 100
	// attempt bounds one replacement.
	attempt = 30 * time.Second
)

// Config are the dependencies of a Controller; all are required.
type Config struct {
	// Client is one for the cluster of the pods, with all rights.
	Client kubernetes.Interface
	// Pods are all of the cluster's, with at least what Kept and Ended use.
	Pods cache.SharedIndexInformer
	Log  *slog.Logger
}

// Controller replaces records that are deleted.
type Controller struct {
	cfg   Config
	queue workqueue.TypedRateLimitingInterface[types.NamespacedName]
	pace  flowcontrol.RateLimiter
	now   func() time.Time
}

// New makes a Controller; Run starts it.
func New(cfg Config) *Controller {
	return &Controller{cfg: cfg, now: time.Now, pace: flowcontrol.NewTokenBucketRateLimiter(perSecond, inARow),
		queue: watch.Queue[types.NamespacedName](50*time.Millisecond, 10*time.Second)}
}

// Run blocks until ctx ends.
func (k *Controller) Run(ctx context.Context) error {
	look := func(obj any) {
		if p, ok := obj.(*corev1.Pod); ok && Kept(p) && (p.DeletionTimestamp != nil || Ended(p)) {
			k.queue.Add(types.NamespacedName{Namespace: p.Namespace, Name: p.Name})
		}
	}
	handle, err := k.cfg.Pods.AddEventHandler(watch.Each(look))
	if err != nil {
		return fmt.Errorf("keeper: watch of pods: %w", err)
	}
	var all sync.WaitGroup
	all.Go(func() { watch.Work(ctx, k.queue, workers, func(key types.NamespacedName) { k.handle(ctx, key) }) })
	<-ctx.Done()
	_ = k.cfg.Pods.RemoveEventHandler(handle) // fails only on a stopped informer
	k.queue.ShutDown()
	all.Wait()
	return ctx.Err()
}

func (k *Controller) handle(ctx context.Context, key types.NamespacedName) {
	if k.pace.Wait(ctx) != nil {
		return
	}
	bounded, cancel := context.WithTimeout(ctx, attempt)
	wait, err := k.check(bounded, key)
	cancel()
	switch {
	case err == nil:
		k.queue.Forget(key)
		if wait > 0 {
			k.queue.AddAfter(key, wait)
		}
	case ctx.Err() != nil:
	default:
		if !apierrors.IsConflict(err) {
			k.cfg.Log.Warn("a pod of another cluster that went is not replaced yet", "namespace", key.Namespace, "pod", key.Name, "err", err)
		}
		k.queue.AddRateLimited(key)
	}
}

// check does what is due for one pod, and returns how long the rest has to wait. It reads from the API, since caches
// lag.
func (k *Controller) check(ctx context.Context, key types.NamespacedName) (wait time.Duration, err error) {
	pods := k.cfg.Client.CoreV1().Pods(key.Namespace)
	p, err := pods.Get(ctx, key.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil || !Kept(p) {
		return 0, err
	}
	ns, err := k.cfg.Client.CoreV1().Namespaces().Get(ctx, key.Namespace, metav1.GetOptions{})
	if err != nil {
		return 0, err
	}
	if p.DeletionTimestamp != nil && (ns.DeletionTimestamp != nil || ns.Labels[policy.OriginLabel] == "") {
		return 0, k.release(ctx, p) // it is deleted with its namespace
	}
	if !Due(p) {
		return 0, nil
	}
	if wait := BackOff(p, k.now()); wait > 0 {
		return wait, nil
	}
	next := Successor(p)
	if p.Annotations[markAnnotation] != "" {
		if taken, err := k.taken(ctx, p, next); err != nil {
			return 0, err
		} else if taken {
			return 0, k.release(ctx, p)
		}
	} else if p, err = patch(ctx, k.cfg.Client, p, p.ResourceVersion, map[string]any{"annotations": map[string]string{markAnnotation: next.Name}}); err != nil {
		return 0, gone(err)
	}
	if err := k.replace(ctx, next); err != nil {
		return 0, err
	}
	k.cfg.Log.Info("a pod of another cluster that went is replaced", "namespace", p.Namespace, "pod", p.Name, "phase", p.Status.Phase, "by", next.Name)
	return 0, k.release(ctx, p)
}

// taken reports whether an earlier attempt has already replaced p; the replacement may have a successor itself by now.
func (k *Controller) taken(ctx context.Context, p, next *corev1.Pod) (bool, error) {
	others := metav1.ListOptions{LabelSelector: policy.HomeUIDLabel + "=" + p.Labels[policy.HomeUIDLabel]}
	pods, err := k.cfg.Client.CoreV1().Pods(p.Namespace).List(ctx, others)
	if err != nil {
		return false, err
	}
	for i := range pods.Items {
		o := &pods.Items[i]
		endedByHome := IsRecord(o) && o.Annotations[markAnnotation] == "" // released unmarked: no other is wanted
		if o.UID != p.UID && (Kept(o) || endedByHome) {
			return true, nil
		}
	}
	_, err = k.cfg.Client.AppsV1().ReplicaSets(p.Namespace).Get(ctx, Waiting(next).Name, metav1.GetOptions{})
	return err == nil, gone(err)
}

// replace makes the successor, or the ReplicaSet in its place.
func (k *Controller) replace(ctx context.Context, next *corev1.Pod) error {
	if err := k.wayHome(ctx, next); err != nil {
		return err
	}
	_, err := k.cfg.Client.CoreV1().Pods(next.Namespace).Create(ctx, next, metav1.CreateOptions{FieldManager: policy.FieldManager})
	if err == nil || apierrors.IsAlreadyExists(err) {
		return nil
	}
	if !Refused(err) {
		return err
	}
	set := Waiting(next)
	if _, again := k.cfg.Client.AppsV1().ReplicaSets(set.Namespace).Create(ctx, set, metav1.CreateOptions{FieldManager: policy.FieldManager}); again == nil || apierrors.IsAlreadyExists(again) {
		return nil
	} else if !Refused(again) {
		return again
	}
	k.cfg.Log.Warn("a pod of another cluster that went is not replaced here; its cluster has to make it again", "namespace", next.Namespace, "pod", next.Name, "err", err)
	return nil
}

// wayHome sets the current address of its home's API server in the successor: the Service may have been replaced.
func (k *Controller) wayHome(ctx context.Context, next *corev1.Pod) error {
	for i := range next.Spec.HostAliases {
		alias := &next.Spec.HostAliases[i]
		for _, name := range alias.Hostnames {
			if name != homeapi.Host {
				continue
			}
			s, err := k.cfg.Client.CoreV1().Services(next.Namespace).Get(ctx, homeapi.Service, metav1.GetOptions{})
			if err != nil {
				return gone(err)
			}
			if _, bad := netip.ParseAddr(s.Spec.ClusterIP); bad == nil {
				alias.IP = s.Spec.ClusterIP
			}
			return nil
		}
	}
	return nil
}

// release releases a replaced pod. One that ended without a deletion is deleted first, so that it does not remain if
// the process ends in between.
func (k *Controller) release(ctx context.Context, p *corev1.Pod) error {
	if p.DeletionTimestamp == nil {
		err := k.cfg.Client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &p.UID}})
		if err != nil {
			return gone(err)
		}
	}
	return gone(letGo(ctx, k.cfg.Client, p, ""))
}
