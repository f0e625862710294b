package doctor

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	"rivulet/appliance/api"
	"rivulet/offload"
	"rivulet/offload/policy"
	"rivulet/offload/provider/tenancy"
)

// A pod that waits longer than it may take is named with its cause, the cluster's own first, the oldest first, and those of
// virtual clusters of this device by their owner; those of other clusters,
// those that ended and those that are on their way are not.
func TestPodsThatDoNotRun(t *testing.T) {
	now := time.Now()
	made := func(name string, ago time.Duration, change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: name, CreationTimestamp: metav1.NewTime(now.Add(-ago))}}
		p.Status.Phase = corev1.PodPending
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "no node"}}
		if change != nil {
			change(p)
		}
		return p
	}
	ready := func(status corev1.ConditionStatus, ago time.Duration) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.Phase, p.Spec.NodeName = corev1.PodRunning, "home"
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: status, LastTransitionTime: metav1.NewTime(now.Add(-ago))})
		}
	}
	of := func(who, name string, ago time.Duration) *corev1.Pod {
		return made(who+"-"+name, ago, func(p *corev1.Pod) {
			p.Labels, p.Annotations = map[string]string{policy.OriginLabel: who}, map[string]string{policy.HomeNamespaceAnnotation: "default", policy.HomePodAnnotation: name}
		})
	}
	student := func(name string, ago time.Duration) *corev1.Pod { return of("anna", name, ago) }
	well := []*corev1.Pod{
		made("new", time.Second, nil), made("well", time.Hour, ready(corev1.ConditionTrue, time.Hour)), made("just-now", time.Hour, ready(corev1.ConditionFalse, time.Second)),
		made("theirs", time.Hour, func(p *corev1.Pod) { p.Labels = map[string]string{policy.OriginLabel: "x"} }),
		made("done", time.Hour, func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }),
	}
	for _, c := range []struct {
		name   string
		pods   []*corev1.Pod
		status Status
		words  string
	}{
		{"of a virtual cluster", []*corev1.Pod{student("web-0", time.Hour)}, Warn, "anna (course db) default/web-0: home has as many pods as it takes"},
		{"own first, then by age", []*corev1.Pod{student("web-0", 2*time.Hour), made("own", time.Minute, nil), student("web-1", time.Hour)}, Warn,
			"lab/own: home has as many pods as it takes, and 2 more, 2 of virtual clusters (rivulet pods): anna (course db) default/web-0, anna (course db) default/web-1"},
		{"names are bounded", []*corev1.Pod{made("p0", 9*time.Hour, nil), made("p1", 8*time.Hour, nil), made("p2", 7*time.Hour, nil), made("p3", 6*time.Hour, nil), made("p4", 5*time.Hour, nil), student("s", 9*time.Hour), student("t", time.Hour)}, Warn,
			"lab/p0: home has as many pods as it takes, and 6 more, 2 of virtual clusters (rivulet pods): lab/p1, lab/p2, lab/p3, lab/p4, anna (course db) default/s, ..."},
		{"none crowds out another", []*corev1.Pod{student("a", 9*time.Hour), student("b", 8*time.Hour), student("c", 7*time.Hour), of("ben", "z", time.Hour)}, Warn,
			"anna (course db) default/a: home has as many pods as it takes, and 3 more, 3 of virtual clusters (rivulet pods): ben (course teaching/db) default/z, anna (course db) default/b, anna (course db) default/c"},
		{"all well", nil, Pass, "all run"},
		{"no node", []*corev1.Pod{made("young", time.Minute, nil), made("old", time.Hour, nil)}, Warn, "lab/old: home has as many pods as it takes, and 1 more (rivulet pods): lab/young"},
		{"not ready", []*corev1.Pod{made("web", time.Hour, ready(corev1.ConditionFalse, time.Minute))}, Warn, "lab/web: it runs and is not ready"},
		{"does not go", []*corev1.Pod{made("web", time.Hour, func(p *corev1.Pod) {
			p.DeletionTimestamp, p.Finalizers = &metav1.Time{Time: now.Add(-time.Minute)}, []string{"example.com/hold"}
		})}, Warn, "lab/web: it was deleted and waits for example.com/hold"},
	} {
		client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "home"}}, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "lab"}})
		for _, p := range append(c.pods, well...) {
			if err := client.Tracker().Add(p); err != nil {
				t.Fatal(err)
			}
		}
		e := machine(t, nil)
		e.Now = func() time.Time { return now }
		e.supervisor = func(context.Context) (api.Status, error) {
			anna := offload.Consumer{Consumer: tenancy.Consumer{ID: "anna", Name: "db-anna"}, VCluster: true, Course: "default/db"}
			ben := offload.Consumer{Consumer: tenancy.Consumer{ID: "ben", Name: "db-ben"}, VCluster: true, Course: "teaching/db"}
			return api.Status{Status: offload.Status{Consumers: []offload.Consumer{anna, ben, {Consumer: tenancy.Consumer{ID: "x", Name: "b"}, Peer: true}}}}, nil
		}
		e.api = func() (kubernetes.Interface, error) { return client, nil }
		r := podsWaiting.Run(t.Context(), e.Env)
		if r.Status != c.status || len(r.Text) < len(c.words) || r.Text[:len(c.words)] != c.words || r.Status == Warn && r.Cure == "" {
			t.Errorf("%s: %+v", c.name, r)
		}
	}
}
