package volumes

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	storageutil "k8s.io/component-helpers/storage/volume"

	"rivulet/offload/consumer/volume"
)

// finalizer keeps a volume's object until its folder is removed.
const finalizer = "rivulet.dev/local-path"

// Reasons of events, the same as of Kubernetes' provisioners where those exist.
const (
	reasonFailed    = "ProvisioningFailed"
	reasonDone      = "ProvisioningSucceeded"
	reasonSpace     = "LowDiskSpace"
	reasonGrown     = "VolumeResizeSuccessful"
	reasonNotGrown  = "VolumeResizeFailed"
	reasonNotPurged = "VolumeFailedDelete"
	reasonMissing   = "VolumeMissing"
)

// refused is an error for which a retry is useless. It ends in a cure.
type refused struct{ error }

func refuse(format string, args ...any) error { return refused{fmt.Errorf(format, args...)} }

// mayConcernUs keeps claims of other provisioners out of the queue.
func mayConcernUs(claim *corev1.PersistentVolumeClaim) bool {
	if by := requestedFrom(claim); by != "" {
		return by == Provisioner
	}
	return className(claim) != "" // the class may be created later
}

func requestedFrom(claim *corev1.PersistentVolumeClaim) string {
	if by := claim.Annotations[storageutil.AnnStorageProvisioner]; by != "" {
		return by
	}
	return claim.Annotations[storageutil.AnnBetaStorageProvisioner]
}

func (c *Controller) syncClaimKey(ctx context.Context, key string) error {
	switch key {
	case keyClass:
		return c.keepClass(ctx)
	case keySweep:
		return c.sweep(ctx)
	}
	namespace, name, _ := strings.Cut(key, "/")
	claim, err := c.claims.PersistentVolumeClaims(namespace).Get(name)
	if err != nil || claim.DeletionTimestamp != nil {
		return nil //nolint:nilerr // gone
	}
	switch {
	case claim.Status.Phase == corev1.ClaimLost:
		err = c.again(ctx, claim)
	case claim.Spec.VolumeName != "":
		return c.grow(ctx, claim)
	default:
		err = c.provision(ctx, claim)
	}
	if err == nil {
		return nil
	}
	c.recorder.Event(claim, corev1.EventTypeWarning, reasonFailed, err.Error())
	if errors.As(err, new(refused)) {
		return nil
	}
	return err
}

// provision creates folder and volume for a claim of this provisioner that has none.
func (c *Controller) provision(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	class, err := c.classes.Get(className(claim))
	if err != nil || class.Provisioner != Provisioner || requestedFrom(claim) != Provisioner {
		return nil //nolint:nilerr // not of this provisioner, or not yet; a change of either triggers the next call
	}
	if here, err := c.chosen(ctx, claim, class); err != nil || !here {
		return err
	}
	name := volume.Name(claim.UID)
	if _, err := c.volumes.Get(name); err == nil {
		return nil // created, and not bound yet
	}
	if err := volume.Refusal(claim, class); err != nil {
		return refused{err}
	}
	size := request(claim)
	if err := c.checkSpace(claim, size); err != nil {
		return err
	}
	folder := folderName(claim.Namespace, claim.Name, name)
	if err := c.folders.make(folder); err != nil {
		return fmt.Errorf("cannot make a folder for the volume: %w", err)
	}
	if err := c.step("folder made"); err != nil {
		return err
	}
	if made, err := c.create(ctx, newVolume(claim, class, name, c.folders.path(folder), c.node)); err != nil || !made {
		if errors.As(err, new(refused)) {
			c.removeUnused(folder)
		}
		return err
	}
	c.log.Info("volume made", "claim", claim.Namespace+"/"+claim.Name, "volume", name)
	c.recorder.Eventf(claim, corev1.EventTypeNormal, reasonDone, "made volume %s, a folder: what is written to it is not bounded by its size of %s", name, size.String())
	return c.step("volume made")
}

// again makes the object of a volume that is no more, if the claim's folder is here: a datastore that was recovered may
// lack it. Only the volume that was made for this claim counts, by its UID: a claim may name any volume as its own. It
// has policy Retain, because which it had is not known. A worker makes none: its server does not let it.
func (c *Controller) again(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	name := volume.Name(claim.UID)
	folder := folderName(claim.Namespace, claim.Name, name)
	if c.cfg.Worker || claim.Spec.VolumeName != name || claim.Annotations[storageutil.AnnSelectedNode] != c.node || !c.folders.exists(folder) {
		return nil
	}
	class, err := c.classes.Get(className(claim))
	if err != nil || class.Provisioner != Provisioner {
		return nil //nolint:nilerr // not of this provisioner
	}
	v := newVolume(claim, class, name, c.folders.path(folder), c.node)
	v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	if made, err := c.create(ctx, v); err != nil || !made {
		return err
	}
	c.log.Warn("the object of a volume was missing; made again for the folder that is here", "claim", claim.Namespace+"/"+claim.Name, "volume", name)
	c.recorder.Eventf(claim, corev1.EventTypeNormal, reasonDone, "made volume %s again, for its folder that is here; it is kept when the claim is deleted (Retain)", name)
	return nil
}

