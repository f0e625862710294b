package policy_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"rivulet/test/harness/apiserver"
)

// A pod's manifest does not have what admission added to it. An update by it passes, as at
// home, and the pod keeps what was added; what no pod may change is refused as ever. After
// testAdmission, whose namespaces are there.
func testUpdates(t *testing.T, server *apiserver.Server) {
	ctx, client := t.Context(), kubernetes.NewForConfigOrDie(server.Config)
	const (
		gpu      = `{key: gpu, operator: Exists}`
		disk     = `{key: disk, operator: In, values: [ssd]}`
		required = `requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [%s]}, {matchFields: [{key: metadata.name, operator: In, values: [n]}]}]}`
		prefers  = `preferredDuringSchedulingIgnoredDuringExecution: [{weight: 7, preference: {matchExpressions: [%s]}}]`
		spread   = `podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {a: %s}}}]}`
	)
	affinity := func(key, weightKey, label string) string {
		return fmt.Sprintf(`{nodeAffinity: {`+required+`, `+prefers+`}, `+spread+`}`, key, weightKey, label)
	}
	of := func(text string) (s corev1.PodSpec) {
		t.Helper()
		if err := yaml.UnmarshalStrict([]byte(text), &s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	made := func(ns, name, spec string) *corev1.Pod {
		t.Helper()
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: ns}, Spec: of("containers: [{name: c, image: i}]\n" + spec)}
		p, err := client.CoreV1().Pods(ns).Create(ctx, p, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	tolerates := func(p *corev1.Pod, tol corev1.Toleration) bool {
		for i := range p.Spec.Tolerations {
			if equality.Semantic.DeepEqual(p.Spec.Tolerations[i], tol) {
				return true
			}
		}
		return false
	}
	for _, ns := range []string{"adm-burst", "adm-burst-b", "adm-remote", "adm-remote-b", "adm-any", "adm-none"} {
		for _, c := range []struct {
			name, before, after string
			refused             bool
		}{
			{name: "replaced-tolerations", after: "tolerations: [" + gpu + "]"},
			{name: "no-tolerations", after: "tolerations: []"},
			{name: "one-more-toleration", before: "tolerations: [" + gpu + "]", after: "tolerations: [" + gpu + ", {key: tpu, operator: Exists}]"},
			{name: "one-less-of-its-own", before: "tolerations: [" + gpu + "]", after: "tolerations: []", refused: true},
			{name: "the-same-affinity", before: "affinity: " + affinity(disk, disk, "b"), after: "affinity: " + affinity(disk, disk, "b")},
			{name: "another-requirement", before: "affinity: " + affinity(disk, disk, "b"), after: "affinity: " + affinity(`{key: disk, operator: Exists}`, disk, "b"), refused: true},
			{name: "another-preference", before: "affinity: " + affinity(disk, disk, "b"), after: "affinity: " + affinity(disk, `{key: disk, operator: Exists}`, "b"), refused: true},
			{name: "another-anti-affinity", before: "affinity: " + affinity(disk, disk, "b"), after: "affinity: " + affinity(disk, disk, "c"), refused: true},
			{name: "no-affinity-any-more", before: "affinity: " + affinity(disk, disk, "b"), after: "affinity: null", refused: true},
			{name: "none-as-before", after: "affinity: null"},
		} {
			before := made(ns, c.name, c.before)
			after, want := before.DeepCopy(), of(c.after)
			after.ResourceVersion = "" // the scheduler writes, too
			if want.Affinity != nil || want.Tolerations == nil {
				after.Spec.Affinity = want.Affinity
			}
			if want.Tolerations != nil {
				after.Spec.Tolerations = want.Tolerations
			}
			got, err := client.CoreV1().Pods(ns).Update(ctx, after, metav1.UpdateOptions{})
			if c.refused {
				if !apierrors.IsInvalid(err) {
					t.Errorf("%s %s: %v, want a refusal", ns, c.name, err)
				}
				continue
			}
			if err != nil {
				t.Errorf("%s %s: %v", ns, c.name, err)
				continue
			}
			compare(t, ns+" "+c.name+": affinity", got.Spec.Affinity, before.Spec.Affinity)
			for _, tol := range append(before.Spec.Tolerations, want.Tolerations...) {
				if !tolerates(got, tol) {
					t.Errorf("%s %s: toleration %+v is gone: %+v", ns, c.name, tol, got.Spec.Tolerations)
				}
			}
			if n := len(got.Spec.Tolerations); n > len(before.Spec.Tolerations)+len(want.Tolerations) {
				t.Errorf("%s %s: %d tolerations: %+v", ns, c.name, n, got.Spec.Tolerations)
			}
		}
	}
}
