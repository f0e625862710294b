package tenancy

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"pgregory.net/rapid"

	"rivulet/fabric/peer"
	"rivulet/offload/offer"
)

// Whatever pods hold: afterwards the owner has what is not lent, nobody leaves for nothing,
// and who keeps to what it asked for stays.
func TestOverusers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		consumers, nodes := []peer.ID{alice, bob, offer.Pool}, []string{"server", "worker"}
		parts, bound := map[peer.ID]int64{}, map[peer.ID]int64{}
		lent := map[bool]int64{} // to the virtual clusters, to peers
		for _, id := range consumers {
			parts[id] = rapid.Int64Range(0, 100).Draw(t, "part")
			bound[id] = parts[id]
		}
		var pods []heldBy
		asked := map[peer.ID]int64{}
		for i := range rapid.IntRange(0, 8).Draw(t, "pods") {
			p := heldBy{consumer: rapid.SampledFrom(consumers).Draw(t, "whose"), node: rapid.SampledFrom(nodes).Draw(t, "node"), uid: types.UID(fmt.Sprint(i)),
				held: rapid.Int64Range(0, 100).Draw(t, "held"), requested: rapid.Int64Range(0, 60).Draw(t, "asked")}
			pods = append(pods, p)
			asked[p.consumer] += p.requested
		}
		for _, id := range consumers {
			bound[id] = max(bound[id], asked[id])
			lent[id == offer.Pool] += bound[id]
		}
		short := map[string]int64{}
		for _, node := range nodes {
			short[node] = rapid.Int64Range(-100, 300).Draw(t, "short")
		}
		sum := func(pods []heldBy, whose ...peer.ID) (n int64) {
			for _, p := range pods {
				if len(whose) == 0 || p.consumer == whose[0] {
					n += p.held
				}
			}
			return n
		}
		before, lacked := slices.Clone(pods), maps.Clone(short)
		out := overusers(pods, parts, short)
		if !slices.Equal(before, pods) || !maps.Equal(short, lacked) {
			t.Fatal("what is known was changed")
		}
		rest := slices.DeleteFunc(slices.Clone(pods), func(p heldBy) bool { return slices.Contains(out, p) })
		if len(rest)+len(out) != len(pods) {
			t.Fatalf("%v are picked of %v", out, pods)
		}
		of := func(pods []heldBy, pool bool) []heldBy {
			return slices.DeleteFunc(slices.Clone(pods), func(p heldBy) bool { return (p.consumer == offer.Pool) != pool })
		}
		for _, pool := range []bool{true, false} {
			if held := sum(of(rest, pool)); held > lent[pool] {
				t.Fatalf("%d are held afterwards, %d are lent (virtual clusters: %v): %v leave of %v", held, lent[pool], pool, out, pods)
			}
		}
		on := func(pods []heldBy, node string) []heldBy {
			return slices.DeleteFunc(slices.Clone(pods), func(p heldBy) bool { return p.node != node })
		}
		for _, node := range nodes {
			if sum(on(out, node)) < short[node] {
				for _, p := range on(rest, node) {
					if p.over() > 0 {
						t.Fatalf("%s lacks %d, %v leave, and %v stays", node, short[node], out, p)
					}
				}
			}
		}
		for i, p := range out {
			if p.over() <= 0 {
				t.Fatalf("%v keeps to what it asked for", p)
			}
			// Before this one left there was a reason, and nobody went further.
			stayed := slices.DeleteFunc(slices.Clone(pods), func(q heldBy) bool { return slices.Contains(out[:i], q) })
			lacks := short[p.node] - sum(on(out[:i], p.node))
			if pool := p.consumer == offer.Pool; sum(of(stayed, pool)) <= lent[pool] && lacks <= 0 {
				t.Fatalf("%v leaves for nothing: %v of %v", p, out, pods)
			}
			beyond := func(id peer.ID) bool { return sum(stayed, id) > bound[id] }
			if !beyond(p.consumer) && (lacks <= 0 || slices.ContainsFunc(consumers, func(id peer.ID) bool {
				return beyond(id) && slices.ContainsFunc(on(stayed, p.node), func(q heldBy) bool { return q.consumer == id && q.over() > 0 })
			})) {
				t.Fatalf("%v leaves, whose consumer keeps to its part: %v of %v", p, out, pods)
			}
			for _, q := range on(stayed, p.node) {
				if q.consumer == p.consumer && q.over() > p.over() {
					t.Fatalf("%v leaves before %v", p, q)
				}
			}
		}
	})
}

func TestWhoLeavesFirst(t *testing.T) {
	pod := func(id peer.ID, uid types.UID, held, asked int64) heldBy { return heldBy{id, "", uid, held, asked} }
	pods := []heldBy{pod(alice, "a1", 40, 10), pod(alice, "a2", 50, 45), pod(bob, "b1", 30, 0), pod(bob, "b2", 5, 5)}
	for name, tc := range map[string]struct {
		parts map[peer.ID]int64
		short int64
		want  []types.UID
	}{
		"room for all":                              {map[peer.ID]int64{alice: 60, bob: 65}, 0, nil},
		"one beyond its part, others leave room":    {map[peer.ID]int64{alice: 30, bob: 100}, -1, nil},
		"more than is lent":                         {map[peer.ID]int64{alice: 60, bob: 40}, 0, []types.UID{"a1"}},
		"what virtual clusters leave is not peers'": {map[peer.ID]int64{alice: 60, bob: 40, offer.Pool: 100}, 0, []types.UID{"a1"}},
		"the node is short":                         {map[peer.ID]int64{alice: 100, bob: 100}, 1, []types.UID{"a1"}},
		"those beyond their part first":             {map[peer.ID]int64{alice: 100, bob: 20}, 20, []types.UID{"b1"}},
		"very short":                                {map[peer.ID]int64{alice: 100, bob: 100}, 1000, []types.UID{"a1", "b1", "a2"}},
		"nothing is known of parts":                 {nil, 0, []types.UID{"a1", "b1"}},
	} {
		var got []types.UID
		for _, p := range overusers(pods, tc.parts, map[string]int64{"": tc.short}) {
			got = append(got, p.uid)
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

// A pod that leaves for its memory has the reason in its status before it goes: a Job there, a successor and home take it from that.
func TestAPodThatLeavesForItsMemoryTellsWhy(t *testing.T) {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "lab-a", Name: "web", UID: "u1"}}
	client := fake.NewClientset(p)
	var order []string
	client.PrependReactor("*", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		order = append(order, a.GetVerb()+" "+a.GetSubresource())
		if patch, ok := a.(clienttesting.PatchAction); ok {
			order = append(order, string(patch.GetPatch()))
			return true, p, nil
		}
		return false, nil, nil
	})
	ten := &Tenancy{Config: Config{Log: slog.New(slog.DiscardHandler)}, client: client}
	if err := ten.evictForMemory(t.Context(), p, heldBy{consumer: alice, uid: "u1", held: 64 << 20, requested: 16 << 20}, false); err != nil {
		t.Fatal(err)
	}
	if len(order) != 3 || order[0] != "patch status" || order[2] != "delete " || !strings.Contains(order[1], "DisruptionTarget") || !strings.Contains(order[1], "held 64 MiB of memory and asked for 16") {
		t.Errorf("%q", order)
	}
}
