package volumes

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// grow sets the requested size of a bound claim: a folder needs no change, so only the objects do. An interrupted call
// is repeated: the claim's status comes last.
func (c *Controller) grow(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	v, err := c.volumes.Get(claim.Spec.VolumeName)
	if err != nil || !c.ours(v) || claim.Status.Phase != corev1.ClaimBound {
		return nil //nolint:nilerr // its change triggers the next call
	}
	asked, has := request(claim), claim.Status.Capacity[corev1.ResourceStorage]
	if asked.Cmp(has) <= 0 {
		return nil
	}
	if err := c.checkSpace(claim, asked); err != nil {
		c.recorder.Event(claim, corev1.EventTypeWarning, reasonNotGrown, err.Error())
		if errors.As(err, new(refused)) {
			return nil
		}
		return err
	}
	if now := v.Spec.Capacity[corev1.ResourceStorage]; now.Cmp(asked) < 0 {
		larger := v.DeepCopy()
		larger.Spec.Capacity[corev1.ResourceStorage] = asked
		if _, err := c.cfg.Client.CoreV1().PersistentVolumes().Update(ctx, larger, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("storage: size of volume %s: %w", v.Name, err)
		}
	}
	if err := c.step("volume grown"); err != nil {
		return err
	}
	done := claim.DeepCopy()
	done.Status.Capacity[corev1.ResourceStorage] = asked
	done.Status.Conditions = nil // all of them are about resizing
	delete(done.Status.AllocatedResourceStatuses, corev1.ResourceStorage)
	_, err = c.cfg.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).UpdateStatus(ctx, done, metav1.UpdateOptions{})
	if apierrors.IsConflict(err) {
		return nil // its change triggers the next call
	}
	if err != nil {
		return fmt.Errorf("storage: size of claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	c.recorder.Eventf(claim, corev1.EventTypeNormal, reasonGrown, "the volume has %s now", asked.String())
	return nil
}
