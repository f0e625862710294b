package volumes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	storageutil "k8s.io/component-helpers/storage/volume"

	"rivulet/appliance/health"
	"rivulet/offload/consumer/volume"
	"rivulet/offload/policy"
	"rivulet/test/harness/await"
	"rivulet/test/harness/fakewatch"
)

// world is one device: an API server that has finalizers, a disk, and the parts of
// Kubernetes that bind and release, which the test plays by hand.
type world struct {
	t      *testing.T
	client *fake.Clientset
	dir    string
	local  *Local
	worker bool
	health *health.Tracker
}

func newWorld(t *testing.T, objects ...runtime.Object) *world {
	w := &world{t: t, client: fake.NewClientset(append(objects,
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: volume.HistoryName, UID: "first"}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "lab-b", Labels: map[string]string{policy.OriginLabel: "b"}}},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "here"}},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "other"}},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "virtual", Labels: map[string]string{policy.VirtualNodeLabel: "b"}}},
	)...), dir: filepath.Join(t.TempDir(), "storage"), health: &health.Tracker{}}
	w.local = NewLocal(w.dir, "here")
	pvs := corev1.SchemeGroupVersion.WithResource("persistentvolumes")
	w.client.PrependReactor("delete", "persistentvolumes", func(a k8stesting.Action) (bool, runtime.Object, error) {
		o, err := w.client.Tracker().Get(pvs, "", a.(k8stesting.DeleteAction).GetName())
		if err != nil || len(o.(*corev1.PersistentVolume).Finalizers) == 0 {
			return false, nil, nil //nolint:nilerr // the tracker answers itself
		}
		v := o.DeepCopyObject().(*corev1.PersistentVolume)
		now := metav1.Now()
		v.DeletionTimestamp = &now
		return true, nil, w.client.Tracker().Update(pvs, v, "")
	})
	w.client.PrependReactor("update", "persistentvolumes", func(a k8stesting.Action) (bool, runtime.Object, error) {
		v := a.(k8stesting.UpdateAction).GetObject().(*corev1.PersistentVolume)
		if o, err := w.client.Tracker().Get(pvs, "", v.Name); err == nil && v.Annotations[volume.ClaimedAnnotation] == "" && o.(*corev1.PersistentVolume).Annotations[volume.ClaimedAnnotation] != "" {
			return true, nil, apierrors.NewConflict(corev1.Resource("persistentvolumes"), v.Name, errors.New("an outdated copy"))
		}
		if v.DeletionTimestamp == nil || len(v.Finalizers) > 0 {
			return false, nil, nil
		}
		return true, v, w.client.Tracker().Delete(pvs, "", v.Name)
	})
	return w
}

var errPower = errors.New("the power is gone")

// run runs a controller until the test ends or, if stopAt is not "", until it gets
// there for the first time; the function it returns waits for its end.
func (w *world) run(stopAt string) (wait func()) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	c := New(Config{Client: w.client, Local: w.local, Worker: w.worker, Health: w.health, Log: slog.New(slog.DiscardHandler)})
	c.step = func(at string) error {
		if at == stopAt {
			cancel()
			return errPower
		}
		return ctx.Err()
	}
	w.client.ClearActions() // of an earlier run
	done, ready := make(chan error, 1), make(chan struct{})
	go func() { done <- c.Run(ctx, func() { close(ready) }) }()
	select {
	case <-ready:
	case err := <-done:
		w.t.Fatalf("controller ended: %v", err)
	}
	end := func() {
		if err := <-done; err != nil {
			w.t.Errorf("controller: %v", err)
		}
	}
	if stopAt != "" {
		return end
	}
	fakewatch.Open(w.t, w.client, "persistentvolumeclaims", "persistentvolumes")
	stop := func() { cancel(); end() }
	w.t.Cleanup(stop)
	return func() {}
}

