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

// errRights ends a space so that it is seen what the target takes by now.
var errRights = errors.New("reflect: looking again at what the target takes")

// again is how often a target that does not take something is asked whether it has
// come to.
const again = 10 * time.Minute

// lacks are kinds that the target does not take, with whether that may change. Older
// peers have no right for some, and to a foreign cluster they are its owner's to give.
// An error says that it cannot be told now.
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
			continue // what else may be wrong shows when it is used
		}
		// Is it this kind, or are we not let in at all, or not yet?
		if _, err := t.Client().CoreV1().ConfigMaps(twin).List(ctx, metav1.ListOptions{Limit: 1}); err != nil {
			return nil, fmt.Errorf("%w: %w", errTwinLost, err)
		}
		out[kind] = true
	}
	return out, nil
}
