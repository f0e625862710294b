package volume

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"rivulet/offload/policy"
)

const (
	// ClaimedAnnotation on a volume is the Moment of home's API at which it had the volume's claim.
	ClaimedAnnotation = "rivulet.dev/claimed"
	// UnclaimedAnnotation is on a volume that is kept because its claim was not seen since the datastore was recovered.
	UnclaimedAnnotation = "rivulet.dev/unclaimed"
)

// Claimed notes on a volume that home's API has its claim, once in each history of home's API.
func Claimed(ctx context.Context, home kubernetes.Interface, v *corev1.PersistentVolume) error {
	now, err := Now(ctx, home) // before the claim is read: a recovery between the two is no reason to delete
	if err != nil || now.Follows(v.Annotations[ClaimedAnnotation]) {
		return err
	}
	if has, err := hasClaim(ctx, home, v); err != nil || !has {
		return err
	}
	noted := v.DeepCopy()
	metav1.SetMetaDataAnnotation(&noted.ObjectMeta, ClaimedAnnotation, now.String())
	delete(noted.Annotations, UnclaimedAnnotation)
	_, err = home.CoreV1().PersistentVolumes().Update(ctx, noted, metav1.UpdateOptions{FieldManager: policy.FieldManager})
	return err
}

// Release marks a volume of policy Delete whose claim is gone as deleted, so that no claim can be bound to it; a finalizer
// keeps it until its data are removed. A claim that was not seen in the present history of home's API proves nothing: a
// datastore that was recovered from damaged pages may have the volume and lack its claim. Such a volume gets policy Retain
// and UnclaimedAnnotation. While the claim is there it returns an error, and the next try may succeed.
func Release(ctx context.Context, home kubernetes.Interface, v *corev1.PersistentVolume) error {
	if has, err := hasClaim(ctx, home, v); err != nil {
		return err
	} else if has {
		return fmt.Errorf("volume %s is released, and its claim %s/%s is there; waiting for either to change", v.Name, v.Spec.ClaimRef.Namespace, v.Spec.ClaimRef.Name)
	}
	now, err := Now(ctx, home) // after the claim was read, as above
	if err != nil {
		return err
	}
	api := home.CoreV1().PersistentVolumes()
	if now.Follows(v.Annotations[ClaimedAnnotation]) {
		return api.Delete(ctx, v.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &v.UID, ResourceVersion: &v.ResourceVersion}})
	}
	kept := v.DeepCopy()
	kept.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	metav1.SetMetaDataAnnotation(&kept.ObjectMeta, UnclaimedAnnotation, now.String())
	_, err = api.Update(ctx, kept, metav1.UpdateOptions{FieldManager: policy.FieldManager})
	return err
}

// hasClaim reads from home's API whether the claim of a volume is there.
func hasClaim(ctx context.Context, home kubernetes.Interface, v *corev1.PersistentVolume) (bool, error) {
	ref := v.Spec.ClaimRef
	if ref == nil {
		return false, nil
	}
	claim, err := home.CoreV1().PersistentVolumeClaims(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil && claim.UID == ref.UID, err
}
