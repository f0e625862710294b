package reflect

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"rivulet/offload/policy"
	"rivulet/offload/target"
)

// errRights ends a space, so that the target is checked again for kinds that it refuses.
var errRights = errors.New("reflect: looking again at what the target takes")

// again is the interval in which a target that refuses a kind is checked again.
const again = 10 * time.Minute

// lacks are the kinds that the target refuses, with whether that may change. Older peers grant no right for some, and
// the owner of a foreign cluster decides there. An error: it cannot be determined now.
func lacks(ctx context.Context, t target.Target, twin string) (map[string]bool, error) {
	lists := map[string]func(kubernetes.Interface) error{
		policy.NetworkPolicyKind: func(c kubernetes.Interface) error {
			_, err := c.NetworkingV1().NetworkPolicies(twin).List(ctx, metav1.ListOptions{Limit: 1})
			return err
		},
		policy.IngressKind: func(c kubernetes.Interface) error {
			_, err := c.NetworkingV1().Ingresses(twin).List(ctx, metav1.ListOptions{Limit: 1})
			return err
		},
	}
	out := map[string]bool{}
	for kind, list := range lists {
		if h, ok := t.(Holder); ok && !h.Holds(kind) {
			out[kind] = false
			continue
		}
		err := list(t.Client())
		if err == nil || !lost(err) {
			continue // other errors show when the kind is used
		}
		// It is this kind, or access as a whole, or too early.
		if _, err := t.Client().CoreV1().ConfigMaps(twin).List(ctx, metav1.ListOptions{Limit: 1}); err != nil {
			return nil, fmt.Errorf("%w: %w", errTwinLost, err)
		}
		out[kind] = true
	}
	return out, nil
}
