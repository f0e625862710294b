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

// twinNames returns the names that the twin may have, best first. Both end with the
// consumer's ID, so that nobody has another namespace of that name by accident or wish;
// the second is for who has one all the same. Both are pure functions of the arguments.
func twinNames(home, consumerName string, consumer peer.ID) [2]string {
	name := home + "-"
	if label := dnsLabel(consumerName); label != "" {
		name += label + "-"
	}
	sum := sha256.Sum256([]byte(home + "/" + string(consumer)))
	return [2]string{shorten(name, consumer.Short()), shorten(name, hex.EncodeToString(sum[:])[:8]+"-"+consumer.Short())}
}

// shorten joins both to a DNS label, of which the end is always whole; the hash of the
// whole keeps two long names apart.
func shorten(name, end string) string {
	if len(name)+len(end) <= maxName {
		return name + end
	}
	sum := sha256.Sum256([]byte(name))
	end = "-" + hex.EncodeToString(sum[:])[:8] + "-" + end
	return strings.TrimRight(name[:maxName-len(end)], "-") + end
}

// dnsLabel makes of a name given by people one that Kubernetes takes.
func dnsLabel(name string) string {
	label := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(name))
	return strings.Trim(label, "-")
}

// twinNamespace is the namespace as it should be.
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

// isBounded reports whether a twin has the labels that policies and Pod Security go by.
func isBounded(twin *corev1.Namespace) bool {
	for label, value := range twinNamespace(twin.Name, "", peer.ID(twin.Labels[policy.OriginLabel])).Labels {
		if twin.Labels[label] != value {
			return false
		}
	}
	return true
}

// twinOf is the consumer's twin of that name, as the cache has it.
func (t *Tenancy) twinOf(name string, consumer peer.ID) (*corev1.Namespace, bool) {
	ns, err := t.twins.Get(name)
	return ns, err == nil && ns.Labels[policy.OriginLabel] == string(consumer)
}

// keepLabels puts labels back that somebody takes off twins, until ctx ends. Until they are there
// the twin's consumer is refused, see limited.
func (t *Tenancy) keepLabels(ctx context.Context) {
	kick := make(chan struct{}, 1)
	look := func(obj any) {
		if ns, ok := obj.(*corev1.Namespace); ok && !isBounded(ns) {
			changes.Poke(kick)
		}
	}
	// It fails only on an informer that has ended.
	_, _ = t.namespaces.Informer().AddEventHandler(watch.Each(look))
	for {
		var again <-chan time.Time
		twins, _ := t.twins.List(labels.Everything()) // a cache cannot fail
		for _, ns := range twins {
			if isBounded(ns) || ns.DeletionTimestamp != nil {
				continue
			}
			live, err := t.client.CoreV1().Namespaces().Get(ctx, ns.Name, metav1.GetOptions{})
			if err == nil && live.Labels[policy.OriginLabel] == ns.Labels[policy.OriginLabel] { // else it is another's by now
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
