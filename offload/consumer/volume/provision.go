package volume

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	storageutil "k8s.io/component-helpers/storage/volume"

	"rivulet/offload/policy"
)

// Reasons of events, as far as possible those of Kubernetes' own provisioners.
const (
	reasonFailed   = "ProvisioningFailed"
	reasonDone     = "ProvisioningSucceeded"
	reasonGrown    = "VolumeResizeSuccessful"
	reasonNotGrown = "VolumeResizeFailed"
	reasonAway     = "VolumeUnreachable"
)

// holder is implemented by targets that do not accept objects of every kind.
type holder interface{ Holds(kind string) bool }

// provision makes the claim away, and then the volume at home, for a claim whose first pod was placed on a virtual node
// of this cluster.
func (c *Controller) provision(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	class, p := c.class(claim), c.Place(selected(claim))
	if class == nil || p == nil {
		return nil // not for this provisioner, or not yet; a change of either queues it again
	}
	name := Name(claim.UID)
	if _, err := c.volumes.Get(name); err == nil {
		return nil // made, and not bound yet
	}
	if err := refusalAway(claim, class); err != nil {
		c.cfg.Recorder.Event(claim, corev1.EventTypeWarning, reasonFailed, err.Error())
		return nil // nor anywhere else
	}
	if why := c.stays(ctx, p, claim); why != "" {
		return c.handBack(ctx, claim, fmt.Sprintf("no volume on %s: %s", p.Node, why))
	}
	if h, ok := p.Target.(holder); ok && !h.Holds(policy.KindClaim) {
		return c.handBack(ctx, claim, fmt.Sprintf("%s takes no volumes: keep pods with claims at home or on peers (rivulet offload --to, or a node selector), or give them an emptyDir", p.Node))
	}
	if !p.Up() {
		return c.handBack(ctx, claim, p.Node+" cannot be reached at the moment")
	}
	twin, err := p.Target.Namespace(ctx, claim.Namespace)
	if err == nil {
		away := AwayClaim(claim, name, c.cfg.Cluster)
		if err = Stamp(ctx, c.cfg.Home, away); err == nil {
			err = c.createAway(ctx, p, twin, away)
		}
	}
	if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) { // quota, rights, its admission
		return c.handBack(ctx, claim, fmt.Sprintf("%s refuses the volume: %v; ask its owner for more, or let the pod run elsewhere", p.Node, err))
	}
	if err != nil {
		c.cfg.Recorder.Eventf(claim, corev1.EventTypeWarning, reasonFailed, "%s: %v; it is tried again", p.Node, err)
		return err
	}
	_, err = c.cfg.Home.CoreV1().PersistentVolumes().Create(ctx, Volume(claim, class, name, p.Node, p.Target.ID()), metav1.CreateOptions{FieldManager: policy.FieldManager})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("volume: %w", err)
	}
	c.cfg.Log.Info("volume on another cluster", "claim", claim.Namespace+"/"+claim.Name, "volume", name, "target", p.Node)
	c.cfg.Recorder.Eventf(claim, corev1.EventTypeNormal, reasonDone, "the data are on %s from now on, and pods that use them run there; the size is what is requested, and bounds what is written only where the storage there does (Rivulet's local-path does not)", p.Node)
	return nil
}

// stays returns why the user wants the claim at home, "" otherwise.
func (c *Controller) stays(ctx context.Context, p *Place, claim *corev1.PersistentVolumeClaim) string {
	if !p.Offloaded(claim.Namespace) {
		return "namespace " + claim.Namespace + " is not offloaded there; see: rivulet offload --help"
	}
	if claim.Annotations[policy.ReflectAnnotation] == policy.ReflectOff {
		return "annotation " + policy.ReflectAnnotation + " of the claim keeps it at home"
	}
	ns, err := c.cfg.Home.CoreV1().Namespaces().Get(ctx, claim.Namespace, metav1.GetOptions{})
	if err != nil {
		return err.Error()
	}
	parsed, _ := policy.Parse(ns) // its watcher reports an invalid label
	switch mode := parsed.Mode(policy.KindClaim); {
	case mode == policy.ReflectOff, mode == policy.ReflectOptIn && claim.Annotations[policy.ReflectAnnotation] != policy.ReflectOn:
		return "annotation " + policy.ReflectAnnotation + " of the namespace keeps it at home"
	}
	return ""
}

