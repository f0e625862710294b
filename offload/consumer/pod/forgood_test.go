package pod

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"rivulet/offload/consumer/pod/translate"
	"rivulet/offload/consumer/volume"
	"rivulet/offload/homeapi"
	"rivulet/offload/policy"
	"rivulet/test/harness/await"
)

// byPolicy is the answer of an API server whose admission policy refuses a pod.
func byPolicy(name, message string) error {
	err := apierrors.NewForbidden(corev1.Resource("pods"), name, errors.New("ValidatingAdmissionPolicy 'rivulet-twin-pods' denied request: "+message))
	err.ErrStatus.Code, err.ErrStatus.Reason = http.StatusUnprocessableEntity, metav1.StatusReasonInvalid
	return err
}

// deletesOnceWatched has a deletion fail until what it is of is watched, so that it is tried again: the fake shows a watch nothing
// of what was before it, and the one who deletes would never learn that it is done.
func deletesOnceWatched(away *fake.Clientset) {
	for _, kind := range []string{"pods", "jobs", "replicasets"} {
		var watched atomic.Bool
		away.PrependWatchReactor(kind, func(clienttesting.Action) (bool, watch.Interface, error) {
			watched.Store(true)
			return false, nil, nil
		})
		away.PrependReactor("delete", kind, func(clienttesting.Action) (bool, runtime.Object, error) {
			if watched.Load() {
				return false, nil, nil
			}
			return true, nil, apierrors.NewServiceUnavailable("not watched yet")
		})
	}
}

// fits are the answers of a Fit.
type fits struct {
	Fit
	unwelcome func(namespace string, owner metav1.OwnerReference) bool
	elsewhere func(home *corev1.Pod, ns policy.Namespace, away bool) bool
}

func (f fits) Unwelcome(_ context.Context, namespace string, owner metav1.OwnerReference) (bool, error) {
	return f.unwelcome(namespace, owner), nil
}

func (f fits) Elsewhere(_ context.Context, home *corev1.Pod, ns policy.Namespace, away bool) (bool, error) {
	return f.elsewhere(home, ns, away), nil
}

// brings is what a Supply says.
type brings struct{ error }

func (b brings) Bring(context.Context, []policy.Reference) error { return b.error }
func (brings) Check(policy.Object)                               {}

// foreignClaims are on volumes that no other cluster can mount.
type foreignClaims struct{}

func (foreignClaims) AwayClaimOf(_ context.Context, _, name, target string) (claim, why string, err error) {
	if target != "bid" {
		return "", "", fmt.Errorf("asked for target %q", target)
	}
	return "", "", &volume.Foreign{Claim: name, Volume: "v", Kind: "nfs"}
}

