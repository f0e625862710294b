package move

import (
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"rivulet/offload/consumer/volume"
)

// switching is a move whose copy is complete and whose claim is released: the volumes are "old" and "moved". The fake API
// binds what it is asked to bind.
func switching(t *testing.T, objects ...runtime.Object) (*Mover, *Job, *fake.Clientset) {
	t.Helper()
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "db"}}
	n := note{Request: Request{Namespace: "lab", Claim: "db", To: "b"}, Was: claim, Reclaim: corev1.PersistentVolumeReclaimDelete, Volume: "moved", Copied: true}
	text, err := json.Marshal(n)
	if err != nil {
		t.Fatal(err)
	}
	old := persistent("old", corev1.PersistentVolumeReclaimRetain)
	old.Annotations = map[string]string{volume.MoveAnnotation: string(text)}
	old.Spec.ClaimRef.UID, old.Status.Phase = "former", corev1.VolumeReleased
	client := fake.NewSimpleClientset(append(objects, old)...)
	client.PrependReactor("update", "persistentvolumes", func(a ktesting.Action) (bool, runtime.Object, error) {
		if v := a.(ktesting.UpdateAction).GetObject().(*corev1.PersistentVolume); v.Spec.ClaimRef.UID == "" {
			v.Status.Phase = corev1.VolumeAvailable
		}
		return false, nil, nil
	})
	client.PrependReactor("create", "persistentvolumeclaims", func(a ktesting.Action) (bool, runtime.Object, error) {
		a.(ktesting.CreateAction).GetObject().(*corev1.PersistentVolumeClaim).Status.Phase = corev1.ClaimBound
		return false, nil, nil
	})
	m := New(Config{Home: client, Cluster: "id-of-a", Recorder: record.NewFakeRecorder(10), Log: slog.New(slog.DiscardHandler), Pause: 10 * time.Millisecond,
		Local: &disk{}, Place: func(string) *volume.Place { return nil }})
	return m, &Job{note: n, volume: "old", done: make(chan struct{})}, client
}

func persistent(name string, policy corev1.PersistentVolumeReclaimPolicy) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeAvailable},
		Spec: corev1.PersistentVolumeSpec{PersistentVolumeReclaimPolicy: policy, ClaimRef: &corev1.ObjectReference{Namespace: "lab", Name: "db"}}}
}

func volumeOf(t *testing.T, client *fake.Clientset, name string) *corev1.PersistentVolume {
	t.Helper()
	v, err := client.CoreV1().PersistentVolumes().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func lab() *corev1.Namespace { return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "lab"}} }

// TestADeletedCopyKeepsTheOriginal: somebody deletes the new volume, which no claim uses yet, before the switch.
func TestADeletedCopyKeepsTheOriginal(t *testing.T) {
	going := persistent("moved", corev1.PersistentVolumeReclaimDelete)
	going.DeletionTimestamp, going.Finalizers = &metav1.Time{Time: time.Now()}, []string{"test/held"}
	for what, copied := range map[string][]runtime.Object{"gone": nil, "being deleted": {going}} {
		m, j, client := switching(t, append(copied, lab())...)
		if err := m.transfer(t.Context(), j); err == nil || !strings.Contains(err.Error(), "the copy, volume moved, was deleted meanwhile") {
			t.Errorf("%s: %v", what, err)
		}
		claim, err := client.CoreV1().PersistentVolumeClaims("lab").Get(t.Context(), "db", metav1.GetOptions{})
		if err != nil || claim.Spec.VolumeName != "old" {
			t.Errorf("%s: the claim is not bound to the original again: %+v %v", what, claim, err)
		}
		if v := volumeOf(t, client, "old"); v.Status.Phase == corev1.VolumeReleased || v.Annotations[volume.MoveAnnotation] != "" {
			t.Errorf("%s: the original is %s, %v", what, v.Status.Phase, v.Annotations)
		}
	}
}

