package replacement

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"rivulet/offload/policy"
)

// api is what matters here of an API server: versions, preconditions, grace periods and
// finalizers. Before each call of the keeper's client step is called, which may have others
// act in between, or kill the keeper.
type api struct {
	client  *fake.Clientset // the keeper's
	other   *fake.Clientset // everybody else's
	pods    map[string]*corev1.Pod
	count   int
	refuse  bool // creations, for want of room
	step    func() (before, after error)
	runs    map[types.UID]bool // containers of the pod run
	history []string
}

var errKilled = errors.New("the keeper was killed")

func newAPI() *api {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "lab-a", Labels: map[string]string{policy.OriginLabel: "aid"}}}
	a := &api{client: fake.NewClientset(ns), pods: map[string]*corev1.Pod{}, runs: map[types.UID]bool{}, step: func() (error, error) { return nil, nil }}
	a.other = fake.NewClientset()
	for _, c := range []*fake.Clientset{a.client, a.other} {
		c.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
			if c == a.client {
				before, after := a.step()
				if before != nil {
					return true, nil, before
				}
				if after != nil {
					_, _, _ = a.serve(action)
					return true, nil, after
				}
			}
			return a.serve(action)
		})
	}
	return a
}

func (a *api) say(format string, args ...any) {
	a.history = append(a.history, fmt.Sprintf(format, args...))
}

func (a *api) serve(action clienttesting.Action) (bool, runtime.Object, error) {
	resource := action.GetResource().GroupResource()
	if resource.Resource == "replicasets" && action.GetVerb() == "create" && a.refuse && a.terminating() {
		return true, nil, apierrors.NewForbidden(resource, "", errors.New("no"))
	}
	if resource.Resource != "pods" {
		return false, nil, nil
	}
	missing := func(name string) error { return apierrors.NewNotFound(resource, name) }
	switch x := action.(type) {
	case clienttesting.CreateAction:
		p := x.GetObject().(*corev1.Pod).DeepCopy()
		if a.pods[p.Name] != nil {
			return true, nil, apierrors.NewAlreadyExists(resource, p.Name)
		}
		if a.refuse || a.terminating() {
			return true, nil, apierrors.NewForbidden(resource, p.Name, errors.New("exceeded quota"))
		}
		p.UID, p.Namespace, p.CreationTimestamp = types.UID(fmt.Sprint("uid-", a.count)), "lab-a", metav1.NewTime(time.Unix(int64(a.count), 0))
		a.put(p)
		a.runs[p.UID] = true
		a.say("made %s", p.Name)
		return true, p.DeepCopy(), nil
	case clienttesting.PatchAction:
		p := a.pods[x.GetName()]
		if p == nil {
			return true, nil, missing(x.GetName())
		}
		var asked struct {
			Metadata struct{ UID, ResourceVersion string }
		}
		if err := json.Unmarshal(x.GetPatch(), &asked); err != nil {
			return true, nil, err
		}
		if v := asked.Metadata.ResourceVersion; asked.Metadata.UID != string(p.UID) || v != "" && v != p.ResourceVersion {
			return true, nil, apierrors.NewConflict(resource, p.Name, errors.New("it has changed"))
		}
		was, _ := json.Marshal(p)
		is, err := strategicpatch.StrategicMergePatch(was, x.GetPatch(), &corev1.Pod{})
		if err != nil {
			return true, nil, err
		}
		p = &corev1.Pod{}
		if err := json.Unmarshal(is, p); err != nil {
			return true, nil, err
		}
		a.say("patched %s %s", p.Name, x.GetPatch())
		a.put(p)
		return true, p.DeepCopy(), nil
	case clienttesting.DeleteAction:
		p, o := a.pods[x.GetName()], x.GetDeleteOptions()
		if p == nil {
			return true, nil, missing(x.GetName())
		}
		if o.Preconditions != nil && o.Preconditions.UID != nil && *o.Preconditions.UID != p.UID {
			return true, nil, apierrors.NewConflict(resource, p.Name, errors.New("another one"))
		}
		grace := int64(30)
		if o.GracePeriodSeconds != nil {
			grace = *o.GracePeriodSeconds
		}
		a.delete(p, grace)
		return true, nil, nil
	case clienttesting.ListAction: // who gets one has a name, too
		if g, ok := action.(clienttesting.GetAction); ok {
			if p := a.pods[g.GetName()]; p != nil {
				return true, p.DeepCopy(), nil
			}
			return true, nil, missing(g.GetName())
		}
		return true, a.list(), nil
	case clienttesting.GetAction:
		if p := a.pods[x.GetName()]; p != nil {
			return true, p.DeepCopy(), nil
		}
		return true, nil, missing(x.GetName())
	}
	return true, nil, fmt.Errorf("%s of pods is not known here", action.GetVerb())
}

