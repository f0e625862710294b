package offer

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"

	"rivulet/fabric/peer"
)

// Whoever uses what: the parts together are what is lent, to the last piece;
// who uses less than an equal part may keep it and grow; nobody is starved; who
// uses more gets no less than who uses less.
func TestDivideProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lent := rapid.Int64Range(-5, 1<<40).Draw(t, "lent")
		used := rapid.SliceOfN(rapid.Int64Range(0, 1<<40), 1, 12).Draw(t, "used")
		parts := divideUpTo(lent, used, nil)
		lent = max(lent, 0)
		n, sum := int64(len(used)), int64(0)
		for i, p := range parts {
			sum += p
			if p < 0 {
				t.Fatalf("part %d is %d", i, p)
			}
			if p < min(used[i], lent/n) {
				t.Errorf("%d uses %d, no more than an equal part of %d, and has to give back down to %d", i, used[i], lent/n, p)
			}
			if p < lent/(2*n) || lent >= n && p == 0 {
				t.Errorf("%d is starved: %d of %d", i, p, lent)
			}
			for j := range parts {
				if used[i] > used[j] && parts[i] < parts[j] {
					t.Errorf("%d uses more than %d and gets less: %v", i, j, parts)
				}
			}
		}
		if sum != lent {
			t.Errorf("parts %v are %d of %d", parts, sum, lent)
		}
	})
}

// Two who both want all they can get end with the same, wherever they began.
func TestDivisionSettles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lent := rapid.Int64Range(100, 1<<40).Draw(t, "lent")
		used := rapid.SliceOfN(rapid.Int64Range(0, lent), 2, 6).Draw(t, "used")
		for range 100 { // each uses all it may, and gives back what it may not
			used = divide(lent, used)
		}
		if most, least := slices.Max(used), slices.Min(used); most-least > int64(len(used)) {
			t.Errorf("settled at %v of %d", used, lent)
		}
	})
}

func TestFill(t *testing.T) {
	for _, c := range []struct {
		have int64
		want []int64
		got  []int64
	}{
		{10, []int64{1, 2, 3}, []int64{1, 2, 3}},
		{10, []int64{1, 20, 30}, []int64{1, 4, 5}},
		{0, []int64{1, 2}, []int64{0, 0}},
		{-3, []int64{1, -2}, []int64{0, 0}},
	} {
		if got := Fill(c.have, c.want); !slices.Equal(got, c.got) {
			t.Errorf("Fill(%d, %v) = %v, want %v", c.have, c.want, got, c.got)
		}
	}
}

// Extended resources are lent, divided in whole pieces, and asked for by pods.
func TestExtendedResources(t *testing.T) {
	const gpu = corev1.ResourceName("nvidia.com/gpu")
	n := node("n", "4", "4Gi")
	n.Status.Allocatable[gpu] = resource.MustParse("3")
	n.Status.Allocatable["hugepages-2Mi"] = resource.MustParse("1Gi")
	n.Status.Allocatable["attachable.kubernetes.io/x"] = resource.MustParse("9")
	own := pod("n", "1", "1Gi", "")
	own.Spec.Containers[0].Resources.Requests[gpu] = resource.MustParse("1")
	got := Compute([]*corev1.Node{n}, []*corev1.Pod{own}, consumer, nil, Share{}).Allocatable
	if left := got[gpu]; left.Value() != 2 || len(got) != 4 {
		t.Errorf("%v, want two GPUs, CPU, memory and pods", got)
	}
	tenant := pod("n", "1", "1Gi", "bbbb")
	tenant.Spec.Containers[0].Resources.Requests[gpu] = resource.MustParse("2")
	got = Compute([]*corev1.Node{n}, []*corev1.Pod{own, tenant}, consumer, nil, Share{}).Allocatable
	if left := got[gpu]; left.Value() != 1 {
		t.Errorf("%v GPUs, want one: an equal part", left.Value())
	}
	if none := Compute([]*corev1.Node{n}, nil, consumer, nil, Share{CPU: Nothing}).Allocatable[gpu]; !none.IsZero() {
		t.Errorf("nothing is lent, but %s GPUs", none.String())
	}
}

