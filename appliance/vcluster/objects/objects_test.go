package objects

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"rivulet/appliance/vcluster"
	"rivulet/fabric/changes"
	"rivulet/test/harness/apiserver"
	"rivulet/test/harness/await"
)

// clusters is what the controller sees of a Keeper.
type clusters struct {
	changes.Signal
	mu      sync.Mutex
	all     map[string]vcluster.View
	refuses error // what Change says
	stuck   bool  // Delete does not end
}

func (c *clusters) Briefs() []vcluster.View {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Values(c.all))
}

func (c *clusters) StatesChanged() (<-chan struct{}, func()) { return c.Changed() }

func (c *clusters) CreateFor(spec vcluster.Spec, owner vcluster.Owner) (vcluster.View, error) {
	v := vcluster.View{Spec: spec, Owner: owner, State: vcluster.Starting, Address: netip.MustParseAddrPort("100.127.0.1:17000")}
	c.set(spec.Name, func(out *vcluster.View) { *out = v })
	return v, nil
}

func (c *clusters) set(name string, f func(*vcluster.View)) {
	c.mu.Lock()
	v := c.all[name]
	f(&v)
	c.all[name] = v
	c.mu.Unlock()
	c.Notify()
}

func (c *clusters) Change(_ context.Context, name string, to vcluster.Change) (vcluster.View, error) {
	c.mu.Lock()
	refuses := c.refuses
	c.mu.Unlock()
	if refuses != nil {
		return vcluster.View{}, refuses
	}
	c.set(name, func(v *vcluster.View) {
		if to.Sleep != nil {
			v.Sleep = *to.Sleep
		}
		if to.Memory != nil {
			v.Memory = *to.Memory
		}
		if to.Quota != nil {
			v.Quota = *to.Quota
		}
	})
	return vcluster.View{}, nil
}

func (c *clusters) Pause(name string) error {
	c.set(name, func(v *vcluster.View) { v.Paused, v.State = true, vcluster.Paused })
	return nil
}

func (c *clusters) Resume(name string) error {
	c.set(name, func(v *vcluster.View) { v.Paused, v.State = false, vcluster.Awake })
	return nil
}

func (c *clusters) Delete(ctx context.Context, name string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stuck {
		return errors.New("a namespace is still being emptied")
	}
	delete(c.all, name)
	return nil
}

func (c *clusters) Kubeconfig(name string) ([]byte, error) { return []byte("of " + name), nil }

func (c *clusters) get(name string) (vcluster.View, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, ok := c.all[name]
	return v, ok
}

