package policy_test

import (
	"context"
	"fmt"
	"maps"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"rivulet/offload/policy"
	"rivulet/offload/target/external"
	"rivulet/test/harness/apiserver"
	"rivulet/test/harness/await"
	"rivulet/test/harness/fakenodes"
)

// testSpread has the real scheduler spread replicas as their topologySpreadConstraints
// say: providers are nodes like others, and who demands a spread gets it, though burst
// would like home to be full first.
func testSpread(t *testing.T, server *apiserver.Server) {
	for _, c := range []struct {
		name, mode, pod string
		want            map[string]int
	}{
		{"remote", "remote", "", map[string]int{"peer": 3, "campus": 3}}, // home is none of its nodes
		{"burst", "burst", "", map[string]int{"home": 2, "peer": 2, "campus": 2}},
		// Nodes that its pods cannot go to are none to spread over, as without a peer.
		{"home", "off", "", map[string]int{"home": 6}},
		{"stays", "burst", `"hostPID":true,`, map[string]int{"home": 6}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			nodes := three(t, external.OrderLast)
			kubelets, err := fakenodes.Register(ctx, server.Client, nodes...)
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan struct{})
			go func() { defer close(done); kubelets.Run(ctx) }()
			ns := "spread-" + c.name
			namespace(t, server.Client, ns, map[string]string{policy.NamespaceLabel: c.mode})
			defer func() { vacate(t, server, ns); cancel(); <-done }()
			known(t, server, nodes)
			replicas(t, server, ns)
			if _, err := server.Client.AppsV1().Deployments(ns).Patch(ctx, "web", types.MergePatchType, []byte(`{"spec":{"template":{"spec":{`+c.pod+`"topologySpreadConstraints":[
				{"maxSkew":1,"topologyKey":"kubernetes.io/hostname","whenUnsatisfiable":"DoNotSchedule","labelSelector":{"matchLabels":{"app":"web"}}}]}}}}`), metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
			if got := placed(t, server, ns, 6); !maps.Equal(got, c.want) {
				t.Errorf("6 replicas are placed as %v, want %v", got, c.want)
			}
		})
	}
}

// Taints are honoured where the pod says nothing, and a pod whose manifest is replaced is the
// same pod, of before these policies, too.
func testSpreadIsKept(t *testing.T, server *apiserver.Server) {
	ctx := t.Context()
	pods := server.Client.CoreV1().Pods("spread-kept")
	namespace(t, server.Client, "spread-kept", nil)
	pod := func(name string, policies ...*corev1.NodeInclusionPolicy) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
		for i, policy := range policies {
			p.Spec.TopologySpreadConstraints = append(p.Spec.TopologySpreadConstraints, corev1.TopologySpreadConstraint{
				MaxSkew: int32(i + 1), TopologyKey: fmt.Sprintf("key-%d", i), WhenUnsatisfiable: corev1.DoNotSchedule, NodeTaintsPolicy: policy,
				LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			})
		}
		return p
	}
	honor, ignore := corev1.NodeInclusionPolicyHonor, corev1.NodeInclusionPolicyIgnore
	made, err := pods.Create(ctx, pod("new", nil, &ignore, nil, &honor), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if want := pod("", &honor, &ignore, &honor, &honor); !equality.Semantic.DeepEqual(made.Spec.TopologySpreadConstraints, want.Spec.TopologySpreadConstraints) {
		t.Errorf("created with %+v", made.Spec.TopologySpreadConstraints)
	}
	update := func(name string, change func(*corev1.Pod)) (err error) { // its status is written meanwhile
		await.True(t, time.Minute, "an update without a conflict", func() bool {
			var p *corev1.Pod
			if p, err = pods.Get(ctx, name, metav1.GetOptions{}); err == nil {
				change(p)
				_, err = pods.Update(ctx, p, metav1.UpdateOptions{})
			}
			return !apierrors.IsConflict(err)
		})
		return err
	}
	if err := update("new", func(p *corev1.Pod) {
		p.Spec.TopologySpreadConstraints = pod("", nil, &ignore, nil, &honor).Spec.TopologySpreadConstraints
	}); err != nil {
		t.Errorf("its manifest again: %v", err)
	}
	binding := dynamic.NewForConfigOrDie(server.Config).Resource(schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1beta1", Resource: "mutatingadmissionpolicybindings"})
	if err := binding.Delete(ctx, "rivulet-spread", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await.True(t, time.Minute, "a pod as before these policies", func() bool {
		old, err := pods.Create(ctx, pod("old", nil), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err == nil && old.Spec.TopologySpreadConstraints[0].NodeTaintsPolicy == nil
	})
	if _, err = pods.Create(ctx, pod("old", nil), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := policy.EnsureAdmission(ctx, server.Config); err != nil {
		t.Fatal(err)
	}
	await.True(t, time.Minute, "the policy is back", func() bool {
		got, err := pods.Create(ctx, pod("try", nil), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err == nil && got.Spec.TopologySpreadConstraints[0].NodeTaintsPolicy != nil
	})
	if err := update("old", func(p *corev1.Pod) { p.Labels = map[string]string{"other": "label"} }); err != nil {
		t.Errorf("a pod from before these policies: %v", err)
	}
}
