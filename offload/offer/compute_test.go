package offer

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"rivulet/fabric/peer"
	"rivulet/offload/policy"
)

// Measure is that of a Tally of the pods.
func Measure(nodes []*corev1.Node, pods []*corev1.Pod, shares Shares, members map[peer.ID]Member) Room {
	return NewTally(pods...).Measure(nodes, shares, members)
}

// Compute returns what a peer may use in all, beside the other known ones.
func Compute(nodes []*corev1.Node, pods []*corev1.Pod, consumer peer.ID, known []peer.ID, share Share) Offer {
	return Measure(nodes, pods, Shares{Peers: share}, nil).For(consumer, known)
}

const consumer peer.ID = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

type nodeOption func(*corev1.Node)

func node(name, cpu, memory string, options ...nodeOption) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}, Status: corev1.NodeStatus{
		Allocatable: list(cpu, memory, 10),
		Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		NodeInfo:    corev1.NodeSystemInfo{OperatingSystem: "linux", Architecture: "arm64", KubeletVersion: "v1.35.0"},
	}}
	for _, o := range options {
		o(n)
	}
	return n
}

func arch(a string) nodeOption {
	return func(n *corev1.Node) { n.Status.NodeInfo.Architecture = a }
}
func notReady(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }
func cordoned(n *corev1.Node) { n.Spec.Unschedulable = true }
func virtual(n *corev1.Node)  { n.Labels[policy.VirtualNodeLabel] = "x" }
func plain(n *corev1.Node)    { n.Labels[policy.WorkerLabel] = policy.WorkerPlain }
func isolates(n *corev1.Node) { n.Labels[policy.WorkerLabel] = policy.WorkerIsolates }
func zone(z string) nodeOption {
	return func(n *corev1.Node) { n.Labels[corev1.LabelTopologyZone] = z }
}

func list(cpu, memory string, pods int64) corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory),
		corev1.ResourcePods: *resource.NewQuantity(pods, resource.DecimalSI),
	}
}

func pod(on, cpu, memory string, origin peer.ID) *corev1.Pod {
	p := &corev1.Pod{Spec: corev1.PodSpec{NodeName: on, Containers: []corev1.Container{container(cpu, memory)}}}
	if origin != "" {
		p.Labels = map[string]string{policy.OriginLabel: string(origin)}
	}
	return p
}

func container(cpu, memory string) corev1.Container {
	return corev1.Container{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}}}
}

