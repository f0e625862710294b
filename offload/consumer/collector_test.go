package consumer

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"

	"rivulet/fabric/rpc"
	"rivulet/offload/consumer/pod"
	"rivulet/offload/consumer/volume"
	"rivulet/offload/policy"
	"rivulet/test/harness/await"
)

// claimant has the twins that it names, and refuses to delete those with data.
type claimant struct {
	*somewhere
	twins    map[string]string
	data     map[string]bool
	mu       sync.Mutex
	released []string
	together chan struct{} // all have to be asked before one is gone; nil: each goes at once
}

func (c *claimant) Twins(context.Context) (map[string]string, error) { return c.twins, nil }
func (c *claimant) Release(ctx context.Context, home string) error {
	if c.together != nil {
		select {
		case c.together <- struct{}{}:
		case <-ctx.Done():
		}
		if err := await.Until(ctx, func() error {
			if n := len(c.together); n < cap(c.together) {
				return fmt.Errorf("%d are asked", n)
			}
			return nil
		}); err != nil {
			return err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.data[home] {
		return fmt.Errorf("release: %w", &rpc.Error{Code: "holds-data", Message: "twin holds 1 claims"})
	}
	c.released = append(c.released, home)
	return nil
}

// What a target names as a twin, and home does not know, is given back without a look into it. Data in one stay, known
// or not, and are reported.
func TestOnlyKnownTwinsAreLookedInto(t *testing.T) {
	claims := func(namespace string) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "data"}}
	}
	v := volume.Volume(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "kept", Name: "data", UID: "1"}}, nil, "pvc-1", "b", "b")
	namespace := func(name string) *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	home, there := fake.NewClientset(v, namespace("default"), namespace("lost"), namespace("kept")), fake.NewClientset(claims("y"), claims("kept-b"))
	to := &claimant{somewhere: &somewhere{name: "b", id: "b", client: kubernetes.Interface(there)}, data: map[string]bool{"lost": true},
		twins: map[string]string{"x": "y", "default": "default-b", "lost": "lost-b", "kept": "kept-b"}}
	log := slog.New(slog.DiscardHandler)
	events := record.NewFakeRecorder(10)
	r := newRetirement(home, to, policy.New(home, log), events, log)
	r.pods = pod.New(pod.Config{Home: pod.Home{Client: home}, Target: to, Namespaces: r.namespaces, Nodes: &branches{c: &Consumer{}, s: &stack{}}, Log: log})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = r.pods.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	await.True(t, time.Minute, "home's pods are known", func() bool { return !r.pods.Busy("x") })
	err := r.sweep(t.Context())
	if err == nil || !strings.Contains(err.Error(), "kept/CLAIM home") || !strings.Contains(err.Error(), "see: rivulet volumes") {
		t.Errorf("%v", err)
	}
	if slices.Sort(to.released); !slices.Equal(to.released, []string{"default", "x"}) {
		t.Errorf("given back: %v", to.released)
	}
	for _, a := range there.Actions() {
		if a.GetVerb() != "list" || a.GetNamespace() != "kept-b" {
			t.Errorf("%s in %s", a.GetVerb(), a.GetNamespace())
		}
	}
	if len(events.Events) != 2 {
		t.Errorf("%d events", len(events.Events))
	}
}

// Twins of many deleted namespaces are all asked to go before the first is gone: a target holds only so many.
func TestTwinsGoTogether(t *testing.T) {
	const n = 20
	to := &claimant{somewhere: &somewhere{name: "b", id: "b", client: fake.NewClientset()}, twins: map[string]string{}, together: make(chan struct{}, n)}
	for i := range n {
		to.twins[fmt.Sprint("job-", i)] = fmt.Sprint("job-", i, "-b")
	}
	home, log := fake.NewClientset(), slog.New(slog.DiscardHandler)
	r := newRetirement(home, to, policy.New(home, log), record.NewFakeRecorder(10), log)
	r.pods = pod.New(pod.Config{Home: pod.Home{Client: home}, Target: to, Namespaces: r.namespaces, Nodes: &branches{c: &Consumer{}, s: &stack{}}, Log: log})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	done := make(chan struct{})
	go func() { defer close(done); _ = r.pods.Run(ctx) }()
	defer func() { cancel(); <-done }()
	await.True(t, time.Minute, "home's pods are known", func() bool { return !r.pods.Busy("job-1") })
	if err := r.sweep(ctx); err != nil || len(to.released) != n {
		t.Errorf("%d are gone: %v", len(to.released), err)
	}
}