func (w *world) claim(namespace, name string, change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	w.t.Helper()
	claim := newClaim(namespace, name)
	for _, f := range change {
		f(claim)
	}
	claim, err := w.client.CoreV1().PersistentVolumeClaims(namespace).Create(w.t.Context(), claim, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return claim
}

func newClaim(namespace, name string) *corev1.PersistentVolumeClaim {
	class := ClassName
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, UID: types.UID("uid-" + namespace + "-" + name),
			Annotations: map[string]string{storageutil.AnnStorageProvisioner: Provisioner, storageutil.AnnSelectedNode: "here"},
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: &class,
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}},
		},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending},
	}
}

// bind plays Kubernetes' volume controller once there is a volume for the claim.
func (w *world) bind(claim *corev1.PersistentVolumeClaim) *corev1.PersistentVolume {
	w.t.Helper()
	var v *corev1.PersistentVolume
	await.NoError(w.t, w.t.Context(), 10*time.Second, "a volume", func() (err error) {
		v, err = w.client.CoreV1().PersistentVolumes().Get(w.t.Context(), "pvc-"+string(claim.UID), metav1.GetOptions{})
		return err
	})
	v.Status.Phase = corev1.VolumeBound
	w.update(v)
	claim = w.get(claim)
	claim.Spec.VolumeName, claim.Status.Phase, claim.Status.Capacity = v.Name, corev1.ClaimBound, v.Spec.Capacity
	w.updateClaim(claim)
	if w.worker {
		return v
	}
	await.NoError(w.t, w.t.Context(), 10*time.Second, "the claim is noted", func() (err error) {
		v, err = w.client.CoreV1().PersistentVolumes().Get(w.t.Context(), v.Name, metav1.GetOptions{})
		if err == nil && v.Annotations[volume.ClaimedAnnotation] == "" {
			err = errors.New("it is not")
		}
		return err
	})
	return v
}

// release plays it when the claim is deleted.
func (w *world) release(claim *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) {
	w.t.Helper()
	w.delete(claim)
	v, err := w.client.CoreV1().PersistentVolumes().Get(w.t.Context(), v.Name, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	v.Status.Phase = corev1.VolumeReleased
	w.update(v)
}

func (w *world) get(claim *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	w.t.Helper()
	claim, err := w.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Get(w.t.Context(), claim.Name, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return claim
}

func (w *world) update(v *corev1.PersistentVolume) {
	w.t.Helper()
	if _, err := w.client.CoreV1().PersistentVolumes().Update(w.t.Context(), v, metav1.UpdateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) updateClaim(claim *corev1.PersistentVolumeClaim) {
	w.t.Helper()
	if _, err := w.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Update(w.t.Context(), claim, metav1.UpdateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) delete(claim *corev1.PersistentVolumeClaim) {
	w.t.Helper()
	if err := w.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Delete(w.t.Context(), claim.Name, metav1.DeleteOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) volumes() []corev1.PersistentVolume {
	w.t.Helper()
	l, err := w.client.CoreV1().PersistentVolumes().List(w.t.Context(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return l.Items
}

func (w *world) folders() []string {
	w.t.Helper()
	names, err := folders{w.dir}.list()
	if err != nil {
		w.t.Fatal(err)
	}
	return names
}

// write puts a file where a pod would.
func (w *world) write(v *corev1.PersistentVolume) string {
	w.t.Helper()
	path := filepath.Join(v.Spec.Local.Path, "data")
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		w.t.Fatal(err)
	}
	return path
}

func (w *world) event(reason, part string) {
	w.t.Helper()
	await.NoError(w.t, w.t.Context(), 10*time.Second, "event "+reason, func() error {
		l, err := w.client.CoreV1().Events("").List(w.t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		var seen []string
		for _, e := range l.Items {
			if e.Reason == reason && strings.Contains(e.Message, part) {
				return nil
			}
			seen = append(seen, e.Reason+": "+e.Message)
		}
		return fmt.Errorf("no %s with %q among %q", reason, part, seen)
	})
}

func (w *world) class(name string) *storagev1.StorageClass {
	w.t.Helper()
	class, err := w.client.StorageV1().StorageClasses().Get(w.t.Context(), name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		w.t.Fatal(err)
	}
	return class
}
