package tenancy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"rivulet/fabric/changes"
	"rivulet/offload/policy"
	"rivulet/offload/watch"
)

// How long pods of a consumer may take to end.
const (
	// graceMost is the longest grace period in seconds, whatever a pod or its deletion has; pods.yaml has the same.
	graceMost = 600
	// graceLast is the grace period, in seconds, in a twin that is being deleted, and of pods that are taken back.
	graceLast = 30
	// DefaultForceAfter is when the remaining objects in a twin that is being deleted are removed by force, despite
	// finalizers. A twin is empty within a minute.
	DefaultForceAfter = 40 * time.Second
	// emptiedAnnotation marks a twin that is being deleted and has no pods left.
	emptiedAnnotation = "rivulet.dev/emptied"
	// endLook is the interval of checks of twins that are being deleted.
	endLook = 2 * time.Second
)

// endTwins makes pods end in bounded time, and empties twins that are being deleted, until ctx ends. The time is
// measured by this process, not by the clock; after a restart it begins again.
func (t *Tenancy) endTwins(ctx context.Context) {
	kick := make(chan struct{}, 1)
	look := func(obj any) {
		if o, ok := obj.(metav1.Object); !ok || o.GetDeletionTimestamp() == nil || o.GetLabels()[policy.OriginLabel] == "" {
			return
		}
		changes.Poke(kick)
	}
	for _, informer := range []cache.SharedIndexInformer{t.namespaces.Informer(), t.room.Pods()} {
		// It fails only on a stopped informer.
		handle, err := informer.AddEventHandler(watch.Each(look))
		if err == nil {
			defer func() { _ = informer.RemoveEventHandler(handle) }()
		}
	}
	since := map[types.UID]time.Time{}
	for {
		var again <-chan time.Time
		left, err := t.end(ctx, since)
		if err != nil && ctx.Err() == nil {
			t.Log.Warn("what another cluster has left is not gone yet", "err", err, "retry", endLook)
		}
		if left || err != nil {
			again = time.After(endLook)
		}
		select {
		case <-ctx.Done():
			return
		case <-again:
		case <-kick:
		}
	}
}

// end makes one pass over pods with too long a deletion and over twins that are being deleted, and reports whether
// another is due. since has when each twin was first found deleted.
func (t *Tenancy) end(ctx context.Context, since map[types.UID]time.Time) (left bool, err error) {
	var errs []error
	for _, obj := range t.room.Pods().GetStore().List() {
		p, ok := obj.(*corev1.Pod)
		if ok && p.Labels[policy.OriginLabel] != "" && p.DeletionTimestamp != nil && ptr.Deref(p.DeletionGracePeriodSeconds, 0) > graceMost {
			errs = append(errs, t.endPod(ctx, p.Namespace, p.Name, p.UID, graceMost))
		}
	}
	going := map[types.UID]bool{}
	twins, _ := t.twins.List(labels.Everything()) // a cache cannot fail
	for _, ns := range twins {
		if ns.DeletionTimestamp == nil {
			continue
		}
		going[ns.UID] = true
		if since[ns.UID].IsZero() {
			since[ns.UID] = now()
		}
		errs = append(errs, t.empty(ctx, ns, now().Sub(since[ns.UID]) >= t.ForceAfter))
	}
	for uid := range since {
		if !going[uid] {
			delete(since, uid)
		}
	}
	return len(going) > 0, errors.Join(errs...)
}

// empty ends everything in a twin that is being deleted; with force at once. The namespace controller checks pods
// first, and again after half of their grace periods, so it is triggered when they are gone.
func (t *Tenancy) empty(ctx context.Context, ns *corev1.Namespace, force bool) error {
	twin := ns.Name
	pods, err := t.client.CoreV1().Pods(twin).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("tenancy: pods of twin %s: %w", twin, err)
	}
	var errs []error
	for i := range pods.Items {
		p := &pods.Items[i]
		grace := min(ptr.Deref(p.Spec.TerminationGracePeriodSeconds, graceLast), graceLast)
		if force {
			grace = 0
		}
		if p.DeletionTimestamp == nil || ptr.Deref(p.DeletionGracePeriodSeconds, 0) > grace {
			errs = append(errs, t.endPod(ctx, twin, p.Name, p.UID, grace))
		}
	}
	if force {
		errs = append(errs, t.letGo(ctx, twin))
	}
	if _, told := ns.Annotations[emptiedAnnotation]; len(pods.Items) == 0 && !told {
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"true"}}}`, emptiedAnnotation)
		if _, err := t.client.CoreV1().Namespaces().Patch(ctx, twin, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: policy.FieldManager}); err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("tenancy: twin %s: %w", twin, err))
		}
	}
	return errors.Join(errs...)
}

// endPod deletes a pod, or shortens a deletion under way.
func (t *Tenancy) endPod(ctx context.Context, namespace, name string, uid types.UID, grace int64) error {
	err := t.client.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &grace, Preconditions: &metav1.Preconditions{UID: &uid}})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("tenancy: end pod %s/%s: %w", namespace, name, err)
	}
	return nil
}

// letGo deletes everything in a twin that a consumer may have made, and removes the finalizers.
func (t *Tenancy) letGo(ctx context.Context, twin string) error {
	client, err := metadata.NewForConfig(t.Local)
	if err != nil {
		return fmt.Errorf("tenancy: %w", err)
	}
	var errs []error
	for _, kind := range writable() {
		objects := client.Resource(kind).Namespace(twin)
		list, err := objects.List(ctx, metav1.ListOptions{})
		if err != nil {
			errs = append(errs, fmt.Errorf("tenancy: %s of twin %s: %w", kind.Resource, twin, err))
			continue
		}
		for _, o := range list.Items {
			if o.DeletionTimestamp == nil && kind.Resource != "pods" {
				how := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &o.UID}, PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}
				if err := objects.Delete(ctx, o.Name, how); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
					errs = append(errs, fmt.Errorf("tenancy: delete %s %s/%s: %w", kind.Resource, twin, o.Name, err))
				}
			}
			if len(o.Finalizers) == 0 {
				continue
			}
			patch := fmt.Appendf(nil, `{"metadata":{"uid":%q,"finalizers":null}}`, o.UID)
			_, err := objects.Patch(ctx, o.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: policy.FieldManager})
			if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
				errs = append(errs, fmt.Errorf("tenancy: let go of %s %s/%s: %w", kind.Resource, twin, o.Name, err))
				continue
			}
			t.Log.Warn("something held up a twin that goes and was let go", "twin", twin, "kind", kind.Resource, "name", o.Name, "finalizers", o.Finalizers)
		}
	}
	return errors.Join(errs...)
}

// writable are the kinds of objects that consumers may make.
func writable() (kinds []schema.GroupVersionResource) {
	for _, rule := range rules() {
		if !slices.Contains(rule.Verbs, "create") {
			continue
		}
		for _, resource := range rule.Resources {
			if !strings.Contains(resource, "/") {
				kinds = append(kinds, schema.GroupVersionResource{Group: rule.APIGroups[0], Version: "v1", Resource: resource})
			}
		}
	}
	return kinds
}
