package move

import (
	"context"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"rivulet/appliance/addons/volumes"
	"rivulet/offload/consumer/volume"
	"rivulet/offload/nodeagent/filetree"
	"rivulet/test/harness/await"
)

// cluster is home with a second device, a worker.
type cluster struct {
	*volumes.Local
	worker *volumes.Local
	off    *atomic.Bool // the worker
}

func (c cluster) Files(v *corev1.PersistentVolume) (filetree.Tree, error) {
	if volume.Node(v) != c.worker.Node() {
		return c.Local.Files(v)
	}
	if c.off.Load() {
		return nil, filetree.ErrUnreachable
	}
	return c.worker.Files(v)
}

func (c cluster) Hold(ctx context.Context, v *corev1.PersistentVolume) (context.Context, filetree.Tree, func(), error) {
	if volume.Node(v) != c.worker.Node() {
		return c.Local.Hold(ctx, v)
	}
	if c.off.Load() {
		return nil, nil, nil, filetree.ErrUnreachable
	}
	return c.worker.Hold(ctx, v)
}

// fromAWorker: data on another device of the cluster go to a peer and to this device, also over a cut of the power. They
// come home to this device.
func fromAWorker(t *testing.T, w *world) {
	left := func(folder string) {
		t.Helper()
		await.True(t, time.Minute, "the worker's copy is gone", func() bool {
			_, err := os.Stat(folder)
			return os.IsNotExist(err)
		})
	}
	refused := func(m *Mover, claim, to, why string) {
		t.Helper()
		if _, err := m.Start(t.Context(), Request{Namespace: "lab", Claim: claim, To: to}); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%v, want %q", err, why)
		}
	}
	t.Run("from a worker to a peer, and home", func(t *testing.T) {
		w.t = t
		w.claimOn("worked", "there")
		was := w.volume("worked")
		m, gone := w.mover("copied", 0)
		refused(m, "worked", "there", "on there already")
		w.local.off.Store(true)
		refused(m, "worked", "b", "the node of the volume cannot be reached at the moment")
		w.local.off.Store(false)
		if c := w.volume("worked"); c.Name != was.Name || c.Annotations[volume.MoveAnnotation] != "" {
			t.Errorf("refused moves have begun: %+v", c.ObjectMeta)
		}
		_ = ended(t, w.start(m, "worked", "b"))
		<-gone
		m, _ = w.mover("", 0)
		w.settled("worked", "b")
		left(was.Spec.Local.Path)
		if err := ended(t, w.start(m, "worked", Home)); err != nil {
			t.Error(err)
		}
		w.settled("worked", Home)
		if on := volume.Node(w.volume("worked")); on != "here" {
			t.Errorf("it came home to %s", on)
		}
	})
	t.Run("from a worker to this device", func(t *testing.T) {
		w.t = t
		w.claimOn("nearer", "there")
		was := w.volume("nearer")
		m, _ := w.mover("", 0)
		if err := ended(t, w.start(m, "nearer", Home)); err != nil {
			t.Error(err)
		}
		w.settled("nearer", Home)
		left(was.Spec.Local.Path)
		refused(m, "nearer", Home, "on home already")
		refused(m, "nearer", "there", "there is no virtual node there")
	})
}
