package translate

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestPin(t *testing.T) {
	var p corev1.PodTemplateSpec
	if Pin(&p, "", ""); p.Spec.NodeSelector != nil {
		t.Errorf("%v: nothing is known of the platform", p.Spec.NodeSelector)
	}
	if Pin(&p, "linux", "arm64"); len(p.Spec.NodeSelector) != 2 || p.Spec.NodeSelector[corev1.LabelArchStable] != "arm64" || p.Spec.NodeSelector[corev1.LabelOSStable] != "linux" {
		t.Errorf("%v", p.Spec.NodeSelector)
	}
}
