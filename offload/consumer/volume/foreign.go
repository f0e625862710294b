package volume

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storageutil "k8s.io/component-helpers/storage/volume"
)

// Foreign is a claim whose volume was not made by Rivulet: it is mounted by this cluster's own nodes and by nobody else.
// The volume is its user's: it is never changed.
type Foreign struct {
	Claim, Volume string
	// Kind is the source of the volume, as in its YAML, with the driver of a CSI volume.
	Kind string
}

func (f *Foreign) Error() string {
	return fmt.Sprintf("claim %s is on volume %s (%s), which only this cluster's own nodes can mount", f.Claim, f.Volume, f.Kind)
}

// ForeignKind returns the source of a volume that was not made by Rivulet, "" for others.
func ForeignKind(v *corev1.PersistentVolume) string {
	if v.Labels[AwayLabel] != "" || v.Annotations[storageutil.AnnDynamicallyProvisioned] == Provisioner {
		return ""
	}
	if csi := v.Spec.CSI; csi != nil {
		return "csi, driver " + csi.Driver
	}
	var source map[string]json.RawMessage
	if raw, err := json.Marshal(v.Spec.PersistentVolumeSource); err != nil || json.Unmarshal(raw, &source) != nil {
		return "of an unknown kind"
	}
	for kind := range source { // there is one
		return kind
	}
	return "of an unknown kind"
}
