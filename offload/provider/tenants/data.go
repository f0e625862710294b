package tenants

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"rivulet/offload/replacement"
)

// keepsData ends the pods in a twin that has claims, and reports whether it has any: silence alone never deletes data.
// The owner of this cluster deletes them by rivulet tenants remove.
func (g *Tracker) keepsData(ctx context.Context, twin string) (bool, error) {
	claims, err := g.cfg.Client.CoreV1().PersistentVolumeClaims(twin).List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, fmt.Errorf("tenants: claims of twin %s: %w", twin, err)
	}
	if len(claims.Items) == 0 {
		return false, nil
	}
	how := metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}
	err = errors.Join(g.cfg.Client.AppsV1().ReplicaSets(twin).DeleteCollection(ctx, how, metav1.ListOptions{}),
		g.cfg.Client.BatchV1().Jobs(twin).DeleteCollection(ctx, how, metav1.ListOptions{}),
		replacement.EndAll(ctx, g.cfg.Client, twin))
	if err != nil {
		return true, fmt.Errorf("tenants: twin %s, which has claims, is not emptied: %w", twin, err)
	}
	g.cfg.Log.Info("a twin whose consumer has been silent for too long is kept for its data", "twin", twin, "claims", len(claims.Items))
	return true, nil
}
