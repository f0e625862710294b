package pod

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"rivulet/offload/consumer/pod/translate"
	"rivulet/offload/policy"
)

// byReference indexes the pods of home by their node and what they refer to.
const byReference = "reference"

func indexReferences(obj any) (keys []string, _ error) {
	for o := range objects(obj) {
		keys = append(keys, referenceKey(obj.(*corev1.Pod).Spec.NodeName, o))
	}
	return keys, nil
}

func referenceKey(node string, o policy.Object) string {
	return node + "/" + o.Kind + "/" + o.Namespace + "/" + o.Name
}

// objects are those that a pod refers to; none for nil.
func objects(obj any) map[policy.Object]bool {
	out := map[policy.Object]bool{}
	if p, ok := obj.(*corev1.Pod); ok {
		for _, r := range translate.References(p) {
			out[r.Object] = true
		}
	}
	return out
}

// unrefer reports the objects that was refers to and is does not.
func (c *Controller) unrefer(was, is any) {
	if c.cfg.Supply == nil {
		return
	}
	before, now := objects(was), objects(is)
	for o := range before {
		if !now[o] {
			c.cfg.Supply.Check(o)
		}
	}
}

// bring waits until the target has what the pod refers to.
func (c *Controller) bring(ctx context.Context, home *corev1.Pod) error {
	if c.cfg.Supply == nil {
		return nil
	}
	return c.cfg.Supply.Bring(ctx, translate.References(home))
}
