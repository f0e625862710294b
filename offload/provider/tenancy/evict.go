package tenancy

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/fabric/peer"
)

// Evict deletes the twins of a cluster that may no longer borrow. It returns how many are not gone yet; their pods end
// within their grace periods.
func (t *Tenancy) Evict(ctx context.Context, consumer peer.ID) (left int, err error) {
	namespaces, err := t.of(ctx, consumer)
	if err != nil {
		return 0, err
	}
	for _, ns := range namespaces {
		if ns.DeletionTimestamp != nil {
			continue
		}
		uid := ns.UID
		err := t.client.CoreV1().Namespaces().Delete(ctx, ns.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
		if err != nil && !apierrors.IsNotFound(err) {
			return len(namespaces), fmt.Errorf("tenancy: delete twin %s: %w", ns.Name, err)
		}
		t.Log.Info("twin of a cluster that nothing is lent to any more is deleted", "peer", consumer.Short(), "twin", ns.Name)
	}
	return len(namespaces), nil
}
