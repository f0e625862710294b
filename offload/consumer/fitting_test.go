package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"

	"rivulet/offload/consumer/fit"
	"rivulet/offload/consumer/pod"
	"rivulet/offload/offer"
	"rivulet/offload/policy"
	"rivulet/offload/target"
	"rivulet/test/harness/await"
)

// A pod that a target refuses, or whose image does not run there, may go on to another target or platform, once to each, and
// is left with the reason where nothing else could take it.
func TestARefusedPodGoesOn(t *testing.T) {
	c := started(t, fake.NewClientset())
	made := make(chan *somewhere, 2)
	c.SetTargets(target.Peer, []target.Spec{(&somewhere{id: "b"}).spec(made, target.Peer), (&somewhere{id: "c"}).spec(made, target.Peer)}, true)
	for range 2 {
		s := <-made
		s.offers <- offer.Offer{Ready: true, OS: "linux", Architecture: map[string]string{"b": "amd64", "c": "arm64"}[s.id], KubeVersion: "v1"}
	}
	ready := func() (out []string) {
		for _, v := range c.VirtualNodes() {
			if v.Ready {
				out = append(out, v.Name)
			}
		}
		return out
	}
	await.True(t, time.Minute, "both nodes are ready", func() bool { return slices.Equal(ready(), []string{"b", "c"}) })

	await.Empty(t, time.Minute, "home has them, too", func(ctx context.Context) string {
		list, err := c.home.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil || len(list.Items) != 2 {
			return fmt.Sprint(len(list.Items), " nodes: ", err)
		}
		return ""
	})
	owner := metav1.OwnerReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "o1", Controller: ptr.To(true)}
	web := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "web", OwnerReferences: []metav1.OwnerReference{owner}},
		Spec: corev1.PodSpec{Tolerations: []corev1.Toleration{{Key: policy.VirtualTaint, Operator: corev1.TolerationOpExists}, {Key: policy.AwayTaint, Operator: corev1.TolerationOpExists}}}}
	data := web.DeepCopy()
	data.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
	kept := web.DeepCopy()
	kept.Labels = map[string]string{policy.NamespaceLabel: string(policy.Off)}
	everywhere := policy.Namespace{When: policy.Remote}
	check := func(what string, home *corev1.Pod, ns policy.Namespace, away, want bool) {
		t.Helper()
		if got, err := (fitting{c, "b"}).Elsewhere(t.Context(), home, ns, away); err != nil || got != want {
			t.Errorf("%s: %v (%v), want %v", what, got, err, want)
		}
	}
	check("there is another target", web, everywhere, true, true)
	check("no target takes it", web, everywhere, false, false)
	check("home takes it", web, policy.Namespace{When: policy.Burst}, false, true)
	check("it may not go there", web, policy.Namespace{When: policy.Remote, To: "b"}, true, false)
	check("it is kept at home", kept, everywhere, true, false)
	check("its data are here", data, everywhere, true, false)
	asks := func(arch string) *corev1.Pod {
		p := web.DeepCopy()
		p.Spec.NodeSelector = map[string]string{corev1.LabelArchStable: arch}
		return p
	}
	check("it asks for what the other node is", asks("arm64"), everywhere, true, true)
	check("it asks for another node", asks("amd64"), everywhere, true, false)
	intolerant := web.DeepCopy()
	intolerant.Spec.Tolerations = nil
	check("it does not tolerate that node", intolerant, everywhere, true, false)
	unfit := web.DeepCopy()
	unfit.Spec.Containers = []corev1.Container{{Image: "amd:1"}}
	if err := fit.New(c.home, c.cfg.Log).Learn(t.Context(), "amd:1", "arm64", time.Now()); err != nil {
		t.Fatal(err)
	}
	check("its image does not run on that node", unfit, everywhere, true, false)
	c.cfg.Everywhere = true
	check("a virtual cluster has no home", web, policy.Namespace{When: policy.Burst}, false, false)
	if kept, err := (fitting{c, "c"}).Unwelcome(t.Context(), "lab", owner); !kept || err != nil {
		t.Errorf("%v %v", kept, err)
	}
	check("the other one has refused it, too", web, everywhere, true, false)

	for _, step := range []struct {
		arch string
		err  error
	}{{"amd64", nil}, {"arm64", pod.ErrNoOther}} {
		if kept, err := (fitting{c, "b"}).Unfit(t.Context(), "lab", "app:1", step.arch); !errors.Is(err, step.err) || kept != (step.err == nil) {
			t.Errorf("an image that does not run on %s: %v %v", step.arch, kept, err)
		}
	}
}
