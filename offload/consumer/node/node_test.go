package node

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes/fake"
	"pgregory.net/rapid"

	"rivulet/offload/consumer/homecache"
	"rivulet/offload/offer"
	"rivulet/offload/policy"
	"rivulet/offload/target"
	"rivulet/test/harness/await"
	"rivulet/test/harness/fakewatch"
)

var id = Identity{Name: "b", Target: "b", ID: "peer-id", IP: netip.MustParseAddr("100.127.1.1"), Port: 41000, Kind: target.Peer}

func lends(cpu string) offer.Offer {
	return offer.Offer{Ready: true, Architecture: "arm64", OS: "linux", KubeVersion: "v1.35.0",
		Labels:      map[string]string{"topology.kubernetes.io/zone": "attic", corev1.LabelArchStable: "a lie"},
		Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourcePods: resource.MustParse("20")}}
}

func TestObjectIsWhatIsOffered(t *testing.T) {
	n := Object(id, lends("2"), corev1.NodeStatus{}, metav1.Now())
	for key, want := range map[string]string{
		policy.VirtualNodeLabel: "peer-id", corev1.LabelHostname: "b", corev1.LabelArchStable: "arm64", corev1.LabelOSStable: "linux",
		"type": "virtual-kubelet", "topology.kubernetes.io/zone": "attic", "node.kubernetes.io/exclude-from-external-load-balancers": "true"} {
		if n.Labels[key] != want {
			t.Errorf("label %s=%q, want %q", key, n.Labels[key], want)
		}
	}
	want := []corev1.Taint{{Key: policy.VirtualTaint, Effect: corev1.TaintEffectNoSchedule}, {Key: policy.AwayTaint, Effect: corev1.TaintEffectPreferNoSchedule}}
	if len(n.Spec.Taints) != 2 || n.Spec.Taints[0] != want[0] || n.Spec.Taints[1] != want[1] {
		t.Errorf("taints %v", n.Spec.Taints)
	}
	if _, marked := n.Labels[policy.After]; marked || n.Labels[policy.KindLabel] != "peer" {
		t.Errorf("labels %v", n.Labels)
	}
	later := id
	later.Kind, later.After = "burst", true
	n2 := Object(later, lends("2"), corev1.NodeStatus{}, metav1.Now())
	if n2.Labels[policy.KindLabel] != "burst" || n2.Labels[policy.After] != "true" || len(n2.Spec.Taints) != 3 ||
		n2.Spec.Taints[2] != (corev1.Taint{Key: policy.After, Effect: corev1.TaintEffectPreferNoSchedule}) {
		t.Errorf("one that comes after the others: %v %v", n2.Labels, n2.Spec.Taints)
	}
	if n.Spec.ProviderID != "rivulet://peer-id" || n.Status.DaemonEndpoints.KubeletEndpoint.Port != 41000 || n.Status.Addresses[0].Address != "100.127.1.1" {
		t.Errorf("%s, %+v, %+v", n.Spec.ProviderID, n.Status.DaemonEndpoints, n.Status.Addresses)
	}
	for _, c := range n.Status.Conditions { // a route controller would taint it otherwise
		if c.Type == corev1.NodeNetworkUnavailable && c.Status != corev1.ConditionFalse || c.Type != corev1.NodeReady && c.Status == corev1.ConditionTrue {
			t.Errorf("condition %+v", c)
		}
	}
	if len(n.Status.Conditions) != 5 || n.Status.Allocatable.Cpu().String() != "2" || n.Status.NodeInfo.Architecture != "arm64" {
		t.Errorf("%v %s", n.Status.Allocatable, n.Status.NodeInfo.Architecture)
	}
}

func TestTransitionsAreTimedByWhenTheyHappen(t *testing.T) {
	then, now := metav1.NewTime(time.Unix(1000, 0)), metav1.NewTime(time.Unix(2000, 0))
	up := Object(id, lends("2"), corev1.NodeStatus{}, then)
	still := Object(id, lends("3"), up.Status, now)
	if at := still.Status.Conditions[0].LastTransitionTime; !at.Equal(&then) {
		t.Errorf("a change of room moved the transition to %s", at)
	}
	down := Object(id, offer.Offer{Reason: "silent"}, still.Status, now)
	if c := down.Status.Conditions[0]; c.Type != corev1.NodeReady || c.Status != corev1.ConditionFalse || c.Message != "silent" || !c.LastTransitionTime.Equal(&now) {
		t.Errorf("%+v", c)
	}
}

func TestName(t *testing.T) {
	mine := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "old", Labels: map[string]string{policy.VirtualNodeLabel: "peer-id"}}, Spec: corev1.NodeSpec{ProviderID: "rivulet://peer-id"}}
	forged := corev1.Node{ObjectMeta: mine.ObjectMeta, Spec: corev1.NodeSpec{ProviderID: "k3s://old"}}
	home := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "pi"}}
	for _, c := range []struct {
		what, name string
		nodes      []corev1.Node
		reserved   string
		want       string
	}{
		{"its own", "pi", nil, "", "pi"},
		{"kept from before", "pi", []corev1.Node{mine}, "", "old"},
		{"a label that a kubelet may have written", "pi", []corev1.Node{forged}, "", "pi"},
		{"a node of home has it", "pi", []corev1.Node{home}, "", "pi-abcdefgh"},
		{"another target has it", "pi", nil, "pi", "pi-abcdefgh"},
		{"not a name", "Anna's Pi_4", nil, "", "anna-s-pi-4"},
		{"nothing left", "…", nil, "", "peer-abcdefgh"},
	} {
		if got := Name(c.name, "peer-id", "abcdefgh", c.nodes, func(n string) bool { return n == c.reserved }); got != c.want {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		taken := rapid.Bool().Draw(t, "taken")
		got := Name(rapid.String().Draw(t, "name"), "peer-id", "abcdefgh", nil, func(string) bool { return taken })
		if faults := validation.IsDNS1123Label(got); len(faults) > 0 {
			t.Fatalf("%q: %v", got, faults)
		}
	})
}

