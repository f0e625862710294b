package consumer

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	"rivulet/offload/offer"
	"rivulet/offload/policy"
	"rivulet/offload/target"
	"rivulet/test/harness/await"
)

func lends(archs ...string) offer.Offer {
	o := offer.Offer{Ready: true, Neighbours: nil}
	for i, arch := range archs {
		o.Platforms = append(o.Platforms, offer.PlatformOffer{Platform: offer.Platform{OS: "linux", Architecture: arch}, Ready: true, KubeVersion: "v1",
			Allocatable: corev1.ResourceList{corev1.ResourceCPU: *resource.NewQuantity(int64(i+1), resource.DecimalSI)},
			Labels:      map[string]string{"for": arch, "rivulet.dev/virtual-node": "a lie"}})
	}
	return o
}

// summary is "name arch cpu target ready" of each node.
func summary(ctx context.Context, t *testing.T, client kubernetes.Interface) []string {
	list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	must(t, err)
	var out []string
	for i := range list.Items {
		n := &list.Items[i]
		ready := "Ready"
		if nodeReady(n) != "" {
			ready = "NotReady"
		}
		if n.Labels["for"] != n.Labels[corev1.LabelArchStable] || n.Labels[policy.VirtualNodeLabel] != "b-id" {
			ready += fmt.Sprint(n.Labels)
		}
		out = append(out, fmt.Sprint(n.Name, " ", n.Labels[corev1.LabelArchStable], " ", n.Status.Allocatable.Cpu(), " ", n.Labels[policy.TargetLabel], " ", ready))
	}
	slices.Sort(out)
	return out
}

// A target has a node for each platform that it has nodes of. Nodes keep their names,
// outlive silence and restarts, and go when their platform is gone for good.
func TestATargetOfSeveralPlatforms(t *testing.T) {
	client := fake.NewClientset()
	o := started(t, client)
	o.cfg.Missing = time.Hour
	made := make(chan *somewhere, 10)
	spec := (&somewhere{id: "b-id"}).spec(made, target.Peer)
	spec.Name, spec.After = "b", false
	o.SetTargets(target.Peer, []target.Spec{spec}, true)
	b := <-made
	want := func(what string, nodes ...string) {
		t.Helper()
		await.Empty(t, time.Minute, what, func(ctx context.Context) string {
			if got := summary(ctx, t, client); !slices.Equal(got, nodes) {
				return fmt.Sprintf("%q, want %q", got, nodes)
			}
			return ""
		})
	}
	b.offers <- offer.Offer{Reason: "silent"}
	b.offers <- lends("amd64")
	want("the first platform has the target's name", "b amd64 1 b Ready")
	b.offers <- lends("arm64", "amd64", "riscv64")
	want("each platform has its room", "b amd64 2 b Ready", "b-arm64 arm64 1 b Ready", "b-riscv64 riscv64 3 b Ready")
	b.offers <- offer.Offer{Reason: "silent"}
	want("silence is that of all", "b amd64 2 b NotReady", "b-arm64 arm64 1 b NotReady", "b-riscv64 riscv64 3 b NotReady")
	away := lends("amd64", "arm64")
	away.Platforms[0].Ready, away.Platforms[0].Reason = false, "no node of it is Ready"
	b.offers <- away
	want("one is away, one is there, one is missing", "b amd64 1 b NotReady", "b-arm64 arm64 2 b Ready", "b-riscv64 riscv64 3 b NotReady")
	st := o.VirtualNodes()
	if len(st) != 3 || st[0].Reason != "no node of it is Ready" || st[2].Reason != "b has no linux/riscv64 nodes any more" || st[1].Target != "b" || st[1].ID != "b-id" || st[1].Architecture != "arm64" {
		t.Errorf("%+v", st)
	}

	spec.Key = "anew" // as after a restart
	o.SetTargets(target.Peer, []target.Spec{spec}, true)
	again := <-made
	<-b.closed
	again.offers <- lends("arm64", "amd64")
	want("names stay whatever comes first", "b amd64 2 b Ready", "b-arm64 arm64 1 b Ready", "b-riscv64 riscv64 3 b NotReady")

	spec.Key, o.cfg.Missing = "impatient", time.Millisecond
	o.SetTargets(target.Peer, []target.Spec{spec}, true)
	b = <-made
	<-again.closed
	b.offers <- lends("arm64")
	await.Empty(t, time.Minute, "what is missing for long goes, and nothing else", func(ctx context.Context) string {
		offer.Replace(b.offers, lends("arm64"))
		if got := summary(ctx, t, client); !slices.Equal(got, []string{"b-arm64 arm64 1 b Ready"}) {
			return fmt.Sprint(got)
		}
		return ""
	})
	offer.Replace(b.offers, lends("arm64", "riscv64"))
	want("the target's name is free for the next", "b riscv64 2 b Ready", "b-arm64 arm64 1 b Ready")

	o.SetTargets(target.Peer, nil, true)
	<-b.closed
	want("all nodes of a target go with it")
}

// A provider that does not tell platforms apart has one node, whatever that is.
func TestATargetThatDoesNotTellPlatformsApart(t *testing.T) {
	client := fake.NewClientset()
	o := started(t, client)
	made := make(chan *somewhere, 1)
	spec := (&somewhere{id: "b-id"}).spec(made, target.Peer)
	spec.Name = "b"
	o.SetTargets(target.Peer, []target.Spec{spec}, true)
	b := <-made
	for _, arch := range []string{"amd64", "arm64", "amd64"} {
		one := lends(arch).Split()[0]
		b.offers <- one
		await.Empty(t, time.Minute, "the node is "+arch, func(ctx context.Context) string {
			if got := summary(ctx, t, client); !slices.Equal(got, []string{"b " + arch + " 1 b Ready"}) {
				return fmt.Sprint(got)
			}
			return ""
		})
	}
	b.offers <- lends("amd64", "arm64")
	await.Empty(t, time.Minute, "it was upgraded", func(ctx context.Context) string {
		if got := summary(ctx, t, client); !slices.Equal(got, []string{"b amd64 1 b Ready", "b-arm64 arm64 2 b Ready"}) {
			return fmt.Sprint(got)
		}
		return ""
	})
}
