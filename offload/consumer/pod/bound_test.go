package pod

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"rivulet/offload/consumer/homecache"
	"rivulet/offload/policy"
	"rivulet/test/harness/await"
)

func podOn(node, name, uid, configMap string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: name, UID: types.UID(uid)},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c",
			EnvFrom: []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: configMap}}}}}}}}
}

// All targets have one watch of home's pods, and each has its own pods.
func TestTargetsShareTheWatchOfPods(t *testing.T) {
	home := fake.NewClientset(podOn("b", "x", "1", "m"), podOn("b-arm64", "y", "2", "n"), podOn("c", "z", "3", "o"))
	shared := homecache.New(slog.New(slog.DiscardHandler))
	start := func(nodes ...string) *Controller {
		c := New(Config{Home: Home{Client: home, Cache: shared, Node: "home"}, Log: slog.New(slog.DiscardHandler)})
		for _, node := range nodes {
			c.Serve(node)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); c.atHome.Run(ctx, c.pods.events(c)) }()
		t.Cleanup(func() { stop(); <-done })
		await.True(t, time.Minute, "pods are listed", c.pods.synced)
		return c
	}
	b, c := start("b"), start("c")
	want := func(c *Controller, names ...string) {
		t.Helper()
		var have, queued []string
		for _, p := range c.pods.list() {
			have = append(have, p.Name)
		}
		for c.queue.Len() > 0 {
			k, _ := c.queue.Get()
			c.queue.Done(k)
			queued = append(queued, k.Name)
		}
		slices.Sort(have)
		slices.Sort(queued)
		if !slices.Equal(have, names) || !slices.Equal(queued, names) {
			t.Errorf("has %v, and %v are queued, want %v", have, queued, names)
		}
	}
	refers := func(c *Controller, name string) bool {
		is, known := c.Refers(policy.Object{Kind: policy.KindConfigMap, Namespace: "lab", Name: name})
		return is && known
	}
	want(b, "x")
	want(c, "z")
	if b.home(types.NamespacedName{Namespace: "lab", Name: "z"}) != nil || b.home(types.NamespacedName{Namespace: "lab", Name: "x"}) == nil {
		t.Error("a pod of another target is found, or one of its own is not")
	}
	if !refers(b, "m") || refers(b, "n") || refers(b, "o") || !refers(c, "o") {
		t.Error("references of another target's pods")
	}
	b.queue.Add(types.NamespacedName{Namespace: "lab", Name: "x"})
	b.Serve("b-arm64")
	want(b, "x", "y")
	if !refers(b, "n") {
		t.Error("no references of a node that was added")
	}
	var selectors []string
	for _, a := range home.Actions() {
		if w, ok := a.(clienttesting.WatchAction); ok {
			selectors = append(selectors, w.GetWatchRestrictions().Fields.String())
		}
	}
	if len(selectors) != 1 || !strings.Contains(selectors[0], "spec.nodeName!=home") {
		t.Errorf("watches %q", selectors)
	}
}

// checks is a Supply that is told of what is not referred to.
type checks func(policy.Object)

func (checks) Bring(context.Context, []policy.Reference) error { return nil }
func (c checks) Check(o policy.Object)                         { c(o) }

// A watch that was away may show a pod as a change of the one before it, which was another target's.
func TestAPodOfTheSameNameIsAnotherPod(t *testing.T) {
	var told []string
	start := func(node string) *Controller {
		c := New(Config{Home: Home{Client: fake.NewClientset()}, Target: place{}, Namespaces: &mode{policy.Off},
			Supply: checks(func(o policy.Object) { told = append(told, fmt.Sprintf("%s: %s is not referred to", node, o.Name)) }), Log: slog.New(slog.DiscardHandler)})
		c.Serve(node)
		return c
	}
	b, c := start("b"), start("c")
	departed, stop := b.Departed.Changed()
	defer stop()
	none, stop := c.Departed.Changed()
	defer stop()
	was, is := podOn("b", "x", "1", "m"), podOn("c", "x", "2", "m")
	b.memory.setSent("1")
	c.memory.setSent("2")
	for _, one := range []*Controller{b, c} {
		one.pods.events(one).OnUpdate(was, is)
		if one.queue.Len() != 1 {
			t.Error("not queued")
		}
	}
	if want := []string{"b: m is not referred to"}; !slices.Equal(told, want) || len(departed) != 1 || len(b.memory.sent) != 0 || len(c.memory.sent) != 1 {
		t.Errorf("%v; sent to b: %v, to c: %v", told, b.memory.sent, c.memory.sent)
	}
	told = nil
	later := is.DeepCopy()
	later.Spec.Containers[0].EnvFrom = nil
	c.pods.events(c).OnUpdate(is, later)
	if want := []string{"c: m is not referred to"}; !slices.Equal(told, want) || len(departed) != 1 || len(none) != 0 || len(c.memory.sent) != 1 {
		t.Errorf("%v %v", told, c.memory.sent)
	}
}
