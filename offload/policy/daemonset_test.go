package policy_test

import (
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"rivulet/offload/policy"
	"rivulet/test/harness/await"
)

// A DaemonSet's pods are on virtual nodes only where its owner says so: one that
// tolerates everything means machines, and is complete without them.
func testDaemonSets(t *testing.T, client kubernetes.Interface) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "far", Labels: map[string]string{policy.VirtualNodeLabel: "id", "disk": "ssd"}},
		Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: policy.VirtualTaint, Effect: corev1.TaintEffectNoSchedule}}}}
	if _, err := client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	namespace(t, client, "each", nil)
	const (
		everything = `tolerations: [{operator: Exists}]`
		ssd        = `affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: disk, operator: In, values: [ssd]}]}, {}]}}}`
		nowhere    = `affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{}]}}}`
	)
	await.True(t, time.Minute, "the policy of DaemonSets is in force", func() bool {
		labels := map[string]string{"app": "probe"}
		ds := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "probe"}, Spec: appsv1.DaemonSetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}}}}
		if err := yaml.UnmarshalStrict([]byte("containers: [{name: c, image: i}]\n"+everything), &ds.Spec.Template.Spec); err != nil {
			t.Fatal(err)
		}
		made, err := client.AppsV1().DaemonSets("each").Create(t.Context(), ds, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err == nil && made.Spec.Template.Spec.Affinity != nil
	})
	for name, c := range map[string]struct {
		spec     string
		on       int32
		affinity string
	}{
		"everything":       {everything, 0, `{nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: rivulet.dev/virtual-node, operator: DoesNotExist}]}]}}}`},
		"with-requirement": {everything + "\n" + ssd, 0, `{nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: disk, operator: In, values: [ssd]}, {key: rivulet.dev/virtual-node, operator: DoesNotExist}]}]}}}`},
		"nowhere":          {everything + "\n" + nowhere, 0, `{nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{}]}}}`},
		"nothing":          {"", 0, `null`},
		"by-name":          {`tolerations: [{operator: Exists}, {key: rivulet.dev/virtual, operator: Exists}]`, 1, `null`},
		"by-label":         {everything + "\nnodeSelector: {rivulet.dev/virtual-node: id}", 1, `null`},
	} {
		t.Run(name, func(t *testing.T) {
			labels := map[string]string{"app": name}
			ds := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.DaemonSetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels},
				Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}}}}
			if err := yaml.UnmarshalStrict([]byte("containers: [{name: c, image: i}]\n"+c.spec), &ds.Spec.Template.Spec); err != nil {
				t.Fatal(err)
			}
			sets := client.AppsV1().DaemonSets("each")
			made, err := sets.Create(t.Context(), ds, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			var want corev1.PodSpec
			if err := yaml.UnmarshalStrict(fmt.Appendf(nil, "affinity: %s", c.affinity), &want); err != nil {
				t.Fatal(err)
			}
			compare(t, "affinity", made.Spec.Template.Spec.Affinity, want.Affinity)
			await.True(t, time.Minute, "the controller has counted nodes", func() bool {
				now, err := sets.Get(t.Context(), name, metav1.GetOptions{})
				return err == nil && now.Status.ObservedGeneration >= made.Generation && now.Status.DesiredNumberScheduled == c.on
			})
			// As an owner's tool does again and again: nothing changes.
			ds.ResourceVersion = ""
			again, err := sets.Update(t.Context(), ds, metav1.UpdateOptions{})
			if err != nil || again.Generation != made.Generation {
				t.Errorf("the same once more is generation %d, was %d: %v", again.Generation, made.Generation, err)
			}
		})
	}
}
