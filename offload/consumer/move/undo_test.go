package move

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"rivulet/fabric/rpc"
	"rivulet/offload/consumer/volume"
	"rivulet/offload/nodeagent/filetree"
)

// disk is a device whose volumes are empty, or have an error.
type disk struct {
	original, held error
	did            []string
}

func (d *disk) Node() string { return "here" }

func (d *disk) Files(*corev1.PersistentVolume) (filetree.Tree, error) {
	if errors.Is(d.original, fs.ErrNotExist) {
		return nil, d.original
	}
	return tree{d.original}, nil
}

func (d *disk) Hold(ctx context.Context, v *corev1.PersistentVolume) (context.Context, filetree.Tree, func(), error) {
	d.did = append(d.did, "hold "+v.Name)
	return ctx, tree{}, func() {}, d.held
}

func (d *disk) Fresh(_, _, volume string) (string, error) {
	d.did = append(d.did, "fresh "+volume)
	return "", nil
}

func (d *disk) Discard(_, _, volume string) error {
	d.did = append(d.did, "discard "+volume)
	return nil
}

func (d *disk) Volume(_ *corev1.PersistentVolumeClaim, _ *storagev1.StorageClass, volume string) *corev1.PersistentVolume {
	return persistent(volume, corev1.PersistentVolumeReclaimDelete)
}

// tree has no files, or the error of whoever holds it.
type tree struct{ err error }

func (t tree) Measure(context.Context) (filetree.Total, error) { return filetree.Total{}, t.err }
func (t tree) SumUp(context.Context) (filetree.Sum, error)     { return filetree.Sum{}, t.err }
func (t tree) Pack(context.Context, io.Writer) error           { return t.err }
func (t tree) Replace(context.Context, int64, io.Reader) (filetree.Sum, error) {
	return filetree.Sum{}, t.err
}

// TestUndoDeletesNoOnlyCopy: a power cut, or a restore, has taken back what a move has written, and the original is gone
// or cannot be read.
func TestUndoDeletesNoOnlyCopy(t *testing.T) {
	gone, away := fmt.Errorf("the folder: %w", fs.ErrNotExist), fmt.Errorf("node c: %w", filetree.ErrUnreachable)
	complete := func() []runtime.Object {
		return []runtime.Object{lab(), persistent("moved", corev1.PersistentVolumeReclaimDelete)}
	}
	for _, c := range []struct {
		what     string
		there    []runtime.Object
		original error
		bound    string // what the claim is bound to in the end
		copied   bool   // the copy's volume is there
		discards bool   // the folder of an incomplete copy is removed
	}{
		{"both are there", complete(), nil, "old", false, false},
		{"a pod has the original", complete(), filetree.ErrInUse, "old", false, false},
		{"the original is gone", complete(), gone, "moved", true, false},
		{"the original cannot be read", complete(), away, "", true, false},
		{"the copy is incomplete", []runtime.Object{lab()}, nil, "old", false, true},
		{"the original is gone, and nothing is known of the copy", []runtime.Object{lab()}, gone, "old", false, false},
		{"the original cannot be read, and the copy is incomplete", []runtime.Object{lab()}, away, "old", false, true},
		{"the peer does not know of the original any more", complete(), &rpc.Error{Code: "no-twin"}, "moved", true, false},
	} {
		history := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: volume.HistoryName, UID: "now"}}
		m, j, client := switching(t, append(c.there, history)...)
		local := &disk{original: c.original}
		m.cfg.Local = local
		j.note.To, j.note.Since, j.note.Copied, j.note.Back, j.note.Why = Home, "now.0", false, true, "the link was cut"
		ctx, cancel := context.WithCancel(t.Context())
		if c.bound == "" {
			err := m.undo(ctx, j, j.note)
			if err == nil || !strings.Contains(err.Error(), "the copy, volume moved, is kept until it can") {
				t.Errorf("%s: %v", c.what, err)
			}
		} else {
			_ = m.transfer(ctx, j)
		}
		cancel()
		claim, err := client.CoreV1().PersistentVolumeClaims("lab").Get(t.Context(), "db", metav1.GetOptions{})
		if c.bound == "" && !apierrors.IsNotFound(err) || c.bound != "" && (err != nil || claim.Spec.VolumeName != c.bound) {
			t.Errorf("%s: the claim is %+v %v, want it bound to %q", c.what, claim, err, c.bound)
		}
		if _, err := client.CoreV1().PersistentVolumes().Get(t.Context(), "moved", metav1.GetOptions{}); (err == nil) != c.copied {
			t.Errorf("%s: the copy: %v", c.what, err)
		}
		if discards := slices.Contains(local.did, "discard moved"); discards != c.discards {
			t.Errorf("%s: %v", c.what, local.did)
		}
	}
}