// create makes the object of a volume, unless it is there.
func (c *Controller) create(ctx context.Context, v *corev1.PersistentVolume) (made bool, err error) {
	_, err = c.cfg.Client.CoreV1().PersistentVolumes().Create(ctx, v, metav1.CreateOptions{})
	switch {
	case err == nil:
		return true, nil
	case apierrors.IsAlreadyExists(err):
		return false, nil
	case apierrors.IsInvalid(err), apierrors.IsForbidden(err):
		return false, refuse("the API server refuses the volume: %w; mend the claim or its StorageClass", err)
	}
	return false, fmt.Errorf("cannot create the volume: %w", err) // it may exist all the same
}

// chosen reports whether the claim's volume belongs on this node.
func (c *Controller) chosen(ctx context.Context, claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) (bool, error) {
	node := claim.Annotations[storageutil.AnnSelectedNode]
	if here := BelongsOn(claim, class, c.node); here || node == "" {
		return here, nil
	}
	// Another device of the cluster, or a virtual node, whose volumes package volume makes.
	_, err := c.cfg.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err == nil || !apierrors.IsNotFound(err) {
		return false, err
	}
	if c.cfg.Worker {
		return false, nil
	}
	// The node is gone: the scheduler chooses again.
	back := claim.DeepCopy()
	delete(back.Annotations, storageutil.AnnSelectedNode)
	if _, err := c.cfg.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Update(ctx, back, metav1.UpdateOptions{}); err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		return false, err
	}
	return false, refuse("node %s is gone; the scheduler chooses another", node)
}

// BelongsOn reports whether a node may make the volume of a claim without one: the node that the scheduler has chosen,
// or any if the class waits for no choice.
func BelongsOn(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, node string) bool {
	chosen := claim.Annotations[storageutil.AnnSelectedNode]
	wait := class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
	return class.Provisioner == Provisioner && (chosen == node || chosen == "" && !wait)
}

// checkSpace refuses sizes above the size of the disk, and warns of those above its free space: a folder has no size of
// its own.
func (c *Controller) checkSpace(claim *corev1.PersistentVolumeClaim, want resource.Quantity) error {
	disk, err := c.folders.space()
	if err != nil {
		return err
	}
	switch asked := want.Value(); {
	case asked > disk.Size:
		return refuse("%s is asked for, and the whole disk has %s; ask for less, or give the device a larger disk", want.String(), bytes(disk.Size))
	case asked > disk.Free:
		c.recorder.Eventf(claim, corev1.EventTypeWarning, reasonSpace,
			"%s is asked for, and the disk has %s free: the volume is made, and writes will fail when the disk is full; free space on the device", want.String(), bytes(disk.Free))
	}
	return nil
}

// bytes formats a size in Kubernetes' form.
func bytes(n int64) string {
	const mi = 1 << 20
	return fmt.Sprintf("%dMi", n/mi)
}

func request(claim *corev1.PersistentVolumeClaim) resource.Quantity {
	return claim.Spec.Resources.Requests[corev1.ResourceStorage]
}

// newVolume is of type local and not hostPath: then a missing folder is an error of the pod and never replaced by an
// empty one, and fsGroup is applied.
func newVolume(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, name, path, node string) *corev1.PersistentVolume {
	reclaim, mode := corev1.PersistentVolumeReclaimDelete, corev1.PersistentVolumeFilesystem
	var mount []string
	if class != nil {
		mount = class.MountOptions
		if class.ReclaimPolicy != nil {
			reclaim = *class.ReclaimPolicy
		}
	}
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name:        name,
			Annotations: map[string]string{storageutil.AnnDynamicallyProvisioned: Provisioner}, /* Kubernetes leaves the removal to us */
			Finalizers:  []string{finalizer},
		},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: request(claim)},
			AccessModes:                   claim.Spec.AccessModes,
			PersistentVolumeReclaimPolicy: reclaim,
			StorageClassName:              className(claim),
			MountOptions:                  mount,
			VolumeMode:                    &mode,
			ClaimRef: &corev1.ObjectReference{
				APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name,
				UID: claim.UID, ResourceVersion: claim.ResourceVersion,
			},
			PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: path}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{
					Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node},
				}},
			}}}},
		},
	}
}
