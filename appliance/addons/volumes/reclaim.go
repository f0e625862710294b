package volumes

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	storageutil "k8s.io/component-helpers/storage/volume"

	"rivulet/appliance/health"
	"rivulet/offload/consumer/volume"
)

// pvProtection is Kubernetes' finalizer: the volume is still bound to a claim.
const pvProtection = "kubernetes.io/pv-protection"

// ours reports whether a volume is a folder on this node of this provisioner.
func (c *Controller) ours(v *corev1.PersistentVolume) bool { return IsOn(v, c.node) }

// IsOn reports whether a volume is a folder of this provisioner on a node.
func IsOn(v *corev1.PersistentVolume, node string) bool {
	if v.Annotations[storageutil.AnnDynamicallyProvisioned] != Provisioner || v.Spec.NodeAffinity == nil || v.Spec.NodeAffinity.Required == nil {
		return false
	}
	for _, t := range v.Spec.NodeAffinity.Required.NodeSelectorTerms {
		for _, e := range t.MatchExpressions {
			if e.Key == corev1.LabelHostname && slices.Contains(e.Values, node) {
				return true
			}
		}
	}
	return false
}

func (c *Controller) syncVolumeKey(ctx context.Context, name string) error {
	v, err := c.volumes.Get(name)
	if err != nil {
		return nil //nolint:nilerr // gone
	}
	if v.Annotations[volume.MoveAnnotation] != "" {
		return nil // package move handles it
	}
	switch phase := v.Status.Phase; {
	case v.DeletionTimestamp != nil:
		if c.ours(v) {
			err = c.purge(ctx, v)
		}
	case c.cfg.Worker:
		c.check(v)
	case phase == corev1.VolumeReleased && v.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete:
		if err = volume.Release(ctx, c.cfg.Client, v); err == nil {
			err = c.step("volume marked deleted")
		}
	default:
		c.unclaimed(v)
		if phase == corev1.VolumeBound {
			err = volume.Claimed(ctx, c.cfg.Client, v)
		}
		if c.ours(v) {
			c.check(v)
		}
	}
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil // its change triggers the next call
	}
	if err != nil {
		c.recorder.Event(v, corev1.EventTypeWarning, reasonNotPurged, err.Error())
	}
	return err
}

// unclaimed reports a volume that was kept because nothing proves that its claim was deleted.
func (c *Controller) unclaimed(v *corev1.PersistentVolume) {
	ref := v.Spec.ClaimRef
	if v.Annotations[volume.UnclaimedAnnotation] == "" || v.Status.Phase != corev1.VolumeReleased || ref == nil {
		c.cfg.Health.ClearFor(health.VolumeUnclaimed, v.Name)
		return
	}
	c.cfg.Health.SetFor(health.VolumeUnclaimed, v.Name,
		fmt.Sprintf("its claim %s/%s is missing since the datastore was recovered; its data are kept", ref.Namespace, ref.Name),
		fmt.Sprintf(`let the next claim of that name have it: rivulet kubectl patch pv %s -p '{"spec":{"claimRef":{"uid":null,"resourceVersion":null}}}'; or give it up, its data stay: rivulet kubectl delete pv %[1]s`, v.Name))
}

// check reports a volume without its folder: its pods cannot start, and the data are elsewhere or lost.
func (c *Controller) check(v *corev1.PersistentVolume) {
	name, err := c.folders.nameOf(v)
	if err == nil && (c.folders.exists(name) || c.folders.exists(filepath.Join(heldDir, name))) {
		c.cfg.Health.ClearFor(health.VolumeMissing, v.Name)
		return
	}
	text, cure := "the folder "+c.folders.path(name)+" is not there", "restore it from a backup, or delete the claim"
	if err != nil {
		text = err.Error()
	}
	if ref := v.Spec.ClaimRef; ref != nil {
		cure += " " + ref.Namespace + "/" + ref.Name
	}
	c.cfg.Health.SetFor(health.VolumeMissing, v.Name, text, cure)
	c.recorder.Event(v, corev1.EventTypeWarning, reasonMissing, text+"; "+cure)
}

// purge removes the folder of a volume that is marked deleted, unless its policy is Retain, and then the finalizer. What
// allows that is read from the datastore, whose answer is on its disk: after a power cut there the volume is deleted, too.
func (c *Controller) purge(ctx context.Context, v *corev1.PersistentVolume) error {
	if !given(v) {
		return nil
	}
	id := v.UID
	v, err := c.cfg.Client.CoreV1().PersistentVolumes().Get(ctx, v.Name, metav1.GetOptions{})
	if err != nil || v.UID != id || !given(v) {
		return err // its change triggers the next call
	}
	if v.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete {
		name, err := c.folders.nameOf(v)
		if err != nil {
			return fmt.Errorf("%w; its files are not touched: remove the finalizer %s to let it go", err, finalizer)
		}
		if err := c.local.remove(ctx, name); err != nil {
			return fmt.Errorf("cannot remove the folder of the volume: %w", err)
		}
		c.log.Info("volume removed", "volume", v.Name, "folder", name)
	} else {
		c.log.Info("volume given up, its folder is kept", "volume", v.Name)
	}
	if err := c.step("folder removed"); err != nil {
		return err
	}
	free := v.DeepCopy()
	free.Finalizers = slices.DeleteFunc(free.Finalizers, func(f string) bool { return f == finalizer })
	_, err = c.cfg.Client.CoreV1().PersistentVolumes().Update(ctx, free, metav1.UpdateOptions{})
	return err
}

// given reports whether a volume is marked deleted, and nothing but its folder keeps it.
func given(v *corev1.PersistentVolume) bool {
	return v.DeletionTimestamp != nil && v.Annotations[volume.MoveAnnotation] == "" && v.Status.Phase != corev1.VolumeBound &&
		slices.Contains(v.Finalizers, finalizer) && !slices.Contains(v.Finalizers, pvProtection)
}

// sweep removes folders without a volume, left by an interruption, whose claim is gone. Nothing was written there.
func (c *Controller) sweep(ctx context.Context) error {
	names, err := c.folders.list()
	if err != nil {
		return err
	}
	for _, name := range names {
		volume := name[strings.LastIndexByte(name, '_')+1:]
		uid, made := strings.CutPrefix(volume, "pvc-")
		if !made || volume == name || c.wanted(uid) {
			continue
		}
		_, err := c.cfg.Client.CoreV1().PersistentVolumes().Get(ctx, volume, metav1.GetOptions{})
		if err == nil {
			continue
		}
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("storage: %w", err)
		}
		c.removeUnused(name)
	}
	return nil
}

// wanted reports whether there is a claim with that UID.
func (c *Controller) wanted(uid string) bool {
	claims, err := c.claims.List(everything)
	return err != nil || slices.ContainsFunc(claims, func(claim *corev1.PersistentVolumeClaim) bool { return string(claim.UID) == uid })
}

func (c *Controller) removeUnused(folder string) {
	gone, err := c.folders.removeEmpty(folder)
	if err != nil {
		c.log.Warn("cannot remove a folder that belongs to no volume", "folder", folder, "err", err)
	} else if gone {
		c.log.Info("removed an empty folder that belonged to no volume", "folder", folder)
	}
}