// TestAnUndoKeepsACopyOfAnotherHistory: home's datastore was put back to the middle of a move that was completed. The
// original is still there, retained by its policy, and the copy has what was written since.
func TestAnUndoKeepsACopyOfAnotherHistory(t *testing.T) {
	for since, kept := range map[string]bool{"before.0": true, "now.0": false} {
		history := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: volume.HistoryName, UID: "now"}}
		m, j, client := switching(t, history, lab(), persistent("moved", corev1.PersistentVolumeReclaimDelete))
		m.cfg.Local = &disk{}
		j.note.To, j.note.Since, j.note.Copied, j.note.Back, j.note.Why = Home, since, false, true, "it was put back"
		if err := m.transfer(t.Context(), j); err == nil || err.Error() != j.note.Why {
			t.Errorf("a move since %q: %v", since, err)
		}
		if _, err := client.CoreV1().PersistentVolumes().Get(t.Context(), "moved", metav1.GetOptions{}); (err == nil) != kept {
			t.Errorf("a move since %q: the copy is there: %v, want %v", since, err == nil, kept)
		}
		claim, err := client.CoreV1().PersistentVolumeClaims("lab").Get(t.Context(), "db", metav1.GetOptions{})
		if err != nil || claim.Spec.VolumeName != "old" {
			t.Errorf("a move since %q: the claim is %+v %v", since, claim, err)
		}
	}
}

// TestAPersonGivesUpTheOriginal: the peer that has it never returns; the error of the undo says what to do.
func TestAPersonGivesUpTheOriginal(t *testing.T) {
	m, j, client := switching(t, lab(), persistent("moved", corev1.PersistentVolumeReclaimDelete))
	m.cfg.Local = &disk{original: filetree.ErrUnreachable}
	j.note.To, j.note.Copied, j.note.Back = Home, false, true
	if err := m.undo(t.Context(), j, j.note); err == nil || !strings.HasSuffix(err.Error(), "kubectl delete pv old --wait=false") {
		t.Fatal(err)
	}
	v := volumeOf(t, client, "old")
	v.DeletionTimestamp, v.Finalizers = &metav1.Time{Time: time.Now()}, []string{"test/held"}
	if _, err := client.CoreV1().PersistentVolumes().Update(t.Context(), v, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := m.transfer(t.Context(), j); err != nil {
		t.Error(err)
	}
	claim, err := client.CoreV1().PersistentVolumeClaims("lab").Get(t.Context(), "db", metav1.GetOptions{})
	if err != nil || claim.Spec.VolumeName != "moved" {
		t.Errorf("%+v %v", claim, err)
	}
}

// TestACompleteCopyIsNotWrittenAgain: the power was cut between its volume and the note.
func TestACompleteCopyIsNotWrittenAgain(t *testing.T) {
	m, j, _ := switching(t, lab(), persistent("moved", corev1.PersistentVolumeReclaimDelete))
	local := &disk{}
	m.cfg.Local = local
	j.note.To, j.note.Copied = Home, false
	if err := m.copy(t.Context(), j, j.note); err != nil || len(local.did) > 0 {
		t.Errorf("%v %v", local.did, err)
	}
}

// TestAVolumeThatAPodStillHasIsNotMoved: the object of the pod is gone, by force, and its kubelet has the volume mounted.
func TestAVolumeThatAPodStillHasIsNotMoved(t *testing.T) {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "db"}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "old"}}
	for _, held := range []error{nil, fmt.Errorf("volume old: %w: it is mounted at /var/lib/kubelet/pods/1", filetree.ErrInUse)} {
		m, j, client := switching(t, lab(), claim.DeepCopy())
		local := &disk{held: held}
		m.cfg.Local, m.cfg.Patience = local, 1
		j.note.To, j.note.Copied = Home, false
		err := m.bring(t.Context(), j, j.note)
		if held == nil {
			// Nothing of this fake can be copied: what matters is that it was begun.
			if !slices.Equal(local.did, []string{"hold old", "fresh moved"}) {
				t.Errorf("%v %v", local.did, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), "it is mounted at") || !strings.Contains(err.Error(), "deleted by force") {
			t.Errorf("%v", err)
		}
		if !slices.Equal(local.did, []string{"hold old"}) {
			t.Errorf("%v: files were touched", local.did)
		}
		if _, err := client.CoreV1().PersistentVolumes().Get(t.Context(), "moved", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("there is a copy: %v", err)
		}
	}
}
