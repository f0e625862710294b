package tenancy

import (
	"context"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/fabric/peer"
	"rivulet/offload/offer"
	"rivulet/offload/policy"
)

// quotaName is the name of the ResourceQuota, and of the LimitRange, of a twin.
const quotaName = "rivulet"

// most bounds the objects of each kind in all twins of one consumer.
var most = map[corev1.ResourceName]int64{
	"count/configmaps":                        2000,
	"count/secrets":                           2000,
	"count/services":                          1000,
	"count/endpointslices.discovery.k8s.io":   2000,
	"count/replicasets.apps":                  4000,
	"count/jobs.batch":                        4000,
	"count/persistentvolumeclaims":            200,
	"count/ingresses.networking.k8s.io":       500,
	"count/networkpolicies.networking.k8s.io": 100,
	"count/pods":                              8000, // finished ones included
	nodePorts:                                 0,
	"services.loadbalancers":                  0,
}

// limitedAs is the name in a quota of a resource of an offer.
func limitedAs(name corev1.ResourceName) corev1.ResourceName {
	if name == corev1.ResourcePods {
		return name
	}
	return "requests." + name
}

// fromQuota converts a quota's list to amounts of an offer's resources.
func fromQuota(list corev1.ResourceList, resources corev1.ResourceList) amounts {
	out := amounts{}
	for name := range resources {
		if q, ok := list[limitedAs(name)]; ok {
			out[name] = offer.Amount(name, q)
		}
	}
	return out
}

// counts are the bounds on objects in one twin: its objects, and its part of what the consumer's twins together have
// left. Small differences are ignored, the smaller the less is left, since an object in one twin changes what is left
// for all.
func counts(q *corev1.ResourceQuota, all []*corev1.ResourceQuota, most map[corev1.ResourceName]int64) corev1.ResourceList {
	out := corev1.ResourceList{}
	for name, limit := range most {
		left := limit
		for _, o := range all {
			used := o.Status.Used[name]
			left -= used.Value()
		}
		used, now := q.Status.Used[name], q.Spec.Hard[name]
		want := used.Value() + max(left, 0)
		if _, set := q.Spec.Hard[name]; set && now.Value() <= want+max(left, 0)/4 && want-now.Value() <= limit/10 {
			want = now.Value()
		}
		out[name] = *resource.NewQuantity(want, resource.DecimalSI)
	}
	return out
}

// bounds are most, and the storage of all claims of the consumer: half of this device's disk, which its own pods need
// as well, or the consumer's own limit. (A folder has no size limit; the disk bounds what is written into it.)
func (t *Tenancy) bounds(consumer peer.ID) map[corev1.ResourceName]int64 {
	out, storage := maps.Clone(most), limitedAs(corev1.ResourceStorage)
	if t.Volumes != nil {
		if size, err := t.Volumes.Capacity(); err == nil {
			out[storage] = size / 2
		}
	}
	if t.LAN != nil && t.isHosted(consumer) {
		out[nodePorts] = PortsEach
	}
	if hosted := t.hosted.Load(); hosted != nil {
		if limit, limited := (*hosted)[consumer].Most[corev1.ResourceStorage]; limited {
			if disk, known := out[storage]; !known || limit.Value() < disk {
				out[storage] = limit.Value()
			}
		}
	}
	return out
}

// Host sets which consumers are virtual clusters of this device, with the bounds of single ones: CPU, memory, pods, and
// the storage of claims. It replaces the previous map; the caller must not change members afterwards.
func (t *Tenancy) Host(members map[peer.ID]offer.Member) {
	t.hosted.Store(&members)
	t.room.Host(members)
	t.ports.Notify()
	t.poke()
}

// newQuota admits no pod: keepRations sets what a twin may use.
func newQuota(twin string, consumer peer.ID, most map[corev1.ResourceName]int64) *corev1.ResourceQuota {
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: quotaName, Namespace: twin,
		Labels: map[string]string{policy.OriginLabel: string(consumer), "app.kubernetes.io/managed-by": "rivulet"}}}
	q.Spec.Hard = counts(q, nil, most)
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, corev1.ResourcePods} {
		q.Spec.Hard[limitedAs(name)] = resource.Quantity{}
	}
	return q
}

// noRequests exempts pods without requests from the quota's demand for them: they request nothing, and are evicted
// first when the node runs short.
func noRequests(twin string, consumer peer.ID) *corev1.LimitRange {
	zero := corev1.ResourceList{}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
		zero[name] = resource.Quantity{}
	}
	return &corev1.LimitRange{
		ObjectMeta: metav1.ObjectMeta{Name: quotaName, Namespace: twin,
			Labels: map[string]string{policy.OriginLabel: string(consumer), "app.kubernetes.io/managed-by": "rivulet"}},
		Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{Type: corev1.LimitTypeContainer, DefaultRequest: zero}}},
	}
}

