package volume

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	storageutil "k8s.io/component-helpers/storage/volume"
)

// Refusal is why a folder on one device cannot satisfy a claim, nil if it can. It is pure.
func Refusal(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) error {
	for _, mode := range claim.Spec.AccessModes {
		if mode != corev1.ReadWriteOnce && mode != corev1.ReadWriteOncePod {
			return fmt.Errorf("access mode %s is not offered: the volume is a folder on one device; use ReadWriteOnce", mode)
		}
	}
	spec := claim.Spec
	switch {
	case spec.VolumeMode != nil && *spec.VolumeMode != corev1.PersistentVolumeFilesystem:
		return fmt.Errorf("volumeMode %s is not offered: the volume is a folder; use Filesystem", *spec.VolumeMode)
	case len(class.Parameters) > 0:
		return fmt.Errorf("StorageClass %s has parameters, and %s takes none; make the class again without", class.Name, Provisioner)
	}
	return Unmeetable(claim)
}

// Unmeetable is why no empty volume of any kind can satisfy a claim.
func Unmeetable(claim *corev1.PersistentVolumeClaim) error {
	spec := claim.Spec
	switch {
	case spec.DataSource != nil || spec.DataSourceRef != nil:
		return fmt.Errorf("a volume cannot be made from a snapshot or another volume; leave dataSource out and copy the data in a pod")
	case spec.Selector != nil:
		return fmt.Errorf("a volume that is made for the claim has no labels to select by; leave selector out")
	case spec.VolumeAttributesClassName != nil && *spec.VolumeAttributesClassName != "":
		return fmt.Errorf("volume attributes classes are not offered; leave volumeAttributesClassName out")
	}
	return nil
}

// refusalAway is Refusal for a claim with a volume on another cluster. If the user names a class of the provider, that
// class decides.
func refusalAway(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) error {
	if claim.Annotations[ClassAnnotation] != "" {
		return Unmeetable(claim)
	}
	return Refusal(claim, class)
}

func className(claim *corev1.PersistentVolumeClaim) string {
	return storageutil.GetPersistentVolumeClaimClass(claim)
}

func selected(claim *corev1.PersistentVolumeClaim) string {
	return claim.Annotations[storageutil.AnnSelectedNode]
}

// concernsUs excludes claims of other provisioners.
func concernsUs(claim *corev1.PersistentVolumeClaim) bool {
	by := claim.Annotations[storageutil.AnnStorageProvisioner]
	return by == Provisioner || by == "" && claim.Spec.VolumeName != ""
}
