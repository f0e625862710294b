package offer

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"rivulet/fabric/peer"
)

const gpu = corev1.ResourceName("nvidia.com/gpu")

func labelled(key, value string) nodeOption {
	return func(n *corev1.Node) { n.Labels[key] = value }
}

func has(name corev1.ResourceName, q string) nodeOption {
	return func(n *corev1.Node) { n.Status.Allocatable[name] = resource.MustParse(q) }
}

// waits makes the pod one that has no node yet and has to go to an architecture.
func waits(p *corev1.Pod, arch string) *corev1.Pod {
	p.Spec.NodeName = ""
	p.Spec.NodeSelector = map[string]string{corev1.LabelArchStable: arch, corev1.LabelOSStable: "linux"}
	return p
}

func TestEachPlatformHasItsOwnRoom(t *testing.T) {
	nodes := []*corev1.Node{
		node("n", "4", "4Gi", labelled("disk", "ssd"), labelled("kubernetes.io/hostname", "n"), zone("lab")),
		node("m", "2", "2Gi", labelled("disk", "ssd"), labelled("room", "attic"), labelled("node-role.kubernetes.io/control-plane", "true")),
		node("x", "8", "8Gi", arch("amd64"), has(gpu, "2"), labelled("disk", "hdd")),
	}
	o := Compute(nodes, []*corev1.Pod{pod("x", "3", "1Gi", ""), pod("m", "1", "1Gi", consumer)}, consumer, nil, Share{})
	if len(o.Platforms) != 2 || !o.Ready {
		t.Fatalf("%+v", o)
	}
	arm, amd := o.Platforms[0], o.Platforms[1] // arm64 has 6 CPUs to lend, amd64 5
	if arm.String() != "linux/arm64" || amd.String() != "linux/amd64" || o.Architecture != "arm64" || o.Allocatable.Cpu().String() != "6" {
		t.Errorf("%v, %v; the first is told as %s with %s", arm, amd, o.Architecture, o.Allocatable.Cpu())
	}
	gpus := amd.Allocatable[gpu]
	if _, there := arm.Allocatable[gpu]; there || gpus.String() != "2" || arm.Allocatable.Cpu().String() != "6" || amd.Allocatable.Cpu().String() != "5" {
		t.Errorf("arm64 %v, amd64 %v", arm.Allocatable, amd.Allocatable)
	}
	if want := map[string]string{"disk": "ssd"}; !maps.Equal(arm.Labels, want) {
		t.Errorf("labels of arm64 are %v, want those that all of its nodes agree on", arm.Labels)
	}
	if amd.Labels["disk"] != "hdd" {
		t.Errorf("labels of amd64: %v", amd.Labels)
	}
}

func TestAPlatformWhoseNodesAreAway(t *testing.T) {
	nodes := []*corev1.Node{node("n", "2", "2Gi"), node("x", "8", "8Gi", arch("amd64"), notReady), node("y", "8", "8Gi", arch("riscv64"), cordoned)}
	o := Compute(nodes, []*corev1.Pod{pod("x", "1", "1Gi", consumer)}, consumer, nil, Share{})
	if !o.Ready || o.Architecture != "arm64" || len(o.Platforms) != 3 {
		t.Fatalf("%+v", o)
	}
	for _, p := range o.Platforms[1:] {
		want := map[string]string{"amd64": "no node of the provider's platform linux/amd64 is Ready",
			"riscv64": "no node of the provider's platform linux/riscv64 takes pods"}[p.Architecture]
		if p.Ready || p.Reason != want {
			t.Errorf("%s: ready %v, %q, want %q", p, p.Ready, p.Reason, want)
		}
	}
}