func (a *api) list() *corev1.PodList {
	out := &corev1.PodList{}
	for _, name := range slices.Sorted(maps.Keys(a.pods)) {
		out.Items = append(out.Items, *a.pods[name].DeepCopy())
	}
	return out
}

func (a *api) terminating() bool {
	ns, err := a.client.Tracker().Get(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}, "", "lab-a")
	return err != nil || ns.(*corev1.Namespace).DeletionTimestamp != nil
}

// put stores the pod, or lets it go if nothing holds it any more.
func (a *api) put(p *corev1.Pod) {
	a.count++
	p.ResourceVersion = strconv.Itoa(a.count)
	a.pods[p.Name] = p
	if p.DeletionTimestamp != nil && len(p.Finalizers) == 0 && ptr.Deref(p.DeletionGracePeriodSeconds, 1) == 0 {
		delete(a.pods, p.Name)
		delete(a.runs, p.UID)
		a.say("%s is gone", p.Name)
	}
}

func (a *api) delete(p *corev1.Pod, grace int64) {
	p = p.DeepCopy()
	if p.Status.Phase == corev1.PodFailed {
		grace = 0 // there is nothing to wait for
	}
	if p.DeletionTimestamp == nil {
		p.DeletionTimestamp = ptr.To(metav1.Now())
	} else if grace >= *p.DeletionGracePeriodSeconds {
		return
	}
	p.DeletionGracePeriodSeconds = &grace
	if grace == 0 {
		delete(a.runs, p.UID)
	}
	a.say("deleted %s, grace %d", p.Name, grace)
	a.put(p)
}

// ends is what a kubelet does with a pod that is deleted: its containers end, then it goes.
func (a *api) ends(p *corev1.Pod) {
	delete(a.runs, p.UID)
	p = p.DeepCopy()
	p.Status.Phase = corev1.PodFailed
	a.put(p)
	a.delete(p, 0)
}

// fails is a pod that the node evicts or turns down.
func (a *api) fails(p *corev1.Pod) {
	delete(a.runs, p.UID)
	p = p.DeepCopy()
	p.Status.Phase = corev1.PodFailed
	a.say("%s has failed", p.Name)
	a.put(p)
}

func (a *api) endNamespace() {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "lab-a", Labels: map[string]string{policy.OriginLabel: "aid"}, DeletionTimestamp: ptr.To(metav1.Now())}}
	if err := a.client.Tracker().Update(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}, ns, ""); err != nil {
		panic(err)
	}
	a.say("the namespace is going")
}

func (a *api) sets() (n int) {
	sets, err := a.client.Tracker().List(schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "replicasets"},
		schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "ReplicaSet"}, "lab-a")
	if err != nil {
		panic(err)
	}
	list, err := json.Marshal(sets)
	if err != nil {
		panic(err)
	}
	var counted struct{ Items []any }
	if err := json.Unmarshal(list, &counted); err != nil {
		panic(err)
	}
	return len(counted.Items)
}

// first is the pod as home makes it.
func first(mode Mode) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web",
		Labels:      map[string]string{"app": "web", policy.OriginLabel: "aid", policy.HomeUIDLabel: "home"},
		Annotations: map[string]string{"note": "x", policy.HomePodAnnotation: "web", policy.HomeNamespaceAnnotation: "lab"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	Keep(p, mode)
	return p
}