func TestCompute(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	initialised := pod("n", "100m", "64Mi", "")
	initialised.Spec.InitContainers = []corev1.Container{container("1", "32Mi")} // highest of init and sum counts
	sidecar := pod("n", "100m", "64Mi", "")
	sidecar.Spec.InitContainers = []corev1.Container{container("300m", "64Mi")}
	sidecar.Spec.InitContainers[0].RestartPolicy = &always // adds up
	overhead := pod("n", "100m", "64Mi", "")
	overhead.Spec.Overhead = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("400m")}
	done := pod("n", "1", "1Gi", "")
	done.Status.Phase = corev1.PodSucceeded
	deleted := pod("n", "1", "1Gi", "")
	deleted.DeletionTimestamp = &metav1.Time{}

	one := []*corev1.Node{node("n", "4", "4Gi")}
	cases := []struct {
		name   string
		nodes  []*corev1.Node
		pods   []*corev1.Pod
		known  []peer.ID
		share  Share
		cpu    string
		memory string
		count  int64
		reason string
	}{
		{name: "all of an idle node", nodes: one, cpu: "4", memory: "4Gi", count: 10},
		{name: "less what others asked for", nodes: one, pods: []*corev1.Pod{pod("n", "1", "1Gi", "")}, cpu: "3", memory: "3Gi", count: 9},
		{name: "own pods stay inside the offer", nodes: one, pods: []*corev1.Pod{pod("n", "1", "1Gi", consumer)}, cpu: "4", memory: "4Gi", count: 10},
		{name: "another consumer has its use and as much again, and half of the rest", nodes: one, pods: []*corev1.Pod{pod("n", "1", "1Gi", "bbbb")}, cpu: "1500m", memory: "1536Mi", count: 5},
		{name: "one that uses nothing keeps half of an equal part", nodes: one, pods: []*corev1.Pod{pod("n", "3", "3Gi", consumer)}, known: []peer.ID{"bbbb"}, cpu: "3", memory: "3Gi", count: 5},
		{name: "who has taken all is asked for half of an equal part", nodes: one, pods: []*corev1.Pod{pod("n", "4", "4Gi", consumer)}, known: []peer.ID{"bbbb"}, cpu: "3", memory: "3Gi", count: 5},
		{name: "equals", nodes: one, known: []peer.ID{"bbbb", consumer}, cpu: "2", memory: "2Gi", count: 5},
		{name: "pending pods take nothing", nodes: one, pods: []*corev1.Pod{pod("", "1", "1Gi", ""), pod("", "1", "1Gi", consumer)}, cpu: "4", memory: "4Gi", count: 10},
		{name: "workers that run no tenants lend nothing", nodes: append([]*corev1.Node{node("w", "8", "8Gi", plain)}, one...), pods: []*corev1.Pod{pod("w", "1", "1Gi", "")}, cpu: "4", memory: "4Gi", count: 10},
		{name: "workers that isolate tenants lend what they have", nodes: append([]*corev1.Node{node("w", "8", "8Gi", isolates)}, one...), pods: []*corev1.Pod{pod("w", "1", "1Gi", "")}, cpu: "11", memory: "11Gi", count: 19},
		{name: "finished pods take nothing", nodes: one, pods: []*corev1.Pod{done}, cpu: "4", memory: "4Gi", count: 10},
		{name: "pods being deleted hold their room", nodes: one, pods: []*corev1.Pod{deleted}, cpu: "3", memory: "3Gi", count: 9},
		{name: "init container", nodes: one, pods: []*corev1.Pod{initialised}, cpu: "3", memory: "4032Mi", count: 9},
		{name: "sidecar", nodes: one, pods: []*corev1.Pod{sidecar}, cpu: "3600m", memory: "3968Mi", count: 9},
		{name: "overhead", nodes: one, pods: []*corev1.Pod{overhead}, cpu: "3500m", memory: "4032Mi", count: 9},
		{name: "never negative", nodes: one, pods: []*corev1.Pod{pod("n", "9", "9Gi", "")}, cpu: "0", memory: "0", count: 9},
		{name: "an overfull node takes nothing from the next", nodes: []*corev1.Node{node("n", "4", "4Gi"), node("m", "2", "2Gi")},
			pods: []*corev1.Pod{pod("n", "9", "9Gi", "")}, cpu: "2", memory: "2Gi", count: 19},
		{name: "virtual, cordoned and unready nodes lend nothing",
			nodes: []*corev1.Node{node("n", "4", "4Gi"), node("v", "8", "8Gi", virtual), node("c", "8", "8Gi", cordoned), node("u", "8", "8Gi", notReady)},
			pods:  []*corev1.Pod{pod("v", "8", "8Gi", ""), pod("c", "1", "1Gi", "")}, cpu: "4", memory: "4Gi", count: 10},
		{name: "who is on a cordoned node may stay there", nodes: []*corev1.Node{node("n", "4", "4Gi"), node("c", "8", "8Gi", cordoned)},
			pods: []*corev1.Pod{pod("c", "5", "5Gi", consumer)}, cpu: "9", memory: "9Gi", count: 11},
		{name: "the platform that lends most comes first", nodes: []*corev1.Node{node("n", "4", "4Gi"), node("m", "2", "2Gi", arch("amd64"))}, cpu: "4", memory: "4Gi", count: 10},
		{name: "half of it", nodes: one, share: Share{CPU: 50, Memory: 25, MaxPods: 3}, cpu: "2", memory: "1Gi", count: 3},
		{name: "nothing", nodes: one, share: Share{CPU: Nothing, Memory: Nothing, MaxPods: Nothing}, cpu: "0", memory: "0", count: 0},
		{name: "what others borrowed is gone from the share", nodes: one, share: Share{CPU: 50, MaxPods: 3},
			pods: []*corev1.Pod{pod("n", "1500m", "1Gi", "bbbb")}, cpu: "500m", memory: "1536Mi", count: 1},
		{name: "own pods of home are not borrowed", nodes: one, share: Share{CPU: 50}, pods: []*corev1.Pod{pod("n", "1", "1Gi", "")}, cpu: "2", memory: "3Gi", count: 9},
		{name: "no nodes", reason: "the provider has no nodes"},
		{name: "only virtual nodes", nodes: []*corev1.Node{node("v", "8", "8Gi", virtual)}, reason: "the provider has no nodes"},
		{name: "not ready", nodes: []*corev1.Node{node("n", "4", "4Gi", notReady)}, reason: "no node of the provider is Ready"},
		{name: "cordoned", nodes: []*corev1.Node{node("n", "4", "4Gi", cordoned), node("m", "4", "4Gi", notReady)},
			reason: "no node of the provider takes pods"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got := Compute(c.nodes, c.pods, consumer, c.known, c.share)
			if got.Reason != c.reason || got.Ready != (c.reason == "") {
				t.Fatalf("Ready %v, Reason %q; want reason %q", got.Ready, got.Reason, c.reason)
			}
			if c.reason != "" {
				return
			}
			for name, want := range list(c.cpu, c.memory, c.count) {
				if have := got.Allocatable[name]; have.Cmp(want) != 0 {
					t.Errorf("%s = %s, want %s", name, have.String(), want.String())
				}
			}
			if got.Architecture != "arm64" || got.OS != "linux" || got.KubeVersion != "v1.35.0" {
				t.Errorf("platform %s/%s %s", got.OS, got.Architecture, got.KubeVersion)
			}
		})
	}
}

