package pod

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"rivulet/offload/consumer/pod/translate"
	"rivulet/offload/consumer/pod/twin"
	"rivulet/offload/policy"
)

// seen is an informer that shows what the test lets it show.
type seen struct {
	cache.SharedIndexInformer
	index cache.Indexer
	ready bool
}

func newSeen() *seen {
	return &seen{index: cache.NewIndexer(cache.MetaNamespaceKeyFunc, twin.Indexers)}
}

// newSeenAtHome is newSeen for pods of home.
func newSeenAtHome() *seen {
	return &seen{index: cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{byNode: indexNode, byReference: indexReferences})}
}

func (s *seen) HasSynced() bool { return s.ready }

func (s *seen) GetIndexer() cache.Indexer { return s.index }

func (s *seen) GetStore() cache.Store { return s.index }

func (s *seen) show(objs ...any) { s.ready = true; _ = s.index.Replace(objs, "") }

// shown is a twin of namespace lab, with what the test lets its informers show.
type shown struct {
	twin                      *twin.Twin
	pods, sets, jobs, secrets *seen
}

func newShown(client kubernetes.Interface) shown {
	s := shown{nil, newSeen(), newSeen(), newSeen(), newSeen()}
	s.twin = twin.Over(twin.Config{Home: "lab", Name: "lab-a", Client: client}, s.pods, s.sets, s.jobs, s.secrets)
	return s
}

// provider is a provider whose answers get lost, and whose owner deletes twins in which a
// pod hangs. It has one pod of home at most, by a ReplicaSet or a Job.
type provider struct {
	place
	fate    func() (before, after error) // of each request
	twin    string                       // "", "live" or "going"
	rights  bool                         // the consumer's, in a twin that is going
	made    metav1.Object                // the wrapper
	runs    types.UID                    // the home pod for which something runs
	history []string
}

var errLost = errors.New("the connection broke")

func newProvider() *provider {
	p := &provider{place: place{fake.NewClientset()}, fate: func() (error, error) { return nil, nil }}
	p.client.PrependReactor("*", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		before, after := p.fate()
		if before != nil {
			p.say("%s %s is lost", a.GetVerb(), a.GetResource().Resource)
			return true, nil, before
		}
		obj, err := p.answer(a)
		if after != nil {
			p.say("%s %s: the answer is lost (%v)", a.GetVerb(), a.GetResource().Resource, err)
			return true, nil, after
		}
		p.say("%s %s: %v", a.GetVerb(), a.GetResource().Resource, err)
		return true, obj, err
	})
	return p
}

func (p *provider) say(format string, args ...any) {
	p.history = append(p.history, fmt.Sprintf(format, args...))
}

func (p *provider) answer(a clienttesting.Action) (runtime.Object, error) {
	resource := schema.GroupResource{Group: a.GetResource().Group, Resource: a.GetResource().Resource}
	if p.twin == "" || p.twin == "going" && (!p.rights || a.GetVerb() == "create") {
		return nil, apierrors.NewForbidden(resource, "", errors.New("no rights in the namespace"))
	}
	switch a := a.(type) {
	case clienttesting.CreateAction:
		o := a.GetObject().(metav1.Object)
		if c, ok := a.(clienttesting.CreateActionImpl); ok && len(c.CreateOptions.DryRun) > 0 {
			return a.GetObject(), nil
		}
		if p.made != nil {
			return nil, apierrors.NewAlreadyExists(resource, o.GetName())
		}
		o.SetUID(types.UID(fmt.Sprint("wrapper-", len(p.history))))
		p.made, p.runs = o, types.UID(o.GetLabels()[policy.HomeUIDLabel])
		return a.GetObject(), nil
	case clienttesting.DeleteActionImpl:
		if p.made == nil {
			return nil, apierrors.NewNotFound(resource, a.GetName())
		}
		p.made.SetDeletionTimestamp(&metav1.Time{Time: time.Now()})
		return nil, nil
	case clienttesting.GetActionImpl:
		if p.made == nil {
			return nil, apierrors.NewNotFound(resource, a.GetName())
		}
		return p.made.(runtime.Object).DeepCopyObject(), nil
	case clienttesting.ListActionImpl:
		if resource.Resource != "pods" {
			return &corev1.SecretList{}, nil
		}
		return &corev1.PodList{Items: p.pods()}, nil
	}
	return nil, fmt.Errorf("%s of %s is not known here", a.GetVerb(), resource)
}

