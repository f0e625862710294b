package pod

import (
	"context"
	"encoding/json"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// relabel carries changes of the home pod's labels and annotations, on which
// Services at home and away select, over to the away pod and to what would
// replace it. The rest of a pod cannot change once it is made.
func (c *Controller) relabel(ctx context.Context, t *twin, home *corev1.Pod, have, want Wrapper) error {
	if have.Object().GetDeletionTimestamp() != nil {
		return nil
	}
	was, is := have.template(), like(have, want, home).template()
	if p := Current(t.podsOf(home.UID)); p != nil && p.DeletionTimestamp == nil {
		labels := difference(p.Labels, was.Labels, is.Labels)
		notes := difference(p.Annotations, was.Annotations, is.Annotations)
		if len(labels)+len(notes) > 0 {
			patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels, "annotations": notes}})
			if err != nil {
				return err
			}
			_, err = t.client.CoreV1().Pods(t.name).Patch(ctx, p.Name, types.MergePatchType, patch, metav1.PatchOptions{})
			if ignoreGone(err) != nil {
				return c.twinError(ctx, t, err)
			}
		}
	}
	// A Job's template cannot change; it makes no second pod beside a living one.
	if have.ReplicaSet == nil || maps.Equal(was.Labels, is.Labels) && maps.Equal(was.Annotations, is.Annotations) &&
		equality.Semantic.DeepEqual(was.Spec.HostAliases, is.Spec.HostAliases) {
		return nil
	}
	set := have.ReplicaSet.DeepCopy()
	set.Spec.Template.Labels, set.Spec.Template.Annotations = is.Labels, is.Annotations
	// They differ when the Service that leads to home's API server was made anew.
	set.Spec.Template.Spec.HostAliases = is.Spec.HostAliases
	_, err := t.client.AppsV1().ReplicaSets(t.name).Update(ctx, set, metav1.UpdateOptions{})
	return ignoreGone(err)
}

// difference is the merge patch that takes has to is, where was are the keys
// that we had put there: other keys are other people's.
func difference(has, was, is map[string]string) map[string]any {
	patch := map[string]any{}
	for k, v := range is {
		if got, ok := has[k]; !ok || got != v {
			patch[k] = v
		}
	}
	for k := range was {
		_, wanted := is[k]
		if _, there := has[k]; there && !wanted {
			patch[k] = nil
		}
	}
	return patch
}
