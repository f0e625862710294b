package volume

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"rivulet/offload/policy"
)

// pvProtection is Kubernetes' own finalizer: the volume is still bound to a claim.
const pvProtection = "kubernetes.io/pv-protection"

func (c *Controller) syncVolume(ctx context.Context, name string) error {
	v, err := c.volumes.Get(name)
	if err != nil || v.Labels[AwayLabel] == "" {
		return nil //nolint:nilerr // gone
	}
	if v.Annotations[MoveAnnotation] == "" {
		switch {
		case v.DeletionTimestamp != nil:
			err = c.purge(ctx, v)
		case v.Status.Phase == corev1.VolumeReleased && v.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete:
			err = c.release(ctx, v)
		}
	}
	if err == nil && v.Status.Phase == corev1.VolumeBound {
		err = c.report(ctx, v)
	}
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return errNotYet
	}
	return err
}

// away returns the claim in the twin of a volume, nil if it is not there.
func (c *Controller) away(ctx context.Context, p *Place, v *corev1.PersistentVolume) (*corev1.PersistentVolumeClaim, typedcorev1.PersistentVolumeClaimInterface, error) {
	ref := v.Spec.ClaimRef
	if ref == nil {
		return nil, nil, fmt.Errorf("volume %s belongs to no claim; its data on %s are not touched", v.Name, p.Node)
	}
	twins, err := p.Target.Twins(ctx)
	if err != nil {
		return nil, nil, err
	}
	twin, ok := twins[ref.Namespace]
	if !ok {
		return nil, nil, nil
	}
	api := p.Target.Client().CoreV1().PersistentVolumeClaims(twin)
	claim, err := api.Get(ctx, v.Annotations[ClaimAnnotation], metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && claim.Labels[VolumeLabel] != v.Name {
		return nil, api, nil
	}
	return claim, api, err
}

// release marks a volume whose claim is gone as deleted, so that no claim can be bound to it; the finalizer keeps it
// until purge is done.
func (c *Controller) release(ctx context.Context, v *corev1.PersistentVolume) error {
	if ref := v.Spec.ClaimRef; ref != nil {
		claim, err := c.cfg.Home.CoreV1().PersistentVolumeClaims(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		if err == nil && claim.UID == ref.UID {
			return errNotYet
		}
	}
	return c.cfg.Home.CoreV1().PersistentVolumes().Delete(ctx, v.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &v.UID, ResourceVersion: &v.ResourceVersion}})
}

// purge removes the claim away of a volume that is marked deleted, unless its data are to be retained, and then the
// finalizer. If the peering has ended, the claim is left to the deletion of the twin.
func (c *Controller) purge(ctx context.Context, v *corev1.PersistentVolume) error {
	if !slices.Contains(v.Finalizers, finalizer) || slices.Contains(v.Finalizers, pvProtection) {
		return nil
	}
	id := v.Labels[AwayLabel]
	p := c.of(id)
	switch {
	case p == nil && c.cfg.Peer(id) == "":
		c.cfg.Log.Warn("a volume is given up with the cluster that has its data", "volume", v.Name, "target", id)
		return c.letGo(ctx, v)
	case p == nil || !p.Ready():
		return errNotYet
	}
	claim, api, err := c.away(ctx, p, v)
	if err != nil {
		return err
	}
	switch {
	case claim == nil:
		if p.Freed != nil {
			p.Freed(v.Spec.ClaimRef.Namespace)
		}
	case v.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain:
		if claim.Labels[RetainedLabel] == "" {
			claim.Labels[RetainedLabel] = "true"
			if _, err := api.Update(ctx, claim, metav1.UpdateOptions{FieldManager: policy.FieldManager}); err != nil {
				return err
			}
		}
		c.cfg.Log.Info("volume given up, its data are kept", "volume", v.Name, "target", p.Node, "claim", claim.Namespace+"/"+claim.Name)
	case claim.DeletionTimestamp != nil:
		return errNotYet
	default:
		if err := api.Delete(ctx, claim.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &claim.UID}}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		return errNotYet // it goes with the last pod that uses it
	}
	return c.letGo(ctx, v)
}

func (c *Controller) letGo(ctx context.Context, v *corev1.PersistentVolume) error {
	free := v.DeepCopy()
	free.Finalizers = slices.DeleteFunc(free.Finalizers, func(f string) bool { return f == finalizer })
	_, err := c.cfg.Home.CoreV1().PersistentVolumes().Update(ctx, free, metav1.UpdateOptions{FieldManager: policy.FieldManager})
	return err
}

// removeOrphans deletes claims in twins without a volume at home, after home's API has confirmed it: power failed
// between the two, or the claim was deleted.
func (c *Controller) removeOrphans(ctx context.Context, p *Place) error {
	twins, err := p.Target.Twins(ctx)
	if err != nil {
		return err
	}
	var wanted map[string]bool
	for home, twin := range twins {
		api := p.Target.Client().CoreV1().PersistentVolumeClaims(twin)
		list, err := api.List(ctx, metav1.ListOptions{LabelSelector: policy.OriginLabel + "=" + c.cfg.Cluster + "," + VolumeLabel + ",!" + RetainedLabel})
		if apierrors.IsForbidden(err) {
			continue // an older provider lends no volumes
		}
		if err != nil {
			return err
		}
		for i := range list.Items {
			claim := &list.Items[i]
			if claim.DeletionTimestamp != nil {
				continue
			}
			if wanted == nil {
				// Read after the claims away, so that it has every volume of these.
				if wanted, err = c.wanted(ctx); err != nil {
					return err
				}
			}
			if wanted[claim.Labels[VolumeLabel]] {
				continue
			}
			c.cfg.Log.Info("removing a claim that belongs to nobody at home", "namespace", home, "claim", claim.Name, "target", p.Node)
			err := api.Delete(ctx, claim.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &claim.UID}})
			if err != nil && !apierrors.IsNotFound(err) {
				return err
			}
		}
	}
	return nil
}

// wanted are the names of volumes that exist, will exist, or are made by a move.
func (c *Controller) wanted(ctx context.Context) (map[string]bool, error) {
	out := map[string]bool{}
	claims, err := c.cfg.Home.CoreV1().PersistentVolumeClaims("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for i := range claims.Items {
		out[Name(claims.Items[i].UID)] = true
	}
	volumes, err := c.cfg.Home.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for i := range volumes.Items {
		v := &volumes.Items[i]
		out[v.Name] = true
		if v.Annotations[MoveAnnotation] != "" {
			out[MovedName(v)] = true
		}
	}
	return out, nil
}

// MovedName is the name of the volume that a volume is being moved to.
func MovedName(v *corev1.PersistentVolume) string {
	return "moved-" + string(v.UID)
}