// Names of nodes are valid and free, whatever the target, its platform and its ID are called.
func TestNamesOfPlatforms(t *testing.T) {
	if got := PlatformName("b", offer.Platform{OS: "linux", Architecture: strings.Repeat("a", 63)}, "abcdefgh", func(string) bool { return false }); got != "b-"+strings.Repeat("a", 31) {
		t.Errorf("a long platform: %q", got)
	}
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.OneOf(rapid.String(), rapid.StringMatching(`[a-z0-9.-]{0,80}`))
		taken := map[string]bool{}
		left := rapid.IntRange(0, 30).Draw(t, "taken")
		for range 2 {
			got := PlatformName(name.Draw(t, "target"), offer.Platform{OS: name.Draw(t, "os"), Architecture: name.Draw(t, "arch")}, name.Draw(t, "short"),
				func(n string) bool {
					if left > 0 {
						left--
						taken[n] = true
					}
					return taken[n]
				})
			if faults := validation.IsDNS1123Label(got); len(faults) > 0 || taken[got] {
				t.Fatalf("%q, taken %v: %v", got, taken[got], faults)
			}
			got = Name(name.Draw(t, "name"), "peer-id", name.Draw(t, "short"), nil, func(string) bool { return left%2 == 0 })
			if faults := validation.IsDNS1123Label(got); len(faults) > 0 {
				t.Fatalf("%q: %v", got, faults)
			}
		}
	})
}

// A Node of the same name that is another one is neither adopted nor changed.
func TestAnotherNodeIsNotAdopted(t *testing.T) {
	for what, other := range map[string]corev1.NodeSpec{"a worker": {}, "another target's": {ProviderID: "rivulet://x"}} {
		client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "b", Labels: map[string]string{policy.VirtualNodeLabel: id.ID}}, Spec: other})
		offers := make(chan offer.Offer, 1)
		offers <- lends("2")
		err := New(client, homecache.New(slog.New(slog.DiscardHandler)), id, make(turned), slog.New(slog.DiscardHandler)).Run(t.Context(), offers)
		n, got := client.CoreV1().Nodes().Get(t.Context(), "b", metav1.GetOptions{})
		if err == nil || !strings.Contains(err.Error(), "another node") || got != nil || len(n.Status.Conditions) > 0 || n.Spec.ProviderID != other.ProviderID {
			t.Errorf("%s: %v, %+v %v", what, err, n, got)
		}
	}
}

// turned are the changes of a node.
type turned chan string

func (t turned) NodeChanged(name string) { t <- name }

// TestANodeLives follows a node from its first offer through a lost link and a
// restart of the process.
func TestANodeLives(t *testing.T) {
	client := fake.NewClientset()
	offers := make(chan offer.Offer)
	turned := make(turned, 10)
	id := id
	id.Labels = &atomic.Pointer[map[string]string]{}
	id.Labels.Store(&map[string]string{policy.PriceLabel: "0"})
	run := func() (n *Node, stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		n = New(client, homecache.New(slog.New(slog.DiscardHandler)), id, turned, slog.New(slog.DiscardHandler))
		done := make(chan struct{})
		go func() { defer close(done); _ = n.Run(ctx, offers) }()
		return n, func() { cancel(); <-done }
	}
	ready := func(want corev1.ConditionStatus, reason string) {
		t.Helper()
		await.NoError(t, t.Context(), 10*time.Second, fmt.Sprintf("Ready=%s with %q", want, reason), func() error {
			n, err := client.CoreV1().Nodes().Get(t.Context(), "b", metav1.GetOptions{})
			if err != nil {
				return err
			}
			if c := n.Status.Conditions[0]; c.Status != want || !strings.Contains(c.Message, reason) {
				return fmt.Errorf("%+v", c)
			}
			return nil
		})
	}

	n, stop := run()
	offers <- offer.Offer{Reason: "silent"} // nothing to make a node of
	offers <- lends("2")
	ready(corev1.ConditionTrue, "")
	for range 2 { // somebody deletes it
		fakewatch.Open(t, client, "nodes")
		if err := client.CoreV1().Nodes().Delete(t.Context(), "b", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		ready(corev1.ConditionTrue, "")
	}
	offers <- offer.Offer{Reason: "the link is down"}
	ready(corev1.ConditionFalse, "the link is down")
	if n.Ready() || n.Offer().Architecture != "arm64" {
		t.Errorf("silence made the node forget what it is: %+v", n.Offer())
	}
	if _, err := client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(t.Context(), "b", metav1.GetOptions{}); err != nil {
		t.Errorf("no lease: %v", err)
	}
	stop()

	n, stop = run()
	defer stop()
	offers <- offer.Offer{Reason: "still silent"}
	ready(corev1.ConditionFalse, "still silent")
	if kept := n.Offer().Allocatable; kept.Cpu().String() != "2" {
		t.Errorf("a restart made the node forget its room: %v", kept)
	}
	offers <- lends("3")
	ready(corev1.ConditionTrue, "")
	id.Labels.Store(&map[string]string{policy.PriceLabel: "7"})
	n.Relabel()
	await.True(t, 10*time.Second, "the new price at the node", func() bool {
		made, err := client.CoreV1().Nodes().Get(t.Context(), "b", metav1.GetOptions{})
		return err == nil && made.Labels[policy.PriceLabel] == "7"
	})
	if len(turned) != 3 || <-turned != "b" {
		t.Errorf("readiness turned %d times, want 3", len(turned))
	}
}