func (p *provider) pods() (out []corev1.Pod) {
	if p.runs != "" {
		out = append(out, corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web-x", Namespace: "lab-a", UID: "away-" + p.runs,
			Labels: map[string]string{policy.HomeUIDLabel: string(p.runs)}, Annotations: map[string]string{policy.HomePodAnnotation: "web"}}})
	}
	return out
}

func (p *provider) Client() kubernetes.Interface { return p.client }

func (p *provider) Namespace(context.Context, string) (string, error) {
	before, after := p.fate()
	switch {
	case before != nil:
		return "", before
	case p.twin == "going":
		return "", errors.New("the former twin is still being deleted")
	}
	p.twin = "live"
	return "lab-a", after
}

func (p *provider) Twins(context.Context) (map[string]string, error) {
	if before, _ := p.fate(); before != nil {
		return nil, before
	}
	if p.twin == "live" {
		return map[string]string{"lab": "lab-a"}, nil
	}
	return nil, nil
}

func (p *provider) Gone(context.Context, string) (bool, error) {
	before, _ := p.fate()
	return before == nil && p.twin == "", before
}

// The owner deletes the twin: the wrapper goes at once, a pod in its own time, and the
// consumer's rights some time before it.
func (p *provider) deleteTwin() {
	if p.twin == "live" {
		p.twin, p.rights, p.made = "going", true, nil
		p.say("the twin is deleted")
	}
}

func (p *provider) end() {
	if p.made != nil && p.made.GetDeletionTimestamp() == nil {
		return // it restarts
	}
	p.runs, p.made = "", nil
	p.say("the pod has ended")
	if p.twin == "going" {
		p.twin = ""
		p.say("the twin is gone")
	}
}

