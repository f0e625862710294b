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
	if v.DeletionTimestamp != nil {
		err = c.purge(ctx, v)
	} else if v.Status.Phase == corev1.VolumeReleased && v.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete {
		err = c.release(ctx, v)
	} else {
		c.check(v)
	}
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil // its change triggers the next call
	}
	if err != nil {
		c.recorder.Event(v, corev1.EventTypeWarning, reasonNotPurged, err.Error())
	}
	return err
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

// release marks a volume whose claim is gone as deleted. Then no claim can bind it any more; the finalizer keeps it
// until purge is done.
func (c *Controller) release(ctx context.Context, v *corev1.PersistentVolume) error {
	if ref := v.Spec.ClaimRef; ref != nil {
		claim, err := c.cfg.Client.CoreV1().PersistentVolumeClaims(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		if err == nil && claim.UID == ref.UID {
			return fmt.Errorf("volume %s is released, and its claim %s/%s is there; waiting for either to change", v.Name, ref.Namespace, ref.Name)
		}
	}
	err := c.cfg.Client.CoreV1().PersistentVolumes().Delete(ctx, v.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &v.UID, ResourceVersion: &v.ResourceVersion},
	})
	if err != nil {
		return err
	}
	return c.step("volume marked deleted")
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
