package networkpolicy

import (
	"slices"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	"pgregory.net/rapid"
)

// One packet is decided as the reference does, on each side, and the policies that are named are those that hold the pod:
// without them the side is open.
func TestDecideMeansWhatPoliciesSay(t *testing.T) {
	passed, dropped := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		d := NewDecider(w)
		packets(w, func(k packet) {
			out, in := d.Decide(Packet{k.src, k.dst, k.proto, k.port})
			if got, want := out.Allowed && in.Allowed, allowed(w, k); got != want {
				t.Fatalf("%+v passes: %v, want %v\n%+v", k, got, want, w)
			}
			for held, side := range map[direction]Side{egress: out, ingress: in} {
				if side.Allowed {
					passed++
					continue
				}
				dropped++
				without := w
				without.Policies = slices.DeleteFunc(slices.Clone(w.Policies), func(p *networkingv1.NetworkPolicy) bool { return slices.Contains(side.Policies, p) })
				out, in := NewDecider(without).Decide(Packet{k.src, k.dst, k.proto, k.port})
				if !(map[direction]Side{egress: out, ingress: in})[held].Allowed {
					t.Fatalf("%+v is dropped without the policies that are named: %v", k, side.Policies)
				}
			}
		})
	})
	if passed == 0 || dropped == 0 {
		t.Errorf("%d passed, %d dropped: the worlds prove nothing", passed, dropped)
	}
}
