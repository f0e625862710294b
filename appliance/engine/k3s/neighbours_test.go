package k3s

import (
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// Rules between pods are the scheduler's, over all nodes of a virtual cluster.
func TestRulesBetweenPods(t *testing.T) {
	node := func(name string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}
	}
	nodes := []*corev1.Node{node("host"), node("b")}
	pod := func(namespace, app, on string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: app + on, Labels: map[string]string{"app": app}}, Spec: corev1.PodSpec{NodeName: on}}
	}
	term := func(app string, namespaces *metav1.LabelSelector) []corev1.PodAffinityTerm {
		return []corev1.PodAffinityTerm{{LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}, TopologyKey: corev1.LabelHostname, NamespaceSelector: namespaces}}
	}
	apart := func(p *corev1.Pod, app string, namespaces *metav1.LabelSelector) *corev1.Pod {
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: term(app, namespaces)}}
		return p
	}
	near := func(p *corev1.Pod, app string) *corev1.Pod {
		p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: term(app, nil)}}
		return p
	}
	spread := pod("lab", "web", "")
	spread.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.DoNotSchedule,
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}}
	namespaces := []corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "lab"}}, {ObjectMeta: metav1.ObjectMeta{Name: "other", Labels: map[string]string{"team": "red"}}}}
	red := &metav1.LabelSelector{MatchLabels: map[string]string{"team": "red"}}
	for name, c := range map[string]struct {
		pod    *corev1.Pod
		others []*corev1.Pod
		want   map[string]string // a part of each reason
	}{
		"no rules":                                           {pod("lab", "web", ""), []*corev1.Pod{pod("lab", "web", "host")}, nil},
		"two apart":                                          {apart(pod("lab", "web", ""), "web", nil), []*corev1.Pod{pod("lab", "web", "host")}, map[string]string{"host": "it does not match pod anti-affinity rules"}},
		"apart from another namespace's":                     {apart(pod("lab", "web", ""), "web", nil), []*corev1.Pod{pod("other", "web", "host")}, nil},
		"apart from namespaces by label":                     {apart(pod("lab", "web", ""), "web", red), []*corev1.Pod{pod("other", "web", "b")}, map[string]string{"b": "anti-affinity"}},
		"one that is there wants to be alone":                {pod("lab", "web", ""), []*corev1.Pod{apart(pod("lab", "db", "b"), "web", nil)}, map[string]string{"b": "existing pods anti-affinity"}},
		"near to what nobody has":                            {near(pod("lab", "web", ""), "cache"), []*corev1.Pod{pod("lab", "web", "host")}, map[string]string{"host": "pod affinity rules", "b": "pod affinity rules"}},
		"near to what runs at one":                           {near(pod("lab", "web", ""), "cache"), []*corev1.Pod{pod("lab", "cache", "b")}, map[string]string{"host": "pod affinity rules"}},
		"the first of those that want each other":            {near(pod("lab", "web", ""), "web"), nil, nil},
		"one without rules is on a node that is not there":   {apart(pod("lab", "web", ""), "web", nil), []*corev1.Pod{pod("lab", "web", "gone")}, nil},
		"one that wants to be alone is on such a node":       {pod("lab", "web", ""), []*corev1.Pod{apart(pod("lab", "db", "gone"), "web", nil)}, nil},
		"the pods to spread from are on such a node as well": {spread, []*corev1.Pod{pod("lab", "web", "gone"), pod("lab", "web", "b")}, map[string]string{"b": "topology spread"}},
		"spread": {spread, []*corev1.Pod{pod("lab", "web", "host")}, map[string]string{"host": "topology spread"}},
	} {
		evaluator, err := neighbours{fake.NewClientset()}.Beside(t.Context(), namespaces, c.others, nodes)
		if err != nil {
			t.Fatal(name, err)
		}
		got, err := evaluator.Refuse(t.Context(), c.pod)
		if err != nil || !maps.EqualFunc(got, c.want, strings.Contains) {
			t.Errorf("%s: %v (%v), want %v", name, got, err, c.want)
		}
	}
}