// What the target refuses for good is refused at home by its words. Where it may run at home it is evicted once its successor
// is kept off; what was made for it is taken back. A quota refuses nothing for good.
func TestRefusedForGood(t *testing.T) {
	const hostUsers = "containers.hostUsers: not lent to other clusters"
	for name, c := range map[string]struct {
		when     policy.When
		restart  corev1.RestartPolicy
		refusal  error
		from     bool // an earlier process has sent it
		refused  bool
		comeHome bool
		lacks    error // what it refers to does not follow
	}{
		"a record stays where it may not come home":  {policy.Remote, corev1.RestartPolicyAlways, byPolicy("web", hostUsers), false, true, false, nil},
		"a record comes home":                        {policy.Burst, corev1.RestartPolicyAlways, byPolicy("web", hostUsers), false, true, true, nil},
		"a Job's pod comes home":                     {policy.Any, corev1.RestartPolicyNever, byPolicy("web", hostUsers), true, true, true, nil},
		"a quota":                                    {policy.Burst, corev1.RestartPolicyAlways, apierrors.NewForbidden(corev1.Resource("pods"), "web", errors.New("exceeded quota")), false, false, false, nil},
		"one whose Secret stays at home comes home":  {policy.Burst, corev1.RestartPolicyAlways, nil, false, true, true, &policy.StaysHomeError{Object: policy.Object{Kind: "Secret", Namespace: "lab", Name: "token"}, Why: "w", Cure: "c"}},
		"one whose Secret stays at home, and remote": {policy.Remote, corev1.RestartPolicyNever, nil, false, true, false, &policy.StaysHomeError{Object: policy.Object{Kind: "Secret", Namespace: "lab", Name: "token"}, Why: "w", Cure: "c"}},
		"a record goes on to another target":         {policy.Remote, corev1.RestartPolicyAlways, byPolicy("web", hostUsers), false, true, true, nil},
		"a claim that is home's alone comes home":    {policy.Burst, corev1.RestartPolicyAlways, nil, false, true, true, nil},
		"a claim that is home's alone stays":         {policy.Remote, corev1.RestartPolicyAlways, nil, false, true, false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "lab", UID: "u1", OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "o1", Controller: ptr.To(true)}}},
				Spec: corev1.PodSpec{NodeName: "b", RestartPolicy: c.restart, Containers: []corev1.Container{{Name: "web", Image: "web"}}}}
			why := []string{"b does not take this pod", hostUsers}
			switch {
			case c.lacks != nil:
				why = []string{"Secret token"}
			case c.refusal == nil:
				why = []string{"claim data is on volume v (nfs)"}
				pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
			}
			home := fake.NewClientset(pod, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "lab", Labels: map[string]string{policy.NamespaceLabel: string(c.when)}}})
			var asked, evicted, kept atomic.Int32
			home.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
				if a.GetSubresource() == "eviction" {
					if kept.Load() == 0 {
						t.Error("evicted while its successor would go there again")
					}
					evicted.Add(1)
				}
				return true, nil, nil
			})
			away := fake.NewClientset(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: homeapi.Authority, Namespace: "lab-a"}})
			away.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) { // a rehearsal keeps nothing
				return true, a.(clienttesting.CreateAction).GetObject(), c.refusal
			})
			deletesOnceWatched(away)
			if c.from {
				w, err := translate.Wrap(pod, "aid", "")
				if err != nil {
					t.Fatal(err)
				}
				w.Job.Namespace, w.Job.UID = "lab-a", "j1"
				if err := away.Tracker().Add(w.Job); err != nil {
					t.Fatal(err)
				}
			}
			ctl := controller(home, Config{Target: keeps{place{away}}, NoHomeAPI: true, Supply: brings{c.lacks}, Claims: foreignClaims{}, Fit: fits{
				unwelcome: func(namespace string, owner metav1.OwnerReference) bool {
					if namespace != "lab" || owner.UID != "o1" {
						t.Errorf("told of %v in %s", owner, namespace)
					}
					if asked.Add(1) > 1 {
						kept.Store(1)
					}
					return kept.Load() == 1
				},
				elsewhere: func(home *corev1.Pod, ns policy.Namespace, away bool) bool {
					if home.UID != "u1" || ns.When != c.when || away != (c.refusal != nil) {
						t.Errorf("asked of %s, %+v, away: %v", home.UID, ns, away)
					}
					return c.comeHome
				},
			}})
			ctx, stop := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { defer close(done); _ = ctl.Run(ctx) }()
			defer func() { stop(); <-done }()
			await.Empty(t, 30*time.Second, "it is told what becomes of it", func(ctx context.Context) string {
				p, err := home.CoreV1().Pods("lab").Get(ctx, "web", metav1.GetOptions{})
				if err != nil {
					return err.Error()
				}
				sets, _ := away.AppsV1().ReplicaSets("lab-a").List(ctx, metav1.ListOptions{})
				jobs, err := away.BatchV1().Jobs("lab-a").List(ctx, metav1.ListOptions{})
				switch said := p.Status.Message; {
				case err != nil:
					return err.Error()
				case c.refused && (p.Status.Reason != translate.ReasonRefused || slices.ContainsFunc(why, func(w string) bool { return !strings.Contains(said, w) })):
					return p.Status.Reason + ": " + said
				case c.refused && len(sets.Items)+len(jobs.Items) > 0:
					return "what would make it is there"
				case !c.refused && len(sets.Items) != 1:
					return "nothing waits for room"
				case c.comeHome != (evicted.Load() > 0):
					return fmt.Sprint("evicted ", evicted.Load(), " times")
				}
				return ""
			})
			if !c.comeHome && asked.Load() > 0 {
				t.Error("a successor is kept off the target")
			}
		})
	}
}

