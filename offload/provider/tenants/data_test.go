package tenants

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/offload/replacement"
)

// Silence ends pods, and throws no data away.
func TestDataOutliveSilence(t *testing.T) {
	w := newWorld()
	ctx := t.Context()
	if _, err := w.client.CoreV1().PersistentVolumeClaims("lab-a").Create(ctx, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	record := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Labels: map[string]string{}, Annotations: map[string]string{}}}
	replacement.Keep(record, replacement.AtOnce)
	if _, err := w.client.CoreV1().Pods("lab-a").Create(ctx, record, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.round(t, 0)
	w.round(t, 2*PeerLimit)
	if got := w.left(t); got != "[lab-a]" {
		t.Errorf("%q is left, want the twin with a claim", got)
	}
	if _, err := w.client.CoreV1().Pods("lab-a").Get(ctx, "web", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a pod that is its own record: %v, want none", err)
	}
	ended := map[string]bool{} // the fake API server knows no collections
	for _, a := range w.client.Actions() {
		if a.GetVerb() == "delete-collection" && a.GetNamespace() == "lab-a" {
			ended[a.GetResource().Resource] = true
		}
	}
	if !ended["replicasets"] || !ended["jobs"] {
		t.Errorf("only %v are ended", ended)
	}
	if err := w.client.CoreV1().PersistentVolumeClaims("lab-a").Delete(ctx, "data", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.round(t, PeerLimit)
	if got := w.left(t); got != "[]" {
		t.Errorf("%q is left, want nothing", got)
	}
}