// A node that the owner keeps free lends what tenants have there, as a cordoned one does: pods of tenants tolerate no
// taint. What Kubernetes itself taints for a while stays in the offer, and so does a node that is only avoided.
func TestTaintedNodesAreNotLent(t *testing.T) {
	for taint, lent := range map[corev1.Taint]string{
		{Key: "gpu", Effect: corev1.TaintEffectNoSchedule}:                                   "5",
		{Key: "gpu", Effect: corev1.TaintEffectNoExecute}:                                    "5",
		{Key: "node-role.kubernetes.io/control-plane", Effect: corev1.TaintEffectNoSchedule}: "5",
		{Key: "gpu", Effect: corev1.TaintEffectPreferNoSchedule}:                             "12",
		{Key: "node.kubernetes.io/disk-pressure", Effect: corev1.TaintEffectNoSchedule}:      "12",
	} {
		kept := node("t", "8", "8Gi")
		kept.Spec.Taints = []corev1.Taint{taint}
		slim, err := trim(kept)
		if err != nil {
			t.Fatal(err)
		}
		for what, n := range map[string]*corev1.Node{"whole": kept, "trimmed": slim.(*corev1.Node)} {
			got := Compute([]*corev1.Node{node("n", "4", "4Gi"), n}, []*corev1.Pod{pod("t", "1", "1Gi", consumer)}, consumer, nil, Share{})
			if cpu := got.Allocatable[corev1.ResourceCPU]; cpu.Cmp(resource.MustParse(lent)) != 0 || !got.Ready {
				t.Errorf("%v, the node %s: %s CPUs are lent, want %s", taint, what, cpu.String(), lent)
			}
		}
		alone := Compute([]*corev1.Node{kept}, nil, consumer, nil, Share{})
		if closed := lent == "5"; alone.Ready == closed || closed && alone.Reason != "no node of the provider takes pods" {
			t.Errorf("%v on the only node: Ready %v, %q", taint, alone.Ready, alone.Reason)
		}
	}
}

func TestTopologyIsWhatAllNodesShare(t *testing.T) {
	same := Compute([]*corev1.Node{node("n", "4", "4Gi", zone("lab")), node("m", "4", "4Gi", zone("lab"))}, nil, consumer, nil, Share{})
	if same.Labels[corev1.LabelTopologyZone] != "lab" {
		t.Errorf("labels = %v, want the common zone", same.Labels)
	}
	mixed := Compute([]*corev1.Node{node("n", "4", "4Gi", zone("lab")), node("m", "4", "4Gi", zone("attic"))}, nil, consumer, nil, Share{})
	if len(mixed.Labels) != 0 {
		t.Errorf("labels = %v, want none: the nodes differ", mixed.Labels)
	}
}