// TestNoneIsLostAndNoneRunsTwice has everything happen in any order: pods are deleted,
// evicted and lost, the keeper dies between any two of its calls and forgets everything,
// others act between them, there is no room, the namespace goes, and home wants the end
// and sees everything late.
func TestNoneIsLostAndNoneRunsTwice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ctx := context.Background()
		mode := rapid.SampledFrom([]Mode{AtOnce, AfterEnd}).Draw(t, "mode")
		a := newAPI()
		keeper := New(Config{Client: a.client, Log: slog.New(slog.DiscardHandler)})
		if _, err := a.other.CoreV1().Pods("lab-a").Create(ctx, first(mode), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		view := a.list() // home's
		wish, released, ending := rapid.Bool().Draw(t, "wish"), false, false

		check := func(when string) {
			running := len(a.runs) + a.sets()
			if mode == AfterEnd && running > 1 {
				t.Fatalf("%s: %d run\n%s", when, running, a.told())
			}
			if mode == AfterEnd && released && running > 0 {
				t.Fatalf("%s: home has let its pod go, and %d run\n%s", when, running, a.told())
			}
		}
		home := func() {
			if !wish || released {
				return
			}
			if len(view.Items) == 0 && len(a.pods) == 0 || len(view.Items) == 0 && a.pods["web"] == nil {
				released = a.sets() == 0 // a ReplicaSet is ended as ever, which is no matter of this test
				return
			}
			for i := range view.Items {
				err := End(ctx, a.other, &view.Items[i], nil)
				if err != nil && !errors.Is(err, ErrMarked) && !apierrors.IsConflict(err) {
					t.Fatal(err)
				}
			}
		}
		one := func(label string) *corev1.Pod {
			names := slices.Sorted(maps.Keys(a.pods))
			if len(names) == 0 {
				return nil
			}
			return a.pods[rapid.SampledFrom(names).Draw(t, label)]
		}
		world := func(what string) {
			p := one("pod")
			switch what {
			case "delete":
				if p != nil {
					a.delete(p, 30)
				}
			case "force":
				if p != nil {
					a.delete(p, 0)
				}
			case "end":
				if p != nil && p.DeletionTimestamp != nil {
					a.ends(p)
				}
			case "fail":
				if p != nil && p.DeletionTimestamp == nil {
					a.fails(p)
				}
			case "room":
				a.refuse = !a.refuse
			case "wish":
				wish = true
			case "watch":
				view = a.list()
			case "home":
				home()
			case "home hurries":
				home()
				view = a.list()
				home()
			}
			check(what)
		}
		events := []string{"delete", "force", "end", "end", "fail", "watch", "home", "home hurries"}
		busy := false
		a.step = func() (error, error) {
			if busy {
				return nil, nil
			}
			busy = true
			defer func() { busy = false }()
			for rapid.IntRange(0, 2).Draw(t, "between") == 0 {
				world(rapid.SampledFrom(events).Draw(t, "meanwhile"))
			}
			switch rapid.IntRange(0, 11).Draw(t, "fate") {
			default:
				return nil, nil
			case 0:
				a.say("killed before a call")
				return errKilled, nil
			case 1:
				a.say("killed after a call")
				return nil, errKilled
			}
		}
		look := func(name string) {
			a.say("the keeper looks at %s", name)
			_, _ = keeper.check(ctx, types.NamespacedName{Namespace: "lab-a", Name: name}) // errors are tried again below
			check("the keeper")
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch what := rapid.SampledFrom(append(events, "room", "wish", "keeper", "keeper", "keeper", "namespace")).Draw(t, "what"); what {
			case "keeper":
				if p := one("look at"); p != nil {
					look(p.Name)
				}
			case "namespace":
				if !ending && rapid.IntRange(0, 3).Draw(t, "really") == 0 {
					a.endNamespace()
					ending = true
				}
			default:
				world(what)
			}
		}

		// From here on everybody does what he has to.
		a.step, a.refuse = func() (error, error) { return nil, nil }, false
		for range 20 {
			for _, name := range slices.Sorted(maps.Keys(a.pods)) {
				if p := a.pods[name]; p != nil && p.DeletionTimestamp != nil && a.runs[p.UID] {
					a.ends(p)
				} else if p != nil && ending {
					a.delete(p, 0)
				}
				look(name)
				view = a.list()
				home()
				check("in the end")
			}
			view = a.list()
			home()
		}
		living := a.sets()
		for _, p := range a.pods {
			if p.DeletionTimestamp != nil || !Kept(p) {
				t.Fatalf("%s hangs: %v %v\n%s", p.Name, p.DeletionTimestamp, p.Finalizers, a.told())
			}
			living++
		}
		switch {
		case ending:
			if len(a.pods) > 0 {
				t.Fatalf("%d pods hold up the namespace\n%s", len(a.pods), a.told())
			}
		case wish:
			if len(a.pods) > 0 || !released && a.sets() == 0 {
				t.Fatalf("home wants the end: %d pods are left, released %v\n%s", len(a.pods), released, a.told())
			}
		case living != 1:
			t.Fatalf("%d are kept in the end\n%s", living, a.told())
		}
	})
}

func (a *api) told() string {
	text := ""
	for _, line := range a.history {
		text += line + "\n"
	}
	return text
}
