package volume

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	storageutil "k8s.io/component-helpers/storage/volume"

	"rivulet/offload/policy"
)

// Name is the name of the volume for a claim.
func Name(uid types.UID) string { return "pvc-" + string(uid) }

// AwayName is the name of the claim in the twin: readable, and different for each volume, since a retained one may
// still exist when a claim of the same name is made.
func AwayName(claim, volume string) string {
	sum := sha256.Sum256([]byte(volume))
	const most = 63 - 9
	if len(claim) > most {
		claim = claim[:most]
	}
	return strings.TrimRight(claim, "-.") + "-" + hex.EncodeToString(sum[:4])
}

// AwayClaim is the claim in the twin. Its class is the provider's default unless the claim at home names one.
func AwayClaim(home *corev1.PersistentVolumeClaim, volume, cluster string) *corev1.PersistentVolumeClaim {
	away := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Name:        AwayName(home.Name, volume),
			Labels:      map[string]string{policy.OriginLabel: cluster, VolumeLabel: volume},
			Annotations: map[string]string{policy.HomeNamespaceAnnotation: home.Namespace, HomeClaimAnnotation: home.Name},
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: home.Spec.AccessModes, VolumeMode: home.Spec.VolumeMode,
			Resources: corev1.VolumeResourceRequirements{Requests: home.Spec.Resources.Requests.DeepCopy()},
		},
	}
	if class := home.Annotations[ClassAnnotation]; class != "" {
		away.Spec.StorageClassName = &class
	}
	return away
}

// Volume is home's volume for a claim with data on a target. Its path is never mounted: only pods of the virtual node
// may use it, and no kubelet of home runs them. It is bound to the claim itself if that has a UID, otherwise to the
// next one of its name.
func Volume(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, name, node, target string) *corev1.PersistentVolume {
	reclaim, mode := corev1.PersistentVolumeReclaimDelete, corev1.PersistentVolumeFilesystem
	var mount []string
	if class != nil {
		mount = class.MountOptions
		if class.ReclaimPolicy != nil {
			reclaim = *class.ReclaimPolicy
		}
	}
	if claim.Spec.VolumeMode != nil {
		mode = *claim.Spec.VolumeMode
	}
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{AwayLabel: target}, Finalizers: []string{finalizer},
			Annotations: map[string]string{storageutil.AnnDynamicallyProvisioned: Provisioner, ClaimAnnotation: AwayName(claim.Name, name)},
		},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:    corev1.ResourceList{corev1.ResourceStorage: claim.Spec.Resources.Requests[corev1.ResourceStorage]},
			AccessModes: claim.Spec.AccessModes, VolumeMode: &mode, MountOptions: mount,
			PersistentVolumeReclaimPolicy: reclaim, StorageClassName: className(claim),
			ClaimRef: &corev1.ObjectReference{
				APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name,
				UID: claim.UID, ResourceVersion: claim.ResourceVersion,
			},
			PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/volumes-of-other-clusters/" + node}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
			}}}},
		},
	}
}

func ByClaim(a, b corev1.PersistentVolume) int {
	name := func(v corev1.PersistentVolume) string {
		if ref := v.Spec.ClaimRef; ref != nil {
			return ref.Namespace + "/" + ref.Name
		}
		return v.Name
	}
	return strings.Compare(name(a), name(b))
}
