package pod

import (
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"rivulet/offload/consumer/pod/translate"
	"rivulet/offload/consumer/pod/translate/translatetest"
	"rivulet/offload/consumer/pod/twin"
	"rivulet/offload/policy"
)

// A change of the spec is carried once for each generation of the pod of home, to the away
// pod and to what would replace it; one that the provider refuses is told once, and labels
// change all the same.
func TestAChangeIsCarriedOnce(t *testing.T) {
	ctx := t.Context()
	pod := translatetest.Web()
	pod.Spec.Volumes = nil
	first, err := translate.Wrap(pod, "home-id", "")
	if err != nil {
		t.Fatal(err)
	}
	set := first.ReplicaSet
	set.Namespace = "lab-a"
	away := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web-x", Namespace: "lab-a", Labels: set.Spec.Template.Labels, Annotations: set.Spec.Template.Annotations}, Spec: *set.Spec.Template.Spec.DeepCopy()}
	target := fake.NewClientset(set, away)
	refuses := false
	target.PrependReactor("patch", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if refuses && strings.Contains(string(a.(clienttesting.PatchAction).GetPatch()), `"image"`) {
			return true, nil, apierrors.NewForbidden(corev1.Resource("pods"), "web-x", errors.New("not this image"))
		}
		return false, nil, nil
	})
	recorder := record.NewFakeRecorder(10)
	c := New(Config{Target: place{target}, Home: Home{ID: "home-id", HostIP: netip.MustParseAddr("10.0.0.1"), Recorder: recorder}, Log: slog.New(slog.DiscardHandler)})
	w := newShown(target)
	c.twins.Ensure("lab", "lab-a", func() *twin.Twin { return w.twin })
	alter := func() (patches int) {
		t.Helper()
		p, _ := target.CoreV1().Pods("lab-a").Get(ctx, "web-x", metav1.GetOptions{})
		s, _ := target.AppsV1().ReplicaSets("lab-a").Get(ctx, set.Name, metav1.GetOptions{})
		w.pods.show(p)
		w.sets.show(s)
		want, err := translate.Wrap(pod, "home-id", "")
		if err != nil {
			t.Fatal(err)
		}
		target.ClearActions()
		if err := c.alter(ctx, w.twin, pod, translate.Wrapper{ReplicaSet: s}, want); err != nil {
			t.Fatal(err)
		}
		for _, a := range target.Actions() {
			if a.GetVerb() == "patch" || a.GetVerb() == "update" {
				patches++
			}
		}
		return patches
	}
	is := func(image, generation, label string) {
		t.Helper()
		p, _ := target.CoreV1().Pods("lab-a").Get(ctx, "web-x", metav1.GetOptions{})
		if p.Spec.Containers[0].Image != image || p.Annotations[policy.HomeGenerationAnnotation] != generation || p.Labels["app"] != label {
			t.Errorf("the away pod: %s %v %v", p.Spec.Containers[0].Image, p.Annotations, p.Labels)
		}
	}
	if n := alter(); n != 0 {
		t.Errorf("%d writes where nothing has changed", n)
	}
	pod.Generation, pod.Spec.Containers[0].Image = 2, "web:2"
	if n := alter(); n != 2 {
		t.Errorf("%d writes", n)
	}
	is("web:2", "2", "web")
	if s, _ := target.AppsV1().ReplicaSets("lab-a").Get(ctx, set.Name, metav1.GetOptions{}); s.Spec.Template.Spec.Containers[0].Image != "web:2" {
		t.Errorf("the next one would have %s", s.Spec.Template.Spec.Containers[0].Image)
	}
	if n := alter(); n != 0 {
		t.Errorf("%d writes of what was carried", n)
	}
	pod.Generation, pod.Spec.Containers[0].Image, pod.Labels["app"], refuses = 3, "10.0.0.1/web:3", "other", true
	alter()
	is("web:2", "3", "other")
	select {
	case e := <-recorder.Events:
		if !strings.Contains(e, "not this image") || !strings.Contains(e, translate.ReasonRefused) {
			t.Error(e)
		}
	default:
		t.Error("nobody is told that it was refused")
	}
	if n := alter(); n != 0 || len(recorder.Events) != 0 {
		t.Errorf("%d writes, %d events of what was refused before", n, len(recorder.Events))
	}
}