// The story of objects, on a real API server.
func TestObjects(t *testing.T) {
	server := apiserver.Start(t)
	fake := &clusters{all: map[string]vcluster.View{"by-hand": {Spec: vcluster.Spec{Name: "by-hand"}, State: vcluster.Awake}}}
	ctx := t.Context()
	begin := func() (end func()) {
		within, stop := context.WithCancel(ctx)
		ready, done := make(chan struct{}), make(chan error, 1)
		go func() {
			done <- Run(within, Config{API: server.Config, Clusters: fake, Log: slog.New(slog.DiscardHandler)}, func() { close(ready) })
		}()
		select {
		case <-ready:
		case err := <-done:
			t.Fatal(err)
		}
		return func() {
			stop()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}
	end := begin()
	defer func() { end() }()
	dyn, err := dynamic.NewForConfig(server.Config)
	must(t, err)
	kube := server.Client
	for _, ns := range []string{"one", "two"} {
		_, err := kube.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{})
		must(t, err)
	}
	in := func(ns string) dynamic.ResourceInterface { return dyn.Resource(Resource).Namespace(ns) }
	create := func(ns, name, spec string) error {
		var m map[string]any
		must(t, yaml.Unmarshal([]byte(fmt.Sprintf(`{apiVersion: rivulet.dev/v1alpha1, kind: VirtualCluster, metadata: {name: %q}%s}`, name, spec)), &m))
		_, err := in(ns).Create(ctx, &unstructured.Unstructured{Object: m}, metav1.CreateOptions{})
		return err
	}
	patch := func(ns, name, body string) {
		t.Helper()
		_, err := in(ns).Patch(ctx, name, types.MergePatchType, []byte(body), metav1.PatchOptions{})
		must(t, err)
	}
	get := func(ns, name string) *VirtualCluster {
		t.Helper()
		u, err := in(ns).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		must(t, err)
		o, err := fromAPI(u)
		must(t, err)
		return o
	}
	// is waits for the condition.
	is := func(ns, name, reason string, status metav1.ConditionStatus) *VirtualCluster {
		t.Helper()
		var o *VirtualCluster
		await.True(t, time.Minute, ns+"/"+name+" is "+reason, func() bool {
			o = get(ns, name)
			return o != nil && len(o.Status.Conditions) == 1 && o.Status.Conditions[0].Reason == reason && o.Status.Conditions[0].Status == status
		})
		return o
	}
	events := func(reason string) (n int) {
		all, err := kube.CoreV1().Events("one").List(ctx, metav1.ListOptions{FieldSelector: "reason=" + reason})
		must(t, err)
		return len(all.Items)
	}

	must(t, create("one", "ann", ", spec: {quota: {cpu: 2, pods: '20'}}"))
	is("one", "ann", "Starting", metav1.ConditionFalse)
	v, _ := fake.get("ann")
	if v.Sleep != 30*time.Minute || v.Memory != 512<<20 || v.Quota.Cpu().String() != "2" || v.Quota.Pods().Value() != 20 {
		t.Errorf("%+v", v)
	}
	fake.set("ann", func(v *vcluster.View) { v.State = vcluster.Awake })
	o := is("one", "ann", "Awake", metav1.ConditionTrue)
	if o.Status.Address != "100.127.0.1:17000" || o.Status.KubeconfigSecret != "ann-kubeconfig" {
		t.Errorf("%+v", o.Status)
	}
	secret, err := kube.CoreV1().Secrets("one").Get(ctx, "ann-kubeconfig", metav1.GetOptions{})
	must(t, err)
	if string(secret.Data["value"]) != "of ann" || !metav1.IsControlledBy(secret, o) {
		t.Errorf("%+v", secret)
	}
	await.True(t, time.Minute, "events tell it", func() bool { return events("Created") == 1 && events("Awake") == 1 })

	// Asleep it can be used; what the spec says is made so.
	fake.set("ann", func(v *vcluster.View) { v.State = vcluster.Asleep })
	is("one", "ann", "Asleep", metav1.ConditionTrue)
	patch("one", "ann", `{"spec":{"sleep":"1h","memory":"1Gi","quota":null,"paused":true}}`)
	is("one", "ann", "Paused", metav1.ConditionFalse)
	if v, _ := fake.get("ann"); v.Sleep != time.Hour || v.Memory != 1<<30 || len(v.Quota) != 0 || !v.Paused {
		t.Errorf("%+v", v)
	}
	patch("one", "ann", `{"spec":{"paused":false}}`)
	is("one", "ann", "Awake", metav1.ConditionTrue)
	fake.mu.Lock()
	fake.refuses = errors.New("there is no room for that")
	fake.mu.Unlock()
	patch("one", "ann", `{"spec":{"sleep":"2h"}}`)
	is("one", "ann", "NotAsWanted", metav1.ConditionFalse)
	patch("one", "ann", `{"spec":{"sleep":"1h"}}`)

	// A Secret that somebody else has made is left alone, and that is what the condition goes on to
	// say, whatever the virtual cluster does; once it is gone there is one.
	_, err = kube.CoreV1().Secrets("one").Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "cat-kubeconfig"}}, metav1.CreateOptions{})
	must(t, err)
	must(t, create("one", "cat", ""))
	is("one", "cat", "SecretTaken", metav1.ConditionFalse)
	fake.set("cat", func(v *vcluster.View) { v.State = vcluster.Awake })
	await.True(t, time.Minute, "the Secret is taken while it is awake", func() bool {
		o := get("one", "cat")
		return o.Status.State == "Awake" && o.Status.Conditions[0].Reason == "SecretTaken" && o.Status.KubeconfigSecret == ""
	})
	must(t, kube.CoreV1().Secrets("one").Delete(ctx, "cat-kubeconfig", metav1.DeleteOptions{}))
	is("one", "cat", "Awake", metav1.ConditionTrue)

	// What is wrong is refused, by the API server or by the condition.
	for name, spec := range map[string]string{"Ann": "", strings.Repeat("a", 41): "", "bad": ", spec: {sleep: soon}", "worse": ", spec: {quota: {cpu: much}}"} {
		if err := create("one", name, spec); !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) {
			t.Errorf("%s%s: %v", name, spec, err)
		}
	}
	must(t, create("one", "tiny", ", spec: {memory: 1Mi}"))
	is("one", "tiny", "Invalid", metav1.ConditionFalse)
	must(t, create("two", "ann", ""))
	is("two", "ann", "NameTaken", metav1.ConditionFalse)
	must(t, create("two", "by-hand", ""))
	is("two", "by-hand", "NameTaken", metav1.ConditionFalse)
	must(t, in("two").Delete(ctx, "by-hand", metav1.DeleteOptions{}))
	await.True(t, time.Minute, "an object that has none goes", func() bool { return get("two", "by-hand") == nil })
	if _, there := fake.get("by-hand"); !there {
		t.Error("it took another's virtual cluster with it")
	}

	// A restart makes nothing anew.
	end()
	before, _ := fake.get("ann")
	end = begin()
	if after, _ := fake.get("ann"); after.Owner != before.Owner {
		t.Errorf("%+v became %+v", before, after)
	}
	// The object goes when the virtual cluster has, and gives its name to the next.
	fake.mu.Lock()
	fake.refuses, fake.stuck = nil, true
	fake.mu.Unlock()
	must(t, in("one").Delete(ctx, "ann", metav1.DeleteOptions{}))
	await.True(t, time.Minute, "it says why it is still there", func() bool {
		o := get("one", "ann")
		return o != nil && o.Status.State == "Deleting" && strings.Contains(o.Status.Reason, "emptied")
	})
	fake.mu.Lock()
	fake.stuck = false
	fake.mu.Unlock()
	fake.Notify()
	await.True(t, time.Minute, "the object is gone", func() bool { return get("one", "ann") == nil })
	is("two", "ann", "Starting", metav1.ConditionFalse)
	// Objects that are not there end nothing.
	end()
	patch("two", "ann", `{"metadata":{"finalizers":null}}`)
	must(t, in("two").Delete(ctx, "ann", metav1.DeleteOptions{}))
	end = begin()
	if _, there := fake.get("ann"); !there {
		t.Error("an object that is missing has ended a virtual cluster")
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
