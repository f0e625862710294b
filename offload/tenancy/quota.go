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

// most bounds the objects of each kind that all twins of one consumer hold.
var most = map[corev1.ResourceName]int64{
	"count/configmaps":                        2000,
	"count/secrets":                           2000,
	"count/services":                          1000,
	"count/endpointslices.discovery.k8s.io":   2000,
	"count/replicasets.apps":                  4000,
	"count/jobs.batch":                        4000,
	"count/persistentvolumeclaims":            200,
	"count/ingresses.networking.k8s.io":       500,
	"count/networkpolicies.networking.k8s.io": 500,
	"count/pods":                              8000, // finished ones included
	"services.nodeports":                      0,
	"services.loadbalancers":                  0,
}

// limitedAs is the name that a quota has for what an offer calls otherwise.
func limitedAs(name corev1.ResourceName) corev1.ResourceName {
	if name == corev1.ResourcePods {
		return name
	}
	return "requests." + name
}

// fromQuota reads amounts of an offer's resources out of a quota's list.
func fromQuota(list corev1.ResourceList, resources corev1.ResourceList) amounts {
	out := amounts{}
	for name := range resources {
		if q, ok := list[limitedAs(name)]; ok {
			out[name] = offer.Amount(name, q)
		}
	}
	return out
}

// counts are the bounds on objects in one twin: what it has, and its part of what
// the consumer's twins together have left. They are left as they are while that is
// nearly so.
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
		if _, set := q.Spec.Hard[name]; set && now.Value() <= want && want-now.Value() <= limit/10 {
			want = now.Value()
		}
		out[name] = *resource.NewQuantity(want, resource.DecimalSI)
	}
	return out
}

// bounds are most, and what all claims of one consumer may ask for: half of this device's
// disk, which its own pods need, too. (A folder has no size of its own; what is written
// into it is bounded by the disk.)
func (t *Tenancy) bounds() map[corev1.ResourceName]int64 {
	if t.Volumes == nil {
		return most
	}
	size, err := t.Volumes.Capacity()
	if err != nil {
		return most
	}
	out := maps.Clone(most)
	out[limitedAs(corev1.ResourceStorage)] = size / 2
	return out
}

// newQuota lets no pod in: what a twin may use is for the rationing to say.
func newQuota(twin string, consumer peer.ID, most map[corev1.ResourceName]int64) *corev1.ResourceQuota {
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: quotaName, Namespace: twin,
		Labels: map[string]string{policy.OriginLabel: string(consumer), "app.kubernetes.io/managed-by": "rivulet"}}}
	q.Spec.Hard = counts(q, nil, most)
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, corev1.ResourcePods} {
		q.Spec.Hard[limitedAs(name)] = resource.Quantity{}
	}
	return q
}

// noRequests spares pods without requests the quota's demand to have some: they
// ask for nothing, and are the first to go when the node runs short.
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

// bounded makes sure that the twin has a quota that is in force: before it is, the
// API server would let everything in.
func (t *Tenancy) bounded(ctx context.Context, twin string, consumer peer.ID) error {
	ranges, quotas := t.client.CoreV1().LimitRanges(twin), t.client.CoreV1().ResourceQuotas(twin)
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

	quota, err := quotas.Get(ctx, quotaName, metav1.GetOptions{})
	fresh := apierrors.IsNotFound(err)
	if fresh {
		if quota, err = quotas.Create(ctx, newQuota(twin, consumer, t.bounds()), metav1.CreateOptions{FieldManager: policy.FieldManager}); apierrors.IsAlreadyExists(err) {
			quota, err = quotas.Get(ctx, quotaName, metav1.GetOptions{})
		}
	}
	if err != nil {
		return fmt.Errorf("tenancy: quota of twin %s: %w", twin, err)
	}
	t.poke()
	// The consumer's first pod should not find the quota still at nothing.
	room, known := t.room.Room(t.Share())
	patience := time.Now().Add(quotaPatience)
	if !fresh || !known || !room.Offer.Ready {
		patience = time.Now()
	}
	for deadline := time.Now().Add(quotaDeadline); ; {
		inForce := len(quota.Status.Hard) > 0
		pods := quota.Status.Hard[corev1.ResourcePods]
		switch {
		case inForce && (pods.Sign() > 0 || time.Now().After(patience)):
			return nil
		case !inForce && time.Now().After(deadline):
			return refuse(503, "quota-pending", "try again; `rivulet status` on the provider says what is wrong", "the quota of twin %s is not in force yet", twin)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
		if quota, err = quotas.Get(ctx, quotaName, metav1.GetOptions{}); err != nil {
			return fmt.Errorf("tenancy: quota of twin %s: %w", twin, err)
		}
	}
}

const (
	// quotaPatience is how long the first pod's room is waited for, quotaDeadline the quota itself.
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
