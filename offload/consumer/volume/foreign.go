package volume

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	storageutil "k8s.io/component-helpers/storage/volume"

	"rivulet/offload/policy"
)

// Foreign is a claim whose volume was not made by Rivulet: it is mounted by this cluster's own nodes and by nobody else.
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
	raw, err := json.Marshal(v.Spec.PersistentVolumeSource)
	if err == nil {
		err = json.Unmarshal(raw, &source)
	}
	for kind := range source { // there is one
		return kind
	}
	return "of an unknown kind"
}

// homeNodes is the affinity of a volume that is mounted by nodes of this cluster only.
var homeNodes = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
	MatchExpressions: []corev1.NodeSelectorRequirement{{Key: policy.VirtualNodeLabel, Operator: corev1.NodeSelectorOpDoesNotExist}},
}}}}

// unkept reports whether a volume is foreign, claimed, and without an affinity. One that has an affinity keeps it: its
// driver knows its nodes, and no virtual node is one.
func unkept(v *corev1.PersistentVolume) bool {
	return v.Spec.NodeAffinity == nil && v.Spec.ClaimRef != nil && v.DeletionTimestamp == nil && ForeignKind(v) != ""
}

// keepAtHome has the scheduler keep pods with an unkept volume off virtual nodes, where their namespace may run at home,
// too.
func (c *Controller) keepAtHome(ctx context.Context, v *corev1.PersistentVolume) error {
	ns, err := c.cfg.Home.CoreV1().Namespaces().Get(ctx, v.Spec.ClaimRef.Namespace, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if now, _ := policy.Parse(ns); now.When != policy.Burst && now.When != policy.Any { // its watcher reports an invalid label
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": v.ResourceVersion}, "spec": map[string]any{"nodeAffinity": homeNodes}})
	if err != nil {
		return err
	}
	_, err = c.cfg.Home.CoreV1().PersistentVolumes().Patch(ctx, v.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: policy.FieldManager})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