// A target that leaves out a field of the pod without a word runs none of it: what was made there is removed, the pod is
// refused with the field's name, and comes home. So it is if the process ended before it compared what it had made.
func TestWhatATargetLeavesOutIsRefused(t *testing.T) {
	for _, restart := range []corev1.RestartPolicy{corev1.RestartPolicyAlways, corev1.RestartPolicyNever} {
		for _, earlier := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, made by an earlier process: %v", restart, earlier), func(t *testing.T) {
				pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "lab", UID: "u1", OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "o1", Controller: ptr.To(true)}}},
					Spec: corev1.PodSpec{NodeName: "b", RestartPolicy: restart, HostUsers: ptr.To(false), Containers: []corev1.Container{{Name: "web", Image: "web"}}}}
				home := fake.NewClientset(pod, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "lab", Labels: map[string]string{policy.NamespaceLabel: string(policy.Burst)}}})
				var evicted, made atomic.Int32
				home.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
					evicted.Add(1)
					return true, nil, nil
				})
				away := fake.NewClientset(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: homeapi.Authority, Namespace: "lab-a"}})
				away.PrependReactor("create", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
					switch o := a.(clienttesting.CreateAction).GetObject().(type) {
					case *corev1.Pod:
						if o.Spec.HostUsers = nil; len(a.(clienttesting.CreateActionImpl).CreateOptions.DryRun) > 0 {
							return true, o, nil
						}
						made.Add(1)
					case *batchv1.Job:
						o.Spec.Template.Spec.HostUsers = nil
						made.Add(1)
					}
					return false, nil, nil
				})
				deletesOnceWatched(away)
				want := int32(1)
				if earlier {
					want = 0
					weak := pod.DeepCopy()
					weak.Spec.HostUsers = nil
					w, err := translate.Wrap(weak, "aid", "")
					if err != nil {
						t.Fatal(err)
					}
					if w.ReplicaSet != nil {
						w = translate.AsRecord(w, weak)
					}
					w.Object().SetNamespace("lab-a")
					w.Object().SetUID("w1")
					if err := away.Tracker().Add(w.Object().(runtime.Object)); err != nil {
						t.Fatal(err)
					}
				}
				ctl := controller(home, Config{Target: keeps{place{away}}, NoHomeAPI: true, Fit: fits{
					unwelcome: func(string, metav1.OwnerReference) bool { return true },
					elsewhere: func(_ *corev1.Pod, ns policy.Namespace, _ bool) bool {
						return ns.When == policy.Burst || ns.When == policy.Any
					},
				}})
				ctx, stop := context.WithCancel(t.Context())
				done := make(chan struct{})
				go func() { defer close(done); _ = ctl.Run(ctx) }()
				defer func() { stop(); <-done }()
				await.Empty(t, 30*time.Second, "it is refused and comes home", func(ctx context.Context) string {
					p, err := home.CoreV1().Pods("lab").Get(ctx, "web", metav1.GetOptions{})
					if err != nil {
						return err.Error()
					}
					pods, _ := away.CoreV1().Pods("lab-a").List(ctx, metav1.ListOptions{})
					jobs, err := away.BatchV1().Jobs("lab-a").List(ctx, metav1.ListOptions{})
					if err != nil || len(pods.Items)+len(jobs.Items) > 0 {
						return fmt.Sprintf("%v, away there is %v %v", err, pods.Items, jobs.Items)
					}
					if p.Status.Reason != translate.ReasonRefused || !strings.Contains(p.Status.Message, "spec.hostUsers") || evicted.Load() == 0 {
						return fmt.Sprintf("%s: %s; evicted %d times", p.Status.Reason, p.Status.Message, evicted.Load())
					}
					return ""
				})
				if made.Load() != want {
					t.Errorf("made %d times", made.Load())
				}
			})
		}
	}
}
