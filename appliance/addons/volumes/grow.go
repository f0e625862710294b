package volumes

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// grow gives a bound claim the size that it asks for: a folder needs no work for
// that, so only the objects have to say so. Stopped in between, it is done again:
// the claim's status comes last.
func (c *Controller) grow(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	v, err := c.volumes.Get(claim.Spec.VolumeName)
	if err != nil || !c.ours(v) || claim.Status.Phase != corev1.ClaimBound {
		return nil //nolint:nilerr // its change comes by
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
	done.Status.Conditions = nil // all of them speak of resizing
	delete(done.Status.AllocatedResourceStatuses, corev1.ResourceStorage)
	_, err = c.cfg.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).UpdateStatus(ctx, done, metav1.UpdateOptions{})
	if apierrors.IsConflict(err) {
		return nil // its change comes by
	}
	if err != nil {
		return fmt.Errorf("storage: size of claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	c.recorder.Eventf(claim, corev1.EventTypeNormal, reasonGrown, "the volume has %s now", asked.String())
	return nil
}