// TestACopyThatIsBeingDeletedReleasesNothing: the claim is bound to a copy that goes with its next deletion.
func TestACopyThatIsBeingDeletedReleasesNothing(t *testing.T) {
	going := persistent("moved", corev1.PersistentVolumeReclaimDelete)
	going.DeletionTimestamp, going.Finalizers = &metav1.Time{Time: time.Now()}, []string{"kubernetes.io/pv-protection"}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "db"},
		Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "moved"}, Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound}}
	m, j, client := switching(t, lab(), going, claim)
	if err := m.finish(t.Context(), j, j.note); err == nil || !strings.Contains(err.Error(), "kubectl delete pvc -n lab db") {
		t.Errorf("%v", err)
	}
	if v := volumeOf(t, client, "old"); v.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain || v.Annotations[volume.MoveAnnotation] == "" {
		t.Errorf("the original is released: %s %v", v.Spec.PersistentVolumeReclaimPolicy, v.Annotations)
	}
}

// TestTheNamespaceIsGone: the original goes with a namespace that was deleted, and stays when nobody has seen that.
func TestTheNamespaceIsGone(t *testing.T) {
	terminating := apierrors.NewForbidden(corev1.Resource("persistentvolumeclaims"), "db", nil)
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	missing := apierrors.NewNotFound(corev1.Resource("namespaces"), "lab")
	ending := lab()
	ending.DeletionTimestamp, ending.Finalizers = &metav1.Time{Time: time.Now()}, []string{"kubernetes"}
	held := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "db", Finalizers: []string{Finalizer}}}
	for _, c := range []struct {
		what   string
		there  []runtime.Object
		answer error
		want   corev1.PersistentVolumeReclaimPolicy
	}{
		{"it is terminating", nil, terminating, corev1.PersistentVolumeReclaimDelete},
		{"it was terminating", []runtime.Object{ending, held}, missing, corev1.PersistentVolumeReclaimDelete},
		{"it is not there", nil, missing, corev1.PersistentVolumeReclaimRetain},
	} {
		m, j, client := switching(t, append(c.there, persistent("moved", corev1.PersistentVolumeReclaimDelete))...)
		client.PrependReactor("update", "persistentvolumeclaims", func(a ktesting.Action) (bool, runtime.Object, error) { // without its finalizer it goes
			return true, held, client.Tracker().Delete(a.GetResource(), "lab", "db")
		})
		client.PrependReactor("create", "persistentvolumeclaims", func(ktesting.Action) (bool, runtime.Object, error) { return true, nil, c.answer })
		if err := m.transfer(t.Context(), j); err == nil || !strings.Contains(err.Error(), "namespace lab is") {
			t.Errorf("%s: %v", c.what, err)
		}
		if v := volumeOf(t, client, "old"); v.Spec.PersistentVolumeReclaimPolicy != c.want || v.Annotations[volume.MoveAnnotation] != "" {
			t.Errorf("%s: the original has the policy %s and %v, want %s", c.what, v.Spec.PersistentVolumeReclaimPolicy, v.Annotations, c.want)
		}
		if _, err := client.CoreV1().PersistentVolumes().Get(t.Context(), "moved", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("%s: the copy stays: %v", c.what, err)
		}
	}
}

// TestAnOlderMoveDiscardsNothing: home's datastore was put back to a state in the middle of a move, which was completed since:
// what looks like an incomplete copy is the only one. The move is undone without it, and nothing is written over it.
func TestAnOlderMoveDiscardsNothing(t *testing.T) {
	for since, kept := range map[string]bool{"before.0": true, "": false, "now.0": false} {
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "db"}}
		history := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: volume.HistoryName, UID: "now"}}
		m, j, _ := switching(t, history, lab())
		copied := volume.AwayClaim(claim, "moved", "id-of-a")
		copied.Namespace = "twin-on-b"
		there := fake.NewClientset(copied)
		p := &peer{name: "b", client: there}
		p.ready.Store(true)
		p.place = &volume.Place{Node: "b", Target: p, Owner: p}
		m.cfg.Place = func(string) *volume.Place { return p.place }
		j.note.Copied, j.note.Since, j.note.Back, j.note.Why = false, since, true, "the original is not there"
		if err := m.transfer(t.Context(), j); err == nil || err.Error() != j.note.Why {
			t.Errorf("%q: %v", since, err)
		}
		_, err := there.CoreV1().PersistentVolumeClaims("twin-on-b").Get(t.Context(), copied.Name, metav1.GetOptions{})
		if (err == nil) != kept {
			t.Errorf("a move since %q: the copy is there: %v, want %v", since, err == nil, kept)
		}
		if err := m.ours(t.Context(), j.note); (err != nil) != kept || kept && !isFinal(err) {
			t.Errorf("a move since %q: %v", since, err)
		}
	}
}
