package volume

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
	storageutil "k8s.io/component-helpers/storage/volume"

	"rivulet/offload/policy"
	"rivulet/test/harness/await"
)

// A volume that Rivulet has not made is for nodes of its own cluster: where its pods may run at home they are kept off virtual
// nodes, and no target ever has its claim.
func TestForeignVolumes(t *testing.T) {
	at := func(name, namespace string, source corev1.PersistentVolumeSource) *corev1.PersistentVolume {
		return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: source,
			ClaimRef: &corev1.ObjectReference{Namespace: namespace, Name: "data"}}}
	}
	nfs := corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{Server: "nas", Path: "/"}}
	ours := at("ours", "lab", corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/x"}})
	ours.Annotations = map[string]string{storageutil.AnnDynamicallyProvisioned: Provisioner}
	placed := at("placed", "lab", corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/x"}})
	placed.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{}}
	free := at("free", "", nfs)
	free.Spec.ClaimRef = nil
	namespace := func(name string, when policy.When) *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{policy.NamespaceLabel: string(when)}}}
	}
	client := fake.NewClientset(namespace("lab", policy.Burst), namespace("away", policy.Remote), ours, placed, free,
		at("nfs", "lab", nfs), at("csi", "lab", corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "nfs.csi.k8s.io"}}), at("remote", "away", nfs), at("no-more", "gone", nfs),
		&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "csi"}})
	c := New(Config{Home: client, Cluster: "aid", Peer: func(string) string { return "" }, Recorder: record.NewFakeRecorder(10), Log: slog.New(slog.DiscardHandler)})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = c.Run(ctx) }()
	defer func() { stop(); <-done }()
	kept := func(name string) bool {
		v, err := client.CoreV1().PersistentVolumes().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		a := v.Spec.NodeAffinity
		return a != nil && len(a.Required.NodeSelectorTerms) == 1 && a.Required.NodeSelectorTerms[0].MatchExpressions[0].Key == policy.VirtualNodeLabel
	}
	await.True(t, time.Minute, "volumes of a namespace that may run at home are kept there", func() bool { return kept("nfs") && kept("csi") })
	for _, name := range []string{"ours", "placed", "free", "remote", "no-more"} {
		if kept(name) {
			t.Errorf("volume %s is changed", name)
		}
	}
	_, _, err := c.AwayClaimOf(t.Context(), "lab", "data", "b")
	var foreign *Foreign
	if !errors.As(err, &foreign) || foreign.Kind != "csi, driver nfs.csi.k8s.io" || foreign.Volume != "csi" {
		t.Errorf("%v", err)
	}
	if kind := ForeignKind(at("x", "lab", nfs)); kind != "nfs" {
		t.Errorf("%q", kind)
	}
}
