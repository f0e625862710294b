package kine

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubewatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	typedv1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"rivulet/test/harness/apiserver"
)

// How many fresh watches are made of the API server; RIVULET_API_WATCHES sets another number.
const apiWatches = 250

// With RIVULET_API_DATASTORE the engine is started on another datastore: sqlite://plain.db
// is what plain k3s has. For the figures of docs/design/datastore.md.
const datastoreEnv = "RIVULET_API_DATASTORE"

const spinEnv = "RIVULET_KINE_TEST_SPIN"

// TestSpin is a busy loop beside the API server, in a process of its own.
func TestSpin(t *testing.T) {
	if os.Getenv(spinEnv) == "" {
		t.Skip("is a process of TestAPIServerLosesNothing")
	}
	for { //nolint:staticcheck // until it is killed
	}
}

// On a busy machine a list that is empty, and the watch that begins at it, miss nothing; and
// a list after a write shows what was written. Both are the API server's caches, which
// believe what the datastore announces.
func TestAPIServerLosesNothing(t *testing.T) {
	t.Parallel()
	n := apiWatches
	if more, err := strconv.Atoi(os.Getenv("RIVULET_API_WATCHES")); err == nil {
		n = more
	}
	var args []string
	if other := os.Getenv(datastoreEnv); other != "" {
		args = []string{"--datastore-endpoint", other}
	}
	config := apiserver.Start(t, args...).Config
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 * runtime.NumCPU() {
		spin := exec.Command(os.Args[0], "-test.run=^TestSpin$")
		spin.Env = append(os.Environ(), spinEnv+"=1")
		spin.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := spin.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = spin.Process.Kill(); _ = spin.Wait() }()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience+time.Duration(n)*200*time.Millisecond)
	defer cancel()
	var workers sync.WaitGroup
	var next, lost, stale atomic.Int64
	began := time.Now()
	for range 8 {
		workers.Go(func() {
			for i := next.Add(1); i <= int64(n) && ctx.Err() == nil; i = next.Add(1) {
				missed, old, err := freshAPIWatch(ctx, client.CoreV1().ConfigMaps("default"), fmt.Sprint("fresh-", i))
				if err != nil {
					t.Errorf("watch %d: %v", i, err)
					return
				}
				if missed {
					lost.Add(1)
				}
				if old {
					stale.Add(1)
				}
			}
		})
	}
	workers.Wait()
	t.Logf("%d fresh watches in %s: %d lost their object, %d lists after a write did not show it", n, time.Since(began).Round(time.Second), lost.Load(), stale.Load())
	if lost.Load()+stale.Load() > 0 {
		t.Error("the API server showed a revision without what was written up to it")
	}
}

// freshAPIWatch lists and watches for an object that is created meanwhile.
func freshAPIWatch(ctx context.Context, objects typedv1.ConfigMapInterface, name string) (lost, stale bool, _ error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type written struct {
		object *corev1.ConfigMap
		stale  bool
		err    error
	}
	created := make(chan written, 1)
	one := metav1.ListOptions{FieldSelector: "metadata.name=" + name}
	go func() {
		w := written{}
		if w.object, w.err = objects.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); w.err == nil {
			var after *corev1.ConfigMapList
			if after, w.err = objects.List(ctx, one); w.err == nil {
				w.stale = len(after.Items) == 0
			}
		}
		created <- w
	}()
	list, err := objects.List(ctx, one)
	if err != nil {
		return false, false, err
	}
	events := make(chan kubewatch.Event, 1)
	if len(list.Items) == 0 {
		from := one
		from.ResourceVersion = list.ResourceVersion
		w, err := objects.Watch(ctx, from)
		if err != nil {
			return false, false, err
		}
		defer w.Stop()
		go func() {
			for e := range w.ResultChan() {
				events <- e
				return
			}
			close(events)
		}()
	}
	w := <-created
	if w.err != nil {
		return false, false, w.err
	}
	if len(list.Items) == 0 {
		at, err := strconv.ParseInt(list.ResourceVersion, 10, 64)
		if err != nil {
			return false, false, err
		}
		wrote, err := strconv.ParseInt(w.object.ResourceVersion, 10, 64)
		if err != nil {
			return false, false, err
		}
		if lost = wrote <= at; !lost { // an empty list as of a revision at which it was there
			select {
			case e, ok := <-events:
				if !ok || e.Type != kubewatch.Added {
					return false, false, fmt.Errorf("the watch of revision %d from %d gave %v", wrote, at, e)
				}
			case <-time.After(2 * patience):
				lost = true
			}
		}
	}
	return lost, w.stale, objects.Delete(ctx, name, metav1.DeleteOptions{})
}
