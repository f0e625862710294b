package tenancy

import (
	"cmp"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"rivulet/fabric/peer"
	"rivulet/offload/offer"
)

// heldBy is the memory of a node that one pod of a consumer uses, and its request, in bytes.
type heldBy struct {
	consumer        peer.ID
	node            string
	uid             types.UID
	held, requested int64
}

func (p heldBy) over() int64 { return p.held - p.requested }

// overusers chooses the pods to evict, so that the owner has the memory that is not lent. parts is what each consumer
// may use, short what a node lacks of its reserve.
//
// A consumer may use its part, or the requests of its pods if these are more. A peer may also use what other peers
// leave of their parts; virtual clusters and peers have separate shares. When all peers together, or all virtual
// clusters, use more than their share, pods of those above their bound are evicted; when a node is short, then its pods
// of any consumer. The next one is always the pod furthest above its request; no more are evicted than needed, and
// never one within its request, which a quota has admitted.
func overusers(pods []heldBy, parts map[peer.ID]int64, short map[string]int64) (out []heldBy) {
	held, asked := map[peer.ID]int64{}, map[peer.ID]int64{}
	excess := map[bool]int64{} // of the virtual clusters, of peers
	for _, p := range pods {
		held[p.consumer] += p.held
		asked[p.consumer] += p.requested
		excess[p.consumer == offer.Pool] += p.held
	}
	bound := map[peer.ID]int64{}
	for id, part := range parts {
		bound[id] = part
	}
	for id, sum := range asked {
		bound[id] = max(bound[id], sum)
	}
	for id, b := range bound {
		excess[id == offer.Pool] -= b
	}
	left := slices.DeleteFunc(slices.Clone(pods), func(p heldBy) bool { return p.over() <= 0 })
	slices.SortFunc(left, func(a, b heldBy) int { return cmp.Or(cmp.Compare(b.over(), a.over()), cmp.Compare(a.uid, b.uid)) })
	beyond := func(p heldBy) bool { return held[p.consumer] > bound[p.consumer] }
	short = maps.Clone(short)
	for len(left) > 0 {
		i := slices.IndexFunc(left, func(p heldBy) bool { return beyond(p) && excess[p.consumer == offer.Pool] > 0 })
		if i < 0 {
			i = slices.IndexFunc(left, func(p heldBy) bool { return beyond(p) && short[p.node] > 0 })
		}
		if i < 0 {
			i = slices.IndexFunc(left, func(p heldBy) bool { return short[p.node] > 0 })
		}
		if i < 0 {
			break
		}
		p := left[i]
		left = slices.Delete(left, i, i+1)
		out = append(out, p)
		held[p.consumer] -= p.held
		excess[p.consumer == offer.Pool] -= p.held
		short[p.node] -= p.held
	}
	return out
}