// With limits: nobody gets more than its own, nothing is left while somebody without one could
// have it, and who is not limited and uses no more than an equal part has to give nothing back.
func TestDivideUpToLimits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lent := rapid.Int64Range(0, 1<<40).Draw(t, "lent")
		used := rapid.SliceOfN(rapid.Int64Range(0, 1<<40), 1, 8).Draw(t, "used")
		limits := map[int]int64{}
		for i := range used {
			if rapid.Bool().Draw(t, "limited") {
				limits[i] = rapid.Int64Range(0, 1<<40).Draw(t, "limit")
			}
		}
		parts, equal := divideUpTo(lent, used, limits), lent/int64(len(used))
		sum, all := int64(0), true
		for i, p := range parts {
			sum += p
			limit, limited := limits[i]
			if p < 0 || limited && p > limit {
				t.Fatalf("%d gets %d of %d", i, p, limit)
			}
			all = all && limited && p == limit
			if !limited && p < min(equal, used[i]) {
				t.Fatalf("%d uses %d, no more than an equal part of %d, and gets %d", i, used[i], equal, p)
			}
		}
		if sum > lent || sum < lent && !all {
			t.Fatalf("%d of %d is given: %v, limits %v", sum, lent, parts, limits)
		}
	})
}

// Virtual clusters draw from one part: each is offered all that it may use, and peers get what is left.
func TestVirtualClustersDrawFromOnePool(t *testing.T) {
	one := []*corev1.Node{node("n", "4", "4Gi")}
	members := map[peer.ID]Member{}
	for i := range 31 {
		members[peer.ID(fmt.Sprint("student", i))] = Member{}
	}
	members["student1"] = Member{Most: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1500m"), corev1.ResourceStorage: resource.MustParse("1Gi")}}
	known := slices.AppendSeq([]peer.ID{"neighbour"}, maps.Keys(members))
	cpu := func(list corev1.ResourceList) string { return list.Cpu().String() }
	for _, c := range []struct {
		name          string
		pods          []*corev1.Pod
		shares        Shares
		offered, pool string // to one without a quota; of all together
		neighbour     string
	}{
		{"nobody uses anything", nil, Shares{}, "4", "2", "2"},
		{"one uses most", []*corev1.Pod{pod("n", "3", "1Gi", "student0")}, Shares{}, "4", "3", "1"},
		{"they use all", []*corev1.Pod{pod("n", "3", "1Gi", "student0"), pod("n", "1", "1Gi", "student2")}, Shares{}, "4", "4", "0"},
		{"a peer uses all", []*corev1.Pod{pod("n", "4", "1Gi", "neighbour")}, Shares{}, "4", "1", "3"},
		{"within their share", []*corev1.Pod{pod("n", "2", "1Gi", "student0")}, Shares{Hosted: Share{CPU: 50}}, "2", "2", "2"},
		{"within the share of peers", nil, Shares{Peers: Share{CPU: 25}}, "4", "3", "1"},
		{"nothing for peers", nil, Shares{Peers: Share{CPU: Nothing}}, "4", "4", "0"},
		{"nothing for virtual clusters", nil, Shares{Hosted: Share{CPU: Nothing}}, "0", "0", "4"},
	} {
		room := Measure(one, c.pods, c.shares, members)
		parts := room.Parts(known)
		if got := [3]string{cpu(room.For("student0", known).Allocatable), cpu(parts[Pool]), cpu(parts["neighbour"])}; got != [3]string{c.offered, c.pool, c.neighbour} {
			t.Errorf("%s: %v, want %s offered, %s for all, %s for the neighbour", c.name, got, c.offered, c.pool, c.neighbour)
		}
		if len(parts) != 2 {
			t.Errorf("%s: %d parts", c.name, len(parts))
		}
		for _, id := range []peer.ID{Pool, "student0"} {
			if over := room.Surplus(id, known, func() []*corev1.Pod { return c.pods }); len(over) > 0 {
				t.Errorf("%s: %s has to hand back %d pods", c.name, id, len(over))
			}
		}
	}
	// What control planes take is not lent to peers, and no less of it to pods of virtual clusters.
	planes := map[peer.ID]Member{"student0": {Plane: 1 << 30}, "student1": {Plane: 1 << 30}}
	here := one[0].DeepCopy()
	here.Status.NodeInfo.Architecture = runtime.GOARCH
	for shares, want := range map[Shares]int64{{}: here.Status.Allocatable.Memory().Value() - 2<<30, {Peers: Share{Memory: 25}}: here.Status.Allocatable.Memory().Value() / 4} {
		room := Measure([]*corev1.Node{here}, nil, shares, planes)
		if l := room.Platforms[0]; l.Peers.Memory().Value() != want || l.Hosted.Memory().Value() != here.Status.Allocatable.Memory().Value() {
			t.Errorf("%+v: peers may have %s of memory, want %d, virtual clusters %s", shares, l.Peers.Memory(), want, l.Hosted.Memory())
		}
	}
	if got := cpu(Measure(one, nil, Shares{}, members).For("student1", known).Allocatable); got != "1500m" {
		t.Errorf("%s is offered to one with a quota", got)
	}
	late := pod("n", "1", "1Gi", "student2")
	late.CreationTimestamp.Time = time.Unix(9, 0)
	pods := []*corev1.Pod{pod("n", "3", "1Gi", "student0"), late}
	lowered := Measure(one, pods, Shares{Hosted: Share{CPU: 75}}, members).Surplus(Pool, known, func() []*corev1.Pod { return pods })
	if len(lowered) != 1 || lowered[0] != late {
		t.Errorf("%v: the newest pod of all goes when their share is lowered", lowered)
	}
}

// A peer with virtual clusters here gets no more than one without: they use its part, and hand back of it together.
func TestVirtualClustersOfAPeerUseItsPart(t *testing.T) {
	one := []*corev1.Node{node("n", "4", "4Gi")}
	known := []peer.ID{"far1", "far2", "host", "neighbour"}
	pods := []*corev1.Pod{pod("n", "1", "1Gi", "far1"), pod("n", "1", "1Gi", "far2"), pod("n", "1", "1Gi", "host"), pod("n", "1", "1Gi", "neighbour")}
	room := Measure(one, pods, Shares{}, nil)
	room.HostOf = func(id peer.ID) peer.ID {
		if id == "far1" || id == "far2" {
			return "host"
		}
		return ""
	}
	parts := room.Parts(known)
	host, neighbour := parts["host"], parts["neighbour"]
	if len(parts) != 2 || host.Cpu().String() != "2" || neighbour.Cpu().String() != "2" {
		t.Errorf("%v", parts)
	}
	for _, id := range known[:3] {
		if got := room.For(id, known).Allocatable; got.Cpu().String() != "2" {
			t.Errorf("%s is offered %s", id, got.Cpu())
		}
	}
	full := append(pods[3:], pod("n", "1", "1Gi", "neighbour"), pod("n", "3", "1Gi", "far1"))
	of := room.HostOf
	room = Measure(one, full, Shares{}, nil)
	room.HostOf = of
	if over := room.Surplus("host", known, func() []*corev1.Pod { return full[2:] }); len(over) != 1 {
		t.Errorf("%d pods of a virtual cluster are handed back for its host's part", len(over))
	}
}

// Whoever uses what: what peers and virtual clusters get is no more than is lent, neither gets more than its share, and
// virtual clusters keep what they use within theirs.
func TestPoolAndPeers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		members := map[peer.ID]Member{"s0": {}, "s1": {}}
		var pods []*corev1.Pod
		for range rapid.IntRange(0, 8).Draw(t, "pods") {
			pods = append(pods, pod("n", fmt.Sprintf("%dm", rapid.IntRange(0, 2000).Draw(t, "m")), "10Mi", rapid.SampledFrom([]peer.ID{"", "s0", "s1", "p0", "p1"}).Draw(t, "whose")))
		}
		share := func(name string) Share {
			return Share{CPU: rapid.IntRange(Nothing, 100).Draw(t, name), MaxPods: int64(rapid.IntRange(Nothing, 8).Draw(t, name+" pods"))}
		}
		room := Measure([]*corev1.Node{node("n", "4", "4Gi")}, pods, Shares{share("peers"), share("hosted")}, members)
		parts, l := room.Parts([]peer.ID{"s0", "p0"}), room.Platforms[0]
		peers, used := corev1.ResourceList{}, corev1.ResourceList{}
		for id, part := range parts {
			if id != Pool {
				add(peers, part)
			}
		}
		add(used, l.Use["s0"])
		add(used, l.Use["s1"])
		for name := range l.Lent {
			lent, p, h, mine := Amount(name, l.Lent[name]), Amount(name, peers[name]), Amount(name, parts[Pool][name]), Amount(name, used[name])
			if p < 0 || h < 0 || p+h > lent || p > Amount(name, l.Peers[name]) || h > Amount(name, l.Hosted[name]) {
				t.Fatalf("%s: peers %d, virtual clusters %d of %d, %+v", name, p, h, lent, l)
			}
			if h < min(mine, Amount(name, l.Hosted[name])) {
				t.Fatalf("%s: virtual clusters use %d and have %d: %+v", name, mine, h, l)
			}
		}
	})
}

// A quota holds for all platforms together.
func TestAQuotaIsOfAllPlatforms(t *testing.T) {
	cpu := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("3")}
	room := Measure([]*corev1.Node{node("n", "2", "4Gi"), node("m", "2", "4Gi", arch("amd64"))}, nil, Shares{}, map[peer.ID]Member{"alice": {Most: cpu}})
	offered := corev1.ResourceList{}
	for _, p := range room.For("alice", nil).Platforms {
		add(offered, p.Allocatable)
	}
	if offered.Cpu().String() != "3" {
		t.Errorf("%s is offered", offered.Cpu())
	}
}
