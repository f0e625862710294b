package offer

import (
	"slices"
	"testing"

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
	guest := pod("n", "1", "1Gi", "bbbb")
	guest.Spec.Containers[0].Resources.Requests[gpu] = resource.MustParse("2")
	got = Compute([]*corev1.Node{n}, []*corev1.Pod{own, guest}, consumer, nil, Share{}).Allocatable
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

// A limit holds for all platforms together.
func TestALimitIsOfAllPlatforms(t *testing.T) {
	cpu := func(n string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(n)}
	}
	room := Room{Offer: Offer{Ready: true}, Most: map[peer.ID]corev1.ResourceList{"alice": cpu("3")},
		Platforms: []Lending{{Lent: cpu("2"), Use: map[peer.ID]corev1.ResourceList{}}, {Lent: cpu("2"), Use: map[peer.ID]corev1.ResourceList{}}}}
	alone := room.Parts([]peer.ID{"alice"})["alice"]
	if alone.Cpu().String() != "3" {
		t.Errorf("%s, want 3", alone.Cpu())
	}
	both := room.Parts([]peer.ID{"alice", "bob"})
	if a, b := both["alice"][corev1.ResourceCPU], both["bob"][corev1.ResourceCPU]; a.Cmp(resource.MustParse("3")) > 0 || a.MilliValue()+b.MilliValue() != 4000 {
		t.Errorf("%v", both)
	}
	offered := corev1.ResourceList{}
	for _, p := range room.For("alice", nil).Platforms {
		add(offered, p.Allocatable)
	}
	if offered.Cpu().String() != "3" {
		t.Errorf("%s is offered", offered.Cpu())
	}
}