// Whatever runs where: an offer is never negative, never more than the nodes
// have, does not depend on the order of its inputs or on trimming, is not lowered
// by the consumer's own pods, and never grows when somebody else gets a pod.
func TestComputeProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var nodes []*corev1.Node
		total := corev1.ResourceList{}
		for i := range rapid.IntRange(1, 4).Draw(t, "nodes") {
			n := node(fmt.Sprint("n", i), fmt.Sprint(rapid.IntRange(0, 8).Draw(t, "cpu")), fmt.Sprintf("%dGi", rapid.IntRange(0, 8).Draw(t, "memory")))
			nodes = append(nodes, n)
			add(total, n.Status.Allocatable)
		}
		draw := func(origin peer.ID) *corev1.Pod {
			return pod(fmt.Sprint("n", rapid.IntRange(0, 5).Draw(t, "on")), fmt.Sprintf("%dm", rapid.IntRange(0, 4000).Draw(t, "m")),
				fmt.Sprintf("%dMi", rapid.IntRange(0, 4000).Draw(t, "Mi")), origin)
		}
		var others, own []*corev1.Pod
		for range rapid.IntRange(0, 6).Draw(t, "others") {
			others = append(others, draw(rapid.SampledFrom([]peer.ID{"", "bbbb"}).Draw(t, "whose")))
		}
		for range rapid.IntRange(0, 6).Draw(t, "own") {
			own = append(own, draw(consumer))
		}
		share := Share{CPU: rapid.IntRange(Nothing, 100).Draw(t, "share"), MaxPods: int64(rapid.IntRange(Nothing, 20).Draw(t, "most"))}

		base := Compute(nodes, others, consumer, nil, share)
		for name, q := range base.Allocatable {
			if most := total[name]; q.Sign() < 0 || q.Cmp(most) > 0 {
				t.Fatalf("%s = %s of %s", name, q.String(), most.String())
			}
		}
		all := append(append([]*corev1.Pod{}, own...), others...)
		var trimmed []*corev1.Pod
		for _, p := range all {
			small, _ := trim(p)
			trimmed = append(trimmed, small.(*corev1.Pod))
		}
		with := Compute(nodes, all, consumer, nil, share)
		same(t, "in another order, trimmed", with, Compute(nodes, rapid.Permutation(trimmed).Draw(t, "order"), consumer, nil, share))
		less(t, "own pods", base, with)
		less(t, "another's pod", Compute(nodes, append(others, draw("bbbb")), consumer, nil, share), Compute(nodes, others, consumer, []peer.ID{"bbbb"}, share))
		less(t, "a pod of the provider's own", Compute(nodes, append(others, draw("")), consumer, nil, share), base)
	})
}

// less fails if a has more of anything than b.
func less(t *rapid.T, what string, a, b Offer) {
	for name, q := range a.Allocatable {
		if most := b.Allocatable[name]; q.Cmp(most) > 0 {
			t.Fatalf("%s: %s is %s in place of %s", what, name, q.String(), most.String())
		}
	}
}

func same(t *rapid.T, what string, a, b Offer) {
	for name, q := range a.Allocatable {
		if other := b.Allocatable[name]; q.Cmp(other) != 0 {
			t.Fatalf("%s: %s is %s, was %s", what, name, other.String(), q.String())
		}
	}
}

// More is by CPU, then by memory; equals are told apart by the caller's order alone.
func TestMore(t *testing.T) {
	for _, c := range []struct {
		a, b        corev1.ResourceList
		first, want bool
	}{
		{list("2", "1Gi", 1), list("1", "2Gi", 1), false, true}, {list("1", "2Gi", 1), list("2", "1Gi", 1), true, false},
		{list("1", "2Gi", 1), list("1", "1Gi", 1), false, true}, {list("1", "1Gi", 1), list("1", "2Gi", 1), true, false},
		{list("1", "1Gi", 2), list("1", "1Gi", 1), true, true}, {list("1", "1Gi", 2), list("1", "1Gi", 1), false, false},
	} {
		if got := more(c.a, c.b, c.first); got != c.want {
			t.Errorf("%v, %v, %v: %v", c.a, c.b, c.first, got)
		}
	}
}