// defaults creates the LimitRange of the twin.
func (t *Tenancy) defaults(ctx context.Context, twin string, consumer peer.ID) error {
	ranges := t.client.CoreV1().LimitRanges(twin)
	want := noRequests(twin, consumer)
	switch have, err := ranges.Get(ctx, quotaName, metav1.GetOptions{}); {
	case apierrors.IsNotFound(err):
		if _, err := ranges.Create(ctx, want, metav1.CreateOptions{FieldManager: policy.FieldManager}); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("tenancy: defaults of twin %s: %w", twin, err)
		}
	case err != nil:
		return fmt.Errorf("tenancy: defaults of twin %s: %w", twin, err)
	case !equality.Semantic.DeepEqual(have.Spec, want.Spec):
		have.Spec = want.Spec
		if _, err := ranges.Update(ctx, have, metav1.UpdateOptions{FieldManager: policy.FieldManager}); err != nil {
			return fmt.Errorf("tenancy: defaults of twin %s: %w", twin, err)
		}
	}
	return nil
}

// apartName is the name of the ResourceQuota that admits no pod of a twin whose affinity names other namespaces: the
// scheduler enforces it against pods there. Policies refuse such pods; this is the second line.
const apartName = "rivulet-apart"

// apart creates that quota.
func apart(ctx context.Context, t *Tenancy, twin string, consumer peer.ID) error {
	quotas := t.client.CoreV1().ResourceQuotas(twin)
	want := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: apartName, Namespace: twin, Labels: map[string]string{policy.OriginLabel: string(consumer), "app.kubernetes.io/managed-by": "rivulet"}},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.Quantity{}},
			ScopeSelector: &corev1.ScopeSelector{MatchExpressions: []corev1.ScopedResourceSelectorRequirement{
				{ScopeName: corev1.ResourceQuotaScopeCrossNamespacePodAffinity, Operator: corev1.ScopeSelectorOpExists}}}}}
	have, err := quotas.Get(ctx, apartName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		if _, err = quotas.Create(ctx, want, metav1.CreateOptions{FieldManager: policy.FieldManager}); apierrors.IsAlreadyExists(err) {
			err = nil
		}
	case err == nil && !equality.Semantic.DeepEqual(have.Spec, want.Spec):
		have.Spec = want.Spec
		_, err = quotas.Update(ctx, have, metav1.UpdateOptions{FieldManager: policy.FieldManager})
	}
	if err != nil {
		return fmt.Errorf("tenancy: quota of twin %s: %w", twin, err)
	}
	return nil
}

// bounded returns when the twin has a quota in force, which keepRations makes: before that the API server would admit
// everything. It also waits for capacity for a pod, if there is any left.
func (t *Tenancy) bounded(ctx context.Context, twin string) error {
	quotas := t.client.CoreV1().ResourceQuotas(twin)
	changed, stop := t.granted.Changed()
	defer stop()
	t.poke()
	patience, deadline := time.NewTimer(quotaPatience), time.NewTimer(quotaDeadline)
	defer patience.Stop()
	defer deadline.Stop()
	for impatient := false; ; {
		room, known := t.room.Room(t.Shares())
		// The consumer's first pod should not find a quota of nothing.
		if q, err := t.quotas.Lister().ResourceQuotas(twin).Get(quotaName); err == nil && len(q.Status.Hard) > 0 &&
			(hasRoom(q, room.Lent()) || impatient || !known || !room.Offer.Ready || t.isSettled(twin)) {
			// The cache may still have that of a former twin of the name.
			live, err := quotas.Get(ctx, quotaName, metav1.GetOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("tenancy: quota of twin %s: %w", twin, err)
			}
			if err == nil && len(live.Status.Hard) > 0 {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-patience.C:
			impatient = true
		case <-deadline.C:
			return refuse(503, "quota-pending", statusCure, "the quota of twin %s is not in force yet", twin)
		}
	}
}

// hasRoom reports whether the quota in force leaves some of each resource that is lent.
func hasRoom(q *corev1.ResourceQuota, lent corev1.ResourceList) bool {
	hard := fromQuota(q.Status.Hard, lent)
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, corev1.ResourcePods} {
		if total, some := lent[name]; some && total.Sign() > 0 && hard[name] == 0 {
			return false
		}
	}
	return true
}

// settle records the twins of a pass that changed no quota while all were in force: they get no more until something
// changes. nil: the pass changed one.
func (t *Tenancy) settle(twins map[string]account) {
	t.settledMu.Lock()
	defer t.settledMu.Unlock()
	t.settled = twins
}

func (t *Tenancy) isSettled(twin string) bool {
	t.settledMu.Lock()
	defer t.settledMu.Unlock()
	_, settled := t.settled[twin]
	return settled
}

const (
	// quotaPatience is how long to wait for the first pod's capacity, quotaDeadline for the quota itself.
	quotaPatience = 2 * time.Second
	quotaDeadline = 8 * time.Second
)

// merged is the quota with the amounts.
func merged(counts corev1.ResourceList, next amounts) corev1.ResourceList {
	out := maps.Clone(counts)
	for name, amount := range next {
		out[limitedAs(name)] = offer.Quantity(name, amount)
	}
	return out
}
