package offer

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/tools/cache"
	"pgregory.net/rapid"

	"rivulet/fabric/peer"
)

// TestTallyIsWhatCountingWouldSay follows pods that come, change in every way and go, as
// an informer tells of them, and counts them all anew after each.
func TestTallyIsWhatCountingWouldSay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := []*corev1.Node{node("n0", "4", "4Gi"), node("n1", "6", "1Gi", arch("amd64")), node("n2", "8", "8Gi", cordoned)}
		tally, pods, told := NewTally(), map[int]*corev1.Pod{}, 0
		handler := tally.handler(func() { told++ })
		origins := []peer.ID{"", consumer, "bbbb"}
		for range rapid.IntRange(1, 30).Draw(t, "changes") {
			told = 0
			i := rapid.IntRange(0, 5).Draw(t, "pod")
			if before := pods[i]; before != nil && rapid.IntRange(0, 3).Draw(t, "goes") == 0 {
				delete(pods, i)
				var gone any = before
				if rapid.Bool().Draw(t, "unseen") {
					gone = cache.DeletedFinalStateUnknown{Obj: before}
				}
				handler.OnDelete(gone)
			} else {
				p := pod(rapid.SampledFrom([]string{"", "n0", "n1", "n2", "elsewhere"}).Draw(t, "on"), fmt.Sprintf("%dm", rapid.IntRange(0, 2000).Draw(t, "m")),
					fmt.Sprintf("%dMi", rapid.IntRange(0, 900).Draw(t, "Mi")), rapid.SampledFrom(origins).Draw(t, "whose"))
				p.Name = fmt.Sprint("p", i)
				p.Status.Phase = rapid.SampledFrom([]corev1.PodPhase{corev1.PodPending, corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed}).Draw(t, "phase")
				if rapid.Bool().Draw(t, "has to be somewhere") {
					p.Spec.NodeSelector = map[string]string{corev1.LabelArchStable: rapid.SampledFrom([]string{"amd64", "arm64", "riscv64"}).Draw(t, "arch")}
				}
				if rapid.IntRange(0, 3).Draw(t, "extended") == 0 {
					p.Spec.Containers[0].Resources.Requests["example.com/gpu"] = resource.MustParse("1")
				}
				if rapid.Bool().Draw(t, "trimmed") {
					short, _ := trim(p)
					p = short.(*corev1.Pod)
				}
				if pods[i] = p; before == nil {
					handler.OnAdd(p, false)
				} else {
					handler.OnUpdate(before, p)
				}
			}
			if told != 1 {
				t.Fatalf("told of %d changes after one", told)
			}
			share := Share{CPU: rapid.IntRange(Nothing, 100).Draw(t, "share"), MaxPods: int64(rapid.IntRange(Nothing, 4).Draw(t, "most"))}
			all := slices.Collect(maps.Values(pods))
			shares, members := Shares{Peers: share, Hosted: Share{CPU: 50}}, map[peer.ID]Member{origins[len(origins)-1]: {}}
			kept, counted := tally.Measure(nodes, shares, members), Measure(nodes, all, shares, members)
			for _, id := range origins[1:] {
				if a, b := text(t, kept.For(id, nil)), text(t, counted.For(id, nil)); a != b {
					t.Fatalf("the offer to %s is %s, counted anew %s", id, a, b)
				}
				var mine []*corev1.Pod
				for _, p := range all {
					if p.Labels["rivulet.dev/origin"] == string(id) && counts(p) {
						mine = append(mine, p)
					}
				}
				pods := func() []*corev1.Pod { return mine }
				if a, b := kept.Surplus(id, nil, pods), counted.Surplus(id, nil, pods); len(a) != len(b) {
					t.Fatalf("surplus: %d, counted anew %d", len(a), len(b))
				}
			}
		}
		for _, p := range pods {
			tally.change(p, nil)
		}
		if len(tally.sums) > 0 {
			t.Fatalf("no pods, and %d sums", len(tally.sums))
		}
	})
}

func text(t *rapid.T, o Offer) string {
	for _, p := range o.Platforms { // the same amount may be written in several ways
		for name, q := range p.Allocatable {
			p.Allocatable[name] = Quantity(name, Amount(name, q))
		}
	}
	o.Allocatable = nil
	raw, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}
