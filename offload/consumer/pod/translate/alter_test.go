package translate

import (
	"encoding/json"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

func TestWhatChangesInASpecIsCarried(t *testing.T) {
	gpu, tpu := corev1.Toleration{Key: "gpu", Operator: corev1.TolerationOpExists}, corev1.Toleration{Key: "tpu", Operator: corev1.TolerationOpExists}
	theirs := corev1.Toleration{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, TolerationSeconds: ptr.To[int64](300)}
	spec := func(image string, deadline *int64, tolerations ...corev1.Toleration) *corev1.PodSpec {
		return &corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: image}, {Name: "side", Image: "side:1"}}, ActiveDeadlineSeconds: deadline, Tolerations: tolerations}
	}
	for _, c := range []struct {
		what         string
		has, was, is *corev1.PodSpec
		want         string
	}{
		{"nothing", spec("web:1", nil, gpu, theirs), spec("web:1", nil, gpu), spec("web:1", nil, gpu), `{}`},
		{"an image", spec("web:1", nil), spec("web:1", nil), spec("web:2", nil), `{"containers":[{"image":"web:2","name":"web"}]}`},
		{"an image that the provider has changed stays", spec("mirror/web:1", nil), spec("web:1", nil), spec("web:1", nil), `{}`},
		{"a toleration comes to those of the provider", spec("web:1", nil, theirs, gpu), spec("web:1", nil, gpu), spec("web:1", nil, gpu, tpu),
			`{"tolerations":[{"key":"node.kubernetes.io/not-ready","operator":"Exists","tolerationSeconds":300},{"key":"gpu","operator":"Exists"},{"key":"tpu","operator":"Exists"}]}`},
		{"a deadline", spec("web:1", nil), spec("web:1", nil), spec("web:1", ptr.To[int64](5)), `{"activeDeadlineSeconds":5}`},
		{"a shorter deadline", spec("web:1", ptr.To[int64](9)), spec("web:1", ptr.To[int64](9)), spec("web:1", ptr.To[int64](5)), `{"activeDeadlineSeconds":5}`},
		{"the same deadline", spec("web:1", ptr.To[int64](9)), spec("web:1", ptr.To[int64](9)), spec("web:1", ptr.To[int64](9)), `{}`},
	} {
		got, err := json.Marshal(SpecChange(c.has, c.was, c.is))
		if err != nil || string(got) != c.want {
			t.Errorf("%s: %s, want %s (%v)", c.what, got, c.want, err)
		}
	}
}