func (c *Controller) createAway(ctx context.Context, p *Place, twin string, want *corev1.PersistentVolumeClaim) error {
	api := p.Target.Client().CoreV1().PersistentVolumeClaims(twin)
	_, err := api.Create(ctx, want, metav1.CreateOptions{FieldManager: policy.FieldManager})
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	have, err := api.Get(ctx, want.Name, metav1.GetOptions{})
	switch {
	case err != nil:
		return err
	case have.Labels[VolumeLabel] != want.Labels[VolumeLabel] || have.Labels[policy.OriginLabel] != c.cfg.Cluster:
		return fmt.Errorf("claim %s/%s on %s is not ours; rename it there", twin, want.Name, p.Node)
	case have.DeletionTimestamp != nil:
		return errNotYet
	}
	return nil
}

// handBack makes the scheduler choose again, with the reason in an event.
func (c *Controller) handBack(ctx context.Context, claim *corev1.PersistentVolumeClaim, why string) error {
	c.cfg.Recorder.Event(claim, corev1.EventTypeWarning, reasonFailed, why)
	back := claim.DeepCopy()
	delete(back.Annotations, storageutil.AnnSelectedNode)
	_, err := c.cfg.Home.CoreV1().PersistentVolumeClaims(claim.Namespace).Update(ctx, back, metav1.UpdateOptions{FieldManager: policy.FieldManager})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil // its change queues it again
	}
	return err
}

// grow requests the claim's new size from the provider, and reports the granted size at home.
func (c *Controller) grow(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	v, err := c.volumes.Get(claim.Spec.VolumeName)
	if err != nil || v.Labels[AwayLabel] == "" || claim.Status.Phase != corev1.ClaimBound {
		return nil //nolint:nilerr // its change queues it again
	}
	asked, has := claim.Spec.Resources.Requests[corev1.ResourceStorage], claim.Status.Capacity[corev1.ResourceStorage]
	if asked.Cmp(has) <= 0 {
		return nil
	}
	p := c.of(v.Labels[AwayLabel])
	if p == nil || !p.Up() {
		return errNotYet
	}
	away, api, err := c.away(ctx, p, v)
	if err != nil || away == nil {
		return err
	}
	if now := away.Spec.Resources.Requests[corev1.ResourceStorage]; now.Cmp(asked) < 0 {
		away.Spec.Resources.Requests[corev1.ResourceStorage] = asked
		if _, err := api.Update(ctx, away, metav1.UpdateOptions{FieldManager: policy.FieldManager}); err != nil {
			c.cfg.Recorder.Eventf(claim, corev1.EventTypeWarning, reasonNotGrown, "%s: %v; ask for less, or move the data: rivulet move volume %s/%s home", p.Node, err, claim.Namespace, claim.Name)
			return err
		}
	}
	// A claim without a pod so far gets its size with its volume.
	if got := away.Status.Capacity[corev1.ResourceStorage]; away.Status.Phase == corev1.ClaimBound && got.Cmp(asked) < 0 {
		return errNotYet
	}
	if now := v.Spec.Capacity[corev1.ResourceStorage]; now.Cmp(asked) < 0 {
		larger := v.DeepCopy()
		larger.Spec.Capacity[corev1.ResourceStorage] = asked
		if _, err := c.cfg.Home.CoreV1().PersistentVolumes().Update(ctx, larger, metav1.UpdateOptions{FieldManager: policy.FieldManager}); err != nil {
			return err
		}
	}
	done := claim.DeepCopy()
	done.Status.Capacity[corev1.ResourceStorage] = asked
	delete(done.Status.AllocatedResourceStatuses, corev1.ResourceStorage)
	if _, err := c.cfg.Home.CoreV1().PersistentVolumeClaims(claim.Namespace).UpdateStatus(ctx, done, metav1.UpdateOptions{FieldManager: policy.FieldManager}); err != nil {
		return err
	}
	c.cfg.Recorder.Eventf(claim, corev1.EventTypeNormal, reasonGrown, "the volume on %s has %s now", p.Node, asked.String())
	return nil
}
