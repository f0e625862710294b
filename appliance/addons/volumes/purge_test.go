package volumes

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"rivulet/offload/consumer/volume"
)

// TestAFolderGoesByWhatTheDatastoreHas: a power cut of the server may take back what this device's watch was told. Only
// what the datastore answers is on its disk.
func TestAFolderGoesByWhatTheDatastoreHas(t *testing.T) {
	claim := newClaim("default", "db")
	for what, change := range map[string]func(*corev1.PersistentVolume){
		"not deleted": func(v *corev1.PersistentVolume) { v.DeletionTimestamp = nil },
		"bound again": func(v *corev1.PersistentVolume) { v.Status.Phase = corev1.VolumeBound },
		"retained": func(v *corev1.PersistentVolume) {
			v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
		},
		"being moved":  func(v *corev1.PersistentVolume) { v.Annotations[volume.MoveAnnotation] = "{}" },
		"another one":  func(v *corev1.PersistentVolume) { v.UID = "2" },
		"not there":    func(v *corev1.PersistentVolume) { v.Name = "pvc-2" },
		"as it was":    func(*corev1.PersistentVolume) {},
		"not readable": nil,
	} {
		local := NewLocal(t.TempDir(), "here")
		dir, err := local.Fresh("default", "db", "pvc-1")
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "data"), nil, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		was := local.Volume(claim, nil, "pvc-1")
		was.UID, was.DeletionTimestamp, was.Status.Phase = "1", ptr.To(metav1.Now()), corev1.VolumeReleased
		live := was.DeepCopy()
		if change != nil {
			change(live)
		}
		client := fake.NewClientset(live)
		if change == nil {
			client.PrependReactor("get", "persistentvolumes", func(k8stesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("the disk fails") })
		}
		c := New(Config{Client: client, Local: local, Log: slog.New(slog.DiscardHandler)})
		_ = c.purge(t.Context(), was)
		_, err = os.Stat(filepath.Join(dir, "data"))
		if gone := errors.Is(err, os.ErrNotExist); gone != (what == "as it was") {
			t.Errorf("%s: the data are gone: %v", what, gone)
		}
	}
}