func TestSplit(t *testing.T) {
	if got := (Offer{Reason: "silent"}).Split(); len(got) != 0 {
		t.Errorf("an offer of nothing became %v", got)
	}
	old := Offer{Ready: true, OS: "linux", Architecture: "arm64"}
	if got := old.Split(); len(got) != 1 || got[0].Architecture != "arm64" || !got[0].Ready {
		t.Errorf("an offer of one platform became %+v", got)
	}
	o := Compute([]*corev1.Node{node("n", "4", "4Gi"), node("x", "2", "2Gi", arch("amd64")), node("y", "2", "2Gi", arch("riscv64"), notReady)}, nil, consumer, nil, Share{})
	var summary []string
	for _, one := range o.Split() {
		summary = append(summary, fmt.Sprint(one.Platform(), " ", one.Allocatable.Cpu(), " ", one.Ready, len(one.Platforms)))
	}
	if want := []string{"linux/arm64 4 true 0", "linux/amd64 2 true 0", "linux/riscv64 0 false 0"}; !slices.Equal(summary, want) {
		t.Errorf("%q, want %q", summary, want)
	}
	o.Ready, o.Reason = false, "silent" // as for a peer that was heard before
	for _, one := range o.Split() {
		if one.Ready || one.Reason != "silent" {
			t.Errorf("%s is ready (%q), its target is not", one.Platform(), one.Reason)
		}
	}
}

// A consumer that knows of one platform only reads what it always did, and one that
// knows of several reads a provider that does not.
func TestOfferPassesBetweenVersions(t *testing.T) {
	line, err := json.Marshal(Compute([]*corev1.Node{node("n", "4", "4Gi"), node("x", "2", "2Gi", arch("amd64"))}, nil, consumer, nil, Share{}))
	if err != nil {
		t.Fatal(err)
	}
	var old struct {
		Allocatable                   corev1.ResourceList
		Architecture, OS, KubeVersion string
		Ready                         bool
	}
	if err := json.Unmarshal(line, &old); err != nil || !old.Ready || old.Architecture != "arm64" || old.OS != "linux" || old.Allocatable.Cpu().String() != "4" || old.KubeVersion == "" {
		t.Errorf("%v: %+v in %s", err, old, line)
	}
	var o Offer
	if err := json.Unmarshal([]byte(`{"allocatable":{"cpu":"3"},"architecture":"amd64","os":"linux","kubeVersion":"v1","ready":true}`), &o); err != nil {
		t.Fatal(err)
	}
	if got := o.Split(); len(got) != 1 || got[0].Platform().String() != "linux/amd64" || got[0].Allocatable.Cpu().String() != "3" {
		t.Errorf("%+v", got)
	}
}

