package external

import (
	"context"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/offload/policy"
	"rivulet/offload/target/external/rewrite"
)

// triedAnnotation on a wrapper is when its controller was last made to retry.
const triedAnnotation = "rivulet.dev/tried-at"

// nudge makes the controllers there retry what the campus has refused, mostly because of a full quota: by themselves
// they wait longer each time, up to 15 minutes. Any change of the object makes them retry at once. It is called after a
// change of the quota, and each rereadEvery.
func (t *Target) nudge(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	selector := metav1.ListOptions{LabelSelector: rewrite.HomeLabel + "=" + t.cfg.Cluster}
	stamp := time.Now().UTC().Format(time.RFC3339)
	sets, err := t.campus.AppsV1().ReplicaSets(t.cfg.Settings.Namespace).List(ctx, selector)
	if err != nil {
		return // the next check has the reason
	}
	for i := range sets.Items {
		s := &sets.Items[i]
		if !refusedPods(s) || !Ours(s, "replicasets") || s.DeletionTimestamp != nil {
			continue
		}
		metav1.SetMetaDataAnnotation(&s.ObjectMeta, triedAnnotation, stamp)
		_, _ = t.campus.AppsV1().ReplicaSets(s.Namespace).Update(ctx, s, metav1.UpdateOptions{FieldManager: policy.FieldManager}) // retried later
	}
	jobs, err := t.campus.BatchV1().Jobs(t.cfg.Settings.Namespace).List(ctx, selector)
	if err != nil {
		return
	}
	for i := range jobs.Items {
		j := &jobs.Items[i]
		unmade := j.Status.Active == 0 && len(j.Status.Conditions) == 0 && j.Status.Succeeded == 0 && j.Status.Failed == 0
		if !unmade || !Ours(j, "jobs") || j.DeletionTimestamp != nil {
			continue
		}
		// A new Job, too: its age by the campus's clock says nothing, and one attempt more does no harm.
		metav1.SetMetaDataAnnotation(&j.ObjectMeta, triedAnnotation, stamp)
		_, _ = t.campus.BatchV1().Jobs(j.Namespace).Update(ctx, j, metav1.UpdateOptions{FieldManager: policy.FieldManager})
	}
}

func refusedPods(s *appsv1.ReplicaSet) bool {
	return slices.ContainsFunc(s.Status.Conditions, func(c appsv1.ReplicaSetCondition) bool {
		return c.Type == appsv1.ReplicaSetReplicaFailure && c.Status == corev1.ConditionTrue
	})
}
