package volumes

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/offload/nodeagent/filetree"
	"rivulet/test/harness/await"
)

// While a volume is held its folder is not where a kubelet looks for it, and then it is
// again; what a crash has left elsewhere is put back at the next start.
func TestHeldFromPods(t *testing.T) {
	w := newWorld(t)
	w.run("")
	v := w.bind(w.claim("default", "db"))
	data := w.write(v)
	rel, err := filepath.Rel(v.Spec.Local.Path, data)
	if err != nil {
		t.Fatal(err)
	}
	hold := func() (context.Context, string, func()) {
		t.Helper()
		held, dir, release, err := w.local.hold(t.Context(), v)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Lstat(v.Spec.Local.Path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a pod would find the folder: %v", err)
		}
		if _, err := os.Stat(filepath.Join(dir, rel)); err != nil {
			t.Error(err)
		}
		if files, err := w.local.Files(v); err != nil {
			t.Errorf("held is not gone: %v", err)
		} else if _, err := files.Measure(t.Context()); err != nil {
			t.Error(err)
		}
		return held, dir, release
	}
	inPlace := func() {
		t.Helper()
		if _, err := os.Stat(data); err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(filepath.Join(w.dir, heldDir)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s stays: %v", heldDir, err)
		}
	}
	held, _, release := hold()
	release()
	inPlace()
	if held.Err() == nil {
		t.Error("what was held goes on")
	}

	// The next one ends the first, and begins when it has ended.
	held, _, release = hold()
	next := make(chan func())
	go func() {
		_, _, release := hold()
		next <- release
	}()
	<-held.Done()
	select {
	case <-next:
		t.Fatal("two hold it")
	case <-time.After(50 * time.Millisecond):
	}
	release()
	release = <-next
	// One that does not end is not waited for without end.
	w.local.holds.patience = 50 * time.Millisecond
	if _, _, _, err := w.local.hold(t.Context(), v); !errors.Is(err, filetree.ErrBusy) {
		t.Errorf("%v", err)
	}
	w.local.holds.patience = patience
	release()
	inPlace()

	// A crash.
	hold()
	again := NewLocal(w.dir, "here")
	if err := again.recover(); err != nil {
		t.Fatal(err)
	}
	inPlace()

	// A pod has it, as its kubelet mounts it.
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount")
	}
	at := filepath.Join(t.TempDir(), "pods/1/volumes/kubernetes.io~local-volume", v.Name)
	if err := errors.Join(os.MkdirAll(at, 0o755), unix.Mount(v.Spec.Local.Path, at, "", unix.MS_BIND, "")); err != nil {
		t.Fatal(err)
	}
	again.holds.patience = 200 * time.Millisecond
	_, _, _, err = again.hold(t.Context(), v)
	if err2 := unix.Unmount(at, 0); err2 != nil {
		t.Fatal(err2)
	}
	if !errors.Is(err, filetree.ErrInUse) {
		t.Errorf("%v", err)
	}
	inPlace()
}

// A volume whose claim goes while its files are carried ends that, and is removed.
func TestRemovedWhileHeld(t *testing.T) {
	w := newWorld(t)
	w.run("")
	claim := w.claim("default", "db")
	v := w.bind(claim)
	w.write(v)
	held, _, release, err := w.local.hold(t.Context(), v)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		<-held.Done()
		release()
	}()
	w.release(claim, v)
	await.NoError(w.t, w.t.Context(), 10*time.Second, "the folder is gone", func() error {
		if left := w.folders(); len(left) > 0 {
			return errors.New(left[0])
		}
		_, err := w.client.CoreV1().PersistentVolumes().Get(t.Context(), v.Name, metav1.GetOptions{})
		if err == nil {
			return errors.New("the volume is there")
		}
		return nil
	})
	if _, _, _, err := w.local.Hold(t.Context(), &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "x"}}); err == nil {
		t.Error("any volume is held")
	}
}