// TestNothingIsLetGoThatRuns has answers get lost, twins be deleted in which a pod hangs,
// namespaces be called home, pods be deleted, deadlines pass and home restart, in any order: no pod is
// let go at home, or said to have passed its deadline, while something runs for it away, and in the end each goes.
func TestNothingIsLetGoThatRuns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ctx := context.Background()
		p := newProvider()
		restarts := rapid.SampledFrom([]corev1.RestartPolicy{corev1.RestartPolicyAlways, corev1.RestartPolicyNever}).Draw(t, "restartPolicy")
		home := fake.NewClientset(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "lab", UID: "u1"},
			Spec: corev1.PodSpec{NodeName: "b", RestartPolicy: restarts, Containers: []corev1.Container{{Name: "web", Image: "web"}}}},
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "lab"}})
		told := func() (text string) {
			for _, line := range p.history {
				text += line + "\n"
			}
			return text
		}
		released := false
		home.PrependReactor("delete", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if g := a.(clienttesting.DeleteActionImpl).DeleteOptions.GracePeriodSeconds; g == nil || *g > 0 {
				return false, nil, nil
			}
			released = true
			if p.runs == "u1" {
				t.Fatalf("let go at home while it runs away\n%s", told())
			}
			return false, nil, nil
		})
		home.PrependReactor("update", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
			st := a.(clienttesting.UpdateAction).GetObject().(*corev1.Pod).Status
			if st.Phase == corev1.PodFailed && st.Reason == translate.ReasonDeadline && p.runs == "u1" {
				t.Fatalf("failed at home while it runs away\n%s", told())
			}
			return false, nil, nil
		})
		read := func() *corev1.Pod {
			o, err := home.Tracker().Get(corev1.SchemeGroupVersion.WithResource("pods"), "lab", "web")
			if err != nil {
				return nil
			}
			return o.(*corev1.Pod).DeepCopy()
		}
		mark := func() {
			if pod := read(); pod != nil && pod.DeletionTimestamp == nil {
				pod.DeletionTimestamp = &metav1.Time{Time: time.Now()}
				_ = home.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), pod, "lab")
				p.say("home deletes the pod")
			}
		}
		pass := func() {
			if pod := read(); pod != nil && pod.Spec.ActiveDeadlineSeconds == nil {
				pod.Spec.ActiveDeadlineSeconds, pod.Status.StartTime = ptr.To[int64](1), &metav1.Time{Time: time.Now().Add(-time.Hour)}
				_ = home.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), pod, "lab")
				p.say("its deadline passes")
			}
		}
		home.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) { // an eviction
			mark()
			return a.GetSubresource() == "eviction", nil, nil
		})

		offloaded, atHome := &mode{policy.Burst}, newSeenAtHome()
		var c *Controller
		var open []shown
		start := func() {
			open = nil
			c = controller(home, Config{Target: p, Namespaces: offloaded, NoHomeAPI: true})
			c.life = ctx
			c.pods.all, c.pods.nodes = atHome, map[string]bool{"b": true}
			c.open = func(context.Context, string, string) *twin.Twin {
				w := newShown(p.client)
				open = append(open, w)
				return w.twin
			}
			p.say("home starts")
		}
		watch := func() {
			for _, w := range open {
				if p.twin == "" || p.twin == "going" && !p.rights {
					continue // it shows nothing more, or says that it is lost
				}
				var sets, jobs, pods []any
				switch o := p.made.(type) {
				case *appsv1.ReplicaSet:
					sets = append(sets, o.DeepCopy())
				case *batchv1.Job:
					jobs = append(jobs, o.DeepCopy())
				}
				for _, x := range p.pods() {
					pods = append(pods, &x)
				}
				w.pods.show(pods...)
				w.sets.show(sets...)
				w.jobs.show(jobs...)
				w.secrets.show()
			}
			p.say("the watches show what is there")
		}
		reconcile := func() {
			if pod := read(); pod != nil {
				atHome.show(pod)
			} else {
				atHome.show()
			}
			c.memory.mu.Lock()
			for uid := range c.memory.sent { // time goes by
				c.memory.sent[uid] = time.Now().Add(-time.Hour)
			}
			c.memory.mu.Unlock()
			_ = c.reconcile(ctx, types.NamespacedName{Namespace: "lab", Name: "web"}) // tried again below
		}
		start()
		p.fate = func() (error, error) {
			switch rapid.IntRange(0, 7).Draw(t, "fate") {
			case 0:
				return errLost, nil
			case 1, 2:
				return nil, errLost
			}
			return nil, nil
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"home", "home", "home", "home", "watch", "watch", "namespace", "delete", "twin", "rights", "end", "lost", "restart", "deadline"}).Draw(t, "what") {
			case "home":
				reconcile()
			case "watch":
				watch()
			case "namespace":
				offloaded.When = map[policy.When]policy.When{policy.Burst: policy.Off, policy.Off: policy.Burst}[offloaded.When]
				p.say("offloaded: %v", offloaded)
			case "delete":
				if rapid.Bool().Draw(t, "really") {
					mark()
				}
			case "twin":
				p.deleteTwin()
			case "rights":
				p.rights = false
			case "end":
				p.end()
			case "lost": // what a watch does that is refused
				c.checkTwin(ctx, "lab")
			case "restart":
				start()
			case "deadline":
				pass()
			}
		}
		// From here on everybody does what he has to.
		p.fate = func() (error, error) { return nil, nil }
		mark()
		for range 20 {
			reconcile()
			p.end()
			watch()
			c.checkTwin(ctx, "lab")
		}
		if !released || read() != nil || p.runs != "" {
			t.Fatalf("released %v, away for %q, twin %q\n%s", released, p.runs, p.twin, told())
		}
	})
}
