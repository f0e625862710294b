package tenancy

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"rivulet/fabric/changes"
	"rivulet/fabric/peer"
	"rivulet/offload/policy"
	"rivulet/offload/watch"
)

const maxName = 63 // of a DNS label

// twinNames returns the possible names of the twin, best first. Both end with the consumer's ID, so that no other
// namespace has such a name by accident or intent; the second is for the case that one has nevertheless. It is a pure
// function.
func twinNames(home, consumerName string, consumer peer.ID) [2]string {
	name := home + "-"
	if label := dnsLabel(consumerName); label != "" {
		name += label + "-"
	}
	sum := sha256.Sum256([]byte(home + "/" + string(consumer)))
	return [2]string{shorten(name, consumer.Short()), shorten(name, hex.EncodeToString(sum[:])[:8]+"-"+consumer.Short())}
}

// shorten joins both to a DNS label; the end stays complete, and a hash of the full text distinguishes long names.
func shorten(name, end string) string {
	if len(name)+len(end) <= maxName {
		return name + end
	}
	sum := sha256.Sum256([]byte(name))
	end = "-" + hex.EncodeToString(sum[:])[:8] + "-" + end
	return strings.TrimRight(name[:maxName-len(end)], "-") + end
}

// dnsLabel converts a user's name to one that Kubernetes accepts.
func dnsLabel(name string) string {
	label := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(name))
	return strings.Trim(label, "-")
}

// twinNamespace is the intended namespace.
func twinNamespace(name, home string, consumer peer.ID) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: name,
		Labels: map[string]string{
			policy.OriginLabel:             string(consumer),
			"app.kubernetes.io/managed-by": "rivulet",
			// What a consumer's pods may do to the host. Kubernetes itself enforces it.
			"pod-security.kubernetes.io/enforce": "baseline",
			"pod-security.kubernetes.io/warn":    "baseline",
		},
		Annotations: map[string]string{policy.HomeNamespaceAnnotation: home},
	}}
}

// isTwin reports whether the namespace is this consumer's twin of home.
func isTwin(ns *corev1.Namespace, home string, consumer peer.ID) bool {
	return ns.Labels[policy.OriginLabel] == string(consumer) && ns.Annotations[policy.HomeNamespaceAnnotation] == home
}

// isBounded reports whether a twin has the labels that policies and Pod Security select by.
func isBounded(twin *corev1.Namespace) bool {
	for label, value := range twinNamespace(twin.Name, "", peer.ID(twin.Labels[policy.OriginLabel])).Labels {
		if twin.Labels[label] != value {
			return false
		}
	}
	return true
}

// twinOf is the consumer's twin of that name, from the cache.
func (t *Tenancy) twinOf(name string, consumer peer.ID) (*corev1.Namespace, bool) {
	ns, err := t.twins.Get(name)
	return ns, err == nil && ns.Labels[policy.OriginLabel] == string(consumer)
}

// keepLabels restores labels that were removed from twins, until ctx ends. Until then the twin's consumer is refused,
// see limited.
func (t *Tenancy) keepLabels(ctx context.Context) {
	kick := make(chan struct{}, 1)
	look := func(obj any) {
		if ns, ok := obj.(*corev1.Namespace); ok && !isBounded(ns) {
			changes.Poke(kick)
		}
	}
	// It fails only on a stopped informer.
	_, _ = t.namespaces.Informer().AddEventHandler(watch.Each(look))
	for {
		var again <-chan time.Time
		twins, _ := t.twins.List(labels.Everything()) // a cache cannot fail
		for _, ns := range twins {
			if isBounded(ns) || ns.DeletionTimestamp != nil {
				continue
			}
			live, err := t.client.CoreV1().Namespaces().Get(ctx, ns.Name, metav1.GetOptions{})
			if err == nil && live.Labels[policy.OriginLabel] == ns.Labels[policy.OriginLabel] { // otherwise it is another's now
				_, err = t.repair(ctx, live, live.Annotations[policy.HomeNamespaceAnnotation], peer.ID(live.Labels[policy.OriginLabel]))
			}
			if err != nil && ctx.Err() == nil {
				t.Log.Warn("a consumer has no rights in a twin until its labels are back", "twin", ns.Name, "err", err)
				again = time.After(time.Second)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-kick:
		case <-again:
		}
	}
}
