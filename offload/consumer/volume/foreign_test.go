package volume

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	storageutil "k8s.io/component-helpers/storage/volume"

	"rivulet/offload/policy"
)

// A volume that Rivulet has not made is its user's: it stays as it is, wherever its claim is, and no target ever has its
// claim.
func TestForeignVolumes(t *testing.T) {
	at := func(name, namespace string, source corev1.PersistentVolumeSource) *corev1.PersistentVolume {
		return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: source,
			ClaimRef: &corev1.ObjectReference{Namespace: namespace, Name: name}}, Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound}}
	}
	sources := map[string]corev1.PersistentVolumeSource{
		"nfs":                           {NFS: &corev1.NFSVolumeSource{Server: "nas", Path: "/"}},
		"hostPath":                      {HostPath: &corev1.HostPathVolumeSource{Path: "/x"}},
		"csi, driver nfs.csi.k8s.io":    {CSI: &corev1.CSIPersistentVolumeSource{Driver: "nfs.csi.k8s.io"}},
		"csi, driver other.example.org": {CSI: &corev1.CSIPersistentVolumeSource{Driver: "other.example.org"}},
	}
	var objects []runtime.Object
	for _, when := range []policy.When{policy.Burst, policy.Any, policy.Remote} {
		ns := string(when)
		objects = append(objects, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns, Labels: map[string]string{policy.NamespaceLabel: ns}}})
		n := 0
		for _, source := range sources {
			n++
			v := at(fmt.Sprint(ns, n), ns, source)
			objects = append(objects, v, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: v.Name}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: v.Name}})
		}
	}
	client := fake.NewClientset(objects...)
	c := New(Config{Home: client, Cluster: "aid", Peer: func(string) string { return "" }, Recorder: record.NewFakeRecorder(10), Log: slog.New(slog.DiscardHandler)})
	volumes := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	c.volumes = listers.NewPersistentVolumeLister(volumes)
	for _, o := range objects {
		if v, ok := o.(*corev1.PersistentVolume); ok {
			if err := volumes.Add(v); err != nil {
				t.Fatal(err)
			}
			if err := c.syncVolume(t.Context(), v.Name); err != nil {
				t.Errorf("%s: %v", v.Name, err)
			}
		}
	}
	for _, a := range client.Actions() {
		if a.GetVerb() != "get" {
			t.Errorf("written: %v", a)
		}
	}
	for _, o := range objects {
		claim, ok := o.(*corev1.PersistentVolumeClaim)
		if !ok {
			continue
		}
		_, _, err := c.AwayClaimOf(t.Context(), claim.Namespace, claim.Name, "b")
		var foreign *Foreign
		if !errors.As(err, &foreign) || foreign.Volume != claim.Spec.VolumeName {
			t.Errorf("claim %s: %v", claim.Name, err)
		} else if _, known := sources[foreign.Kind]; !known {
			t.Errorf("kind %q", foreign.Kind)
		}
	}
	ours := at("ours", "burst", sources["hostPath"])
	ours.Annotations = map[string]string{storageutil.AnnDynamicallyProvisioned: Provisioner}
	if kind := ForeignKind(ours); kind != "" {
		t.Errorf("its own volume is foreign: %q", kind)
	}
}
