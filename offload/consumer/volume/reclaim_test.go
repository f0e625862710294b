package volume

import (
	"context"
	"log/slog"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"rivulet/offload/target"
)

type twinOfLab struct {
	target.Target
	api kubernetes.Interface
}

func (t twinOfLab) ID() string                   { return "b" }
func (t twinOfLab) Client() kubernetes.Interface { return t.api }
func (t twinOfLab) Twins(context.Context) (twins map[string]string, _ error) {
	return map[string]string{"lab": "lab-a"}, nil
}

// The end of data away is reported when the target has confirmed it, not when it was requested, and only then does the
// volume's object go.
func TestTheEndOfDataIsReportedWhenItIsConfirmed(t *testing.T) {
	ctx := t.Context()
	v := Volume(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "data", UID: "1"}}, nil, "pvc-1", "b", "b")
	v.DeletionTimestamp, v.Status.Phase = &metav1.Time{}, corev1.VolumeReleased
	home, there := fake.NewClientset(v), fake.NewClientset(&corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "lab-a", Name: AwayName("data", "pvc-1"), Labels: map[string]string{VolumeLabel: "pvc-1"}}})
	volumes := cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)
	if err := volumes.Add(v); err != nil {
		t.Fatal(err)
	}
	c := New(Config{Home: home, Log: slog.New(slog.DiscardHandler), Peer: func(string) string { return "b" }})
	c.volumes = corelisters.NewPersistentVolumeLister(volumes)
	var freed []string
	c.Serve(&Place{Node: "b", Target: twinOfLab{api: there}, Ready: func() bool { return true }, Freed: func(ns string) { freed = append(freed, ns) }})

	if err := c.syncVolume(ctx, v.Name); err == nil || len(freed) > 0 {
		t.Fatalf("requested, not confirmed: %v, %v", err, freed)
	}
	if err := c.syncVolume(ctx, v.Name); err != nil || len(freed) != 1 || freed[0] != "lab" {
		t.Fatalf("confirmed: %v, %v", err, freed)
	}
	if now, err := home.CoreV1().PersistentVolumes().Get(ctx, v.Name, metav1.GetOptions{}); err == nil && len(now.Finalizers) > 0 {
		t.Errorf("the volume is kept: %v", now.Finalizers)
	}
}