// Whatever runs where, on whichever platforms: the parts of all consumers on a platform
// are no more than that platform lends, no more pods are lent than the share has, what
// a consumer uses on one platform takes nothing from another (but of the bound on
// pods), and what is asked back is on the platform that has too little.
func TestPlatformProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		archs := []string{"amd64", "arm64", "riscv64"}
		var nodes []*corev1.Node
		for i := range rapid.IntRange(1, 5).Draw(t, "nodes") {
			options := []nodeOption{arch(rapid.SampledFrom(archs).Draw(t, "arch"))}
			if rapid.IntRange(0, 4).Draw(t, "away") == 0 {
				options = append(options, notReady)
			}
			nodes = append(nodes, node(fmt.Sprint("n", i), fmt.Sprint(rapid.IntRange(0, 8).Draw(t, "cpu")), "8Gi", options...))
		}
		consumers := []peer.ID{consumer, "bbbb"}
		var pods []*corev1.Pod
		for i := range rapid.IntRange(0, 12).Draw(t, "pods") {
			p := pod(fmt.Sprint("n", rapid.IntRange(0, 4).Draw(t, "on")), fmt.Sprintf("%dm", rapid.IntRange(0, 3000).Draw(t, "m")), "10Mi",
				rapid.SampledFrom([]peer.ID{"", consumer, "bbbb"}).Draw(t, "whose"))
			if rapid.IntRange(0, 3).Draw(t, "waits") == 0 {
				waits(p, rapid.SampledFrom(archs).Draw(t, "for"))
			}
			p.Namespace, p.Name = "lab", fmt.Sprint("p", i)
			p.CreationTimestamp = metav1.NewTime(time.Unix(int64(i), 0))
			pods = append(pods, p)
		}
		share := Share{CPU: rapid.IntRange(Nothing, 100).Draw(t, "share"), MaxPods: int64(rapid.IntRange(Nothing, 20).Draw(t, "most"))}
		room := Measure(nodes, pods, Shares{Peers: share}, nil)
		if !room.Offer.Ready {
			if len(room.For(consumer, consumers).Platforms) != 0 {
				t.Fatal("nothing runs, and platforms are offered")
			}
			return
		}
		lent := map[Platform]corev1.ResourceList{}
		all := corev1.ResourceList{}
		for _, c := range consumers {
			o := room.For(c, consumers)
			part := corev1.ResourceList{}
			for _, p := range o.Platforms {
				if lent[p.Platform] == nil {
					lent[p.Platform] = corev1.ResourceList{}
				}
				add(lent[p.Platform], p.Allocatable)
				add(part, p.Allocatable)
			}
			add(all, part)
			whole := room.Parts(consumers)[c]
			for name, q := range part {
				if other := whole[name]; q.Cmp(other) != 0 {
					t.Fatalf("%s of %s: platforms together have %s, the quota %s", name, c, q.String(), other.String())
				}
			}
		}
		for _, l := range room.Platforms {
			for name, q := range l.Lent {
				if sum := lent[l.Offer.Platform][name]; sum.Cmp(q) > 0 || q.Sign() < 0 {
					t.Fatalf("%s of %s: %s in parts, %s lent", name, l.Offer.Platform, sum.String(), q.String())
				}
			}
		}
		if n := all[corev1.ResourcePods]; share.MaxPods != 0 && n.Value() > max(share.MaxPods, 0) {
			t.Fatalf("%s pods are lent, the share is %d", n.String(), share.MaxPods)
		}
		o := room.For(consumer, consumers)
		var mine []*corev1.Pod
		for _, p := range pods {
			if _, tenant := p.Labels["rivulet.dev/origin"]; tenant && p.Labels["rivulet.dev/origin"] == string(consumer) {
				mine = append(mine, p)
			}
		}
		for _, p := range room.Surplus(consumer, consumers, func() []*corev1.Pod { return mine }) {
			i := room.index(groupOf(p))
			short := false
			for name, q := range room.Platforms[i].Use[consumer] {
				most, bounded := o.Platforms[i].Allocatable[name]
				short = short || bounded && q.Cmp(most) > 0
			}
			if !short {
				t.Fatalf("%s is asked back, and %s has room", p.Name, o.Platforms[i])
			}
		}
		if share.MaxPods != 0 {
			return
		}
		// Another pod of the other consumer on one platform leaves the others as they were. Pods that may run
		// on any platform, and are on no node that there is, count on the one that lends most.
		more := append(slices.Clone(pods), pod("n0", "1", "1Gi", "bbbb"))
		now := Measure(nodes, more, Shares{Peers: share}, nil).For(consumer, consumers)
		if now.Platforms[0].Platform != o.Platforms[0].Platform {
			return
		}
		for _, p := range now.Platforms {
			if p.Platform == platformOf(nodes[0]) {
				continue
			}
			j := slices.IndexFunc(o.Platforms, func(b PlatformOffer) bool { return b.Platform == p.Platform })
			for name, q := range p.Allocatable {
				if before := o.Platforms[j].Allocatable[name]; before.Cmp(q) != 0 {
					t.Fatalf("%s of %s: was %s, is %s", name, p, before.String(), q.String())
				}
			}
		}
	})
}

func TestCarried(t *testing.T) {
	for key, want := range map[string]bool{
		"disk": true, "example.org/rack": true, "nvidia.com/gpu.product": true, "topology.kubernetes.io/zone": true, "node.kubernetes.io/instance-type": true,
		"feature.node.kubernetes.io/cpu-cpuid.AVX2": true,
		"kubernetes.io/hostname":                    false, "node-role.kubernetes.io/control-plane": false, "k3s.io/hostname": false, "rivulet.dev/virtual-node": false,
		"node.kubernetes.io/exclude-from-external-load-balancers": false, "type": false, "egress.k3s.io/cluster": false,
	} {
		if Copied(key) != want {
			t.Errorf("%s: %v", key, !want)
		}
	}
}
