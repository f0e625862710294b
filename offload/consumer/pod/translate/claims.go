package translate

import corev1 "k8s.io/api/core/v1"

// ownClaims replaces ephemeral volumes by the claims that home has made for them.
func ownClaims(volumes []corev1.Volume, pod string) {
	for i := range volumes {
		if volumes[i].Ephemeral != nil {
			volumes[i].VolumeSource = corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: pod + "-" + volumes[i].Name}}
		}
	}
}
