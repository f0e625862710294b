package consumer

import (
	"errors"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"

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
	fits := fitting{c}
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

	owner := metav1.OwnerReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "o1", Controller: ptr.To(true)}
	web := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "web", OwnerReferences: []metav1.OwnerReference{owner}}}
	data := web.DeepCopy()
	data.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
	kept := web.DeepCopy()
	kept.Labels = map[string]string{policy.NamespaceLabel: string(policy.Off)}
	everywhere := policy.Namespace{When: policy.Remote}
	check := func(what string, home *corev1.Pod, ns policy.Namespace, away, want bool) {
		t.Helper()
		if got, err := fits.elsewhere("b")(t.Context(), home, ns, away); err != nil || got != want {
			t.Errorf("%s: %v (%v), want %v", what, got, err, want)
		}
	}
	check("there is another target", web, everywhere, true, true)
	check("no target takes it", web, everywhere, false, false)
	check("home takes it", web, policy.Namespace{When: policy.Burst}, false, true)
	check("it may not go there", web, policy.Namespace{When: policy.Remote, To: "b"}, true, false)
	check("it is kept at home", kept, everywhere, true, false)
	check("its data are here", data, everywhere, true, false)
	c.cfg.Everywhere = true
	check("a virtual cluster has no home", web, policy.Namespace{When: policy.Burst}, false, false)
	if kept, err := fits.unwelcomeInside("c")(t.Context(), "lab", owner); !kept || err != nil {
		t.Errorf("%v %v", kept, err)
	}
	check("the other one has refused it, too", web, everywhere, true, false)

	for _, step := range []struct {
		arch string
		err  error
	}{{"amd64", nil}, {"arm64", pod.ErrNoOther}} {
		if kept, err := fits.unfitInside(t.Context(), "lab", "app:1", step.arch); !errors.Is(err, step.err) || kept != (step.err == nil) {
			t.Errorf("an image that does not run on %s: %v %v", step.arch, kept, err)
		}
	}
}
