package tenancy

import (
	"maps"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"rivulet/fabric/peer"
	"rivulet/offload/offer"
)

// account is one twin's quota in the API server, and its additional demand. Amounts are those of offer.Amount, by
// resource of an offer.
type account struct {
	consumer peer.ID
	// pool is the part that it draws from: the consumer's own, or offer.Pool for all virtual clusters of this device.
	pool peer.ID
	// spec is the requested quota, hard the one that the API server enforces, used what it has counted: no pod is
	// admitted past hard.
	spec, hard, used amounts
	// waits are the requests of pods that controllers could not make, step the smallest of these requests, excess those
	// of pods that are to be handed back.
	waits, step, excess amounts
}

type amounts map[corev1.ResourceName]int64

// member bounds one consumer of a pool: it gets at most most, and the others leave it at least least. The consumers of a
// group get at most its cap together.
type member struct {
	most, least amounts
	groups      map[string]amounts // caps, by group
}

// committed is what may be in use before another quota is in force.
func (a account) committed(name corev1.ResourceName) int64 {
	return max(a.spec[name], a.hard[name], a.used[name])
}

// ration is the second step of the allocation, after offer.Divide and before keepRations. It computes the next quota of
// each twin, so that the twins of a consumer together may use its part, and all consumers together no more than is
// lent. The sum of quotas never exceeds that, whichever of them the API server already enforces. So a quota is lowered
// at once, and raised only by what the others have verifiably given up; it has to be called again then.
//
// Within a part, waiting pods come first; see share for the rest. Quotas stay unchanged where possible, since each
// change is a write.
func ration(lent amounts, parts map[peer.ID]amounts, twins map[string]account, members map[peer.ID]member) map[string]amounts {
	next := map[string]amounts{}
	for name := range twins {
		next[name] = amounts{}
	}
	names := slices.Sorted(maps.Keys(twins))
	for resource := range lent {
		left, peers := lent[resource], int64(0) // of what is lent to all, and to all peers, not committed
		for pool, part := range parts {
			if pool != offer.Pool {
				peers += part[resource]
			}
		}
		for _, t := range twins {
			left -= t.committed(resource)
			if t.pool != offer.Pool {
				peers -= t.committed(resource)
			}
		}
		for _, pool := range slices.Sorted(maps.Keys(parts)) {
			var mine []string
			for _, name := range names {
				if twins[name].pool == pool {
					mine = append(mine, name)
				}
			}
			part := parts[pool][resource]
			groups := groupsOf(resource, mine, twins, members)
			want := share(part, resource, mine, twins, members, groups)
			own := part
			for _, name := range mine {
				own -= twins[name].committed(resource)
			}
			for i, name := range mine {
				t := twins[name]
				if raise := want[i] - t.spec[resource]; raise > 0 {
					// What is committed already can be requested without risk.
					free := t.committed(resource) - t.spec[resource]
					more := min(max(raise-free, 0), max(own, 0), max(left, 0))
					for _, g := range groups {
						if g.has(i) {
							more = min(more, max(g.open, 0))
						}
					}
					if pool != offer.Pool {
						more = min(more, max(peers, 0))
						peers -= more
					}
					for k := range groups {
						if groups[k].has(i) {
							groups[k].open -= more
						}
					}
					own, left = own-more, left-more
					next[name][resource] = t.spec[resource] + min(raise, free) + more
				} else {
					next[name][resource] = want[i]
				}
			}
		}
	}
	return next
}

// share divides a part of one resource among its twins: what each uses, what its waiting pods need, and spare room.
// Room stays where it is as long as every twin has at least a quarter of an equal share. A twin below that gets a
// quarter, first from what is free, then from the twins with the most. So a new twin takes room from one or two others,
// not from all.
func share(part int64, resource corev1.ResourceName, twins []string, all map[string]account, members map[peer.ID]member, groups []bounded) []int64 {
	out, waits, steps := make([]int64, len(twins)), make([]int64, len(twins)), make([]int64, len(twins))
	left := part
	for i, name := range twins {
		t := all[name]
		out[i] = max(t.used[resource]-t.excess[resource], 0)
		waits[i], steps[i] = t.waits[resource], max(t.step[resource], 1)
		left -= out[i]
	}
	if left <= 0 || len(twins) == 0 {
		return out
	}
	limits, kept := bound(resource, left, twins, all, members, out, waits, steps)
	for _, g := range groups {
		open, reserved := g.most, int64(0)
		for _, i := range g.twins {
			open -= out[i]
			reserved += kept[i]
		}
		reserves := reserved <= open // otherwise nobody in it would get anything
		if reserves {
			open -= reserved
		}
		for _, i := range g.twins {
			own := int64(0)
			if reserves {
				own = kept[i]
			}
			if may := max(own+open, 0); waits[i] > may {
				waits[i] = may - may%steps[i]
			}
			open -= max(waits[i]-own, 0)
		}
	}
	for i, granted := range grant(left, waits, steps, kept) {
		out[i] += granted
		left -= granted
		kept[i] = max(kept[i]-granted, 0)
	}
	for _, n := range kept {
		left -= n
	}
	fair, free := left/int64(len(twins)), left
	room := make([]int64, len(twins))
	for i, name := range twins {
		if t := all[name]; t.excess[resource] == 0 {
			room[i] = max(t.spec[resource]-out[i]-kept[i], 0)
		}
		free -= room[i]
	}
	over := -free
	for i, has := range room {
		if has < fair && (has < fair/4 || free > part/8) || len(twins) == 1 {
			over += fair - has
			room[i] = fair
		}
	}
	cut(room, nil, over)
	for _, g := range groups {
		for _, part := range [][]int64{room, kept} { // what is reserved is the last to go
			over := -g.most
			for _, i := range g.twins {
				over += out[i] + kept[i] + room[i]
			}
			cut(part, g.twins, over)
		}
	}
	for _, b := range limits {
		left := b.most
		for _, i := range b.twins {
			room[i] += kept[i]
			kept[i] = 0
			left -= out[i] + room[i]
		}
		cut(room, b.twins, -left)
	}
	for i := range out {
		out[i] += kept[i] + room[i]
	}
	return out
}

// cut lowers rooms by the amount, the largest first: those at the indices, or all.
func cut(room []int64, at []int, over int64) {
	for over > 0 {
		most := -1
		for i := range room {
			if (at == nil || slices.Contains(at, i)) && (most < 0 || room[i] > room[most]) {
				most = i
			}
		}
		if most < 0 || room[most] <= 0 {
			return
		}
		less := min(over, (room[most]+1)/2)
		room[most] -= less
		over -= less
	}
}

// bounded is the bound of a member or a group of a pool, and its twins, by their indices, sorted. Open is what they may
// get in addition to what is committed.
type bounded struct {
	most, open int64
	twins      []int
}

func (b bounded) has(i int) bool {
	_, ok := slices.BinarySearch(b.twins, i)
	return ok
}

// groupsOf are the groups of a pool's twins that have a bound of the resource.
func groupsOf(resource corev1.ResourceName, twins []string, all map[string]account, members map[peer.ID]member) (out []bounded) {
	byName := map[string]*bounded{}
	for i, name := range twins {
		for group, limit := range members[all[name].consumer].groups {
			most, limited := limit[resource]
			if !limited {
				continue
			}
			g := byName[group]
			if g == nil {
				g = &bounded{most: most, open: most}
				byName[group] = g
			}
			g.open += min(most, g.most) - g.most // while a change is applied members differ
			g.most = min(most, g.most)
			g.open -= all[name].committed(resource)
			g.twins = append(g.twins, i)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		out = append(out, *byName[name])
	}
	return out
}

// bound lowers waits to the bounds of members, and computes what is reserved for each twin of the rest: for waiting
// pods, otherwise where there is most room already.
func bound(resource corev1.ResourceName, left int64, twins []string, all map[string]account, members map[peer.ID]member, out, waits, steps []int64) (limits []bounded, kept []int64) {
	kept = make([]int64, len(twins))
	of := map[peer.ID][]int{}
	for i, name := range twins {
		of[all[name].consumer] = append(of[all[name].consumer], i)
	}
	for _, id := range slices.Sorted(maps.Keys(of)) {
		m, mine := members[id], of[id]
		most, limited := m.most[resource]
		if !limited {
			most = math.MaxInt64
		}
		open, keep := most, m.least[resource]
		for _, i := range mine {
			open -= out[i]
			keep -= out[i]
		}
		keep = max(min(keep, open, left), 0)
		left -= keep
		biggest := mine[0]
		for _, i := range mine {
			if waits[i] > open {
				waits[i] = max(open-open%steps[i], 0)
			}
			open -= waits[i]
			kept[i] = min(keep, waits[i])
			keep -= kept[i]
			if all[twins[i]].spec[resource]-out[i] > all[twins[biggest]].spec[resource]-out[biggest] {
				biggest = i
			}
		}
		kept[biggest] += keep
		if limited {
			limits = append(limits, bounded{most: most, twins: mine})
		}
	}
	return limits, kept
}

// grant divides spare among the waiting, in steps, since half of a pod's room is of no use. Of spare, kept is reserved
// for each, whether it waits or not.
func grant(spare int64, waits, steps, kept []int64) []int64 {
	got, more := make([]int64, len(waits)), make([]int64, len(waits))
	pot := spare
	for i := range waits {
		got[i] = min(waits[i], kept[i])
		more[i] = waits[i] - got[i]
		pot -= kept[i]
	}
	left := spare
	for i, n := range offer.Fill(pot, more) {
		got[i] += n
		got[i] -= got[i] % steps[i]
		left -= max(got[i], kept[i])
	}
	for i := range got {
		if next := max(got[i]+steps[i], kept[i]) - max(got[i], kept[i]); next <= left && got[i]+steps[i] <= waits[i] {
			got[i] += steps[i]
			left -= next
		}
	}
	return got
}

func amountsOf(list corev1.ResourceList) amounts {
	out := amounts{}
	for name, q := range list {
		out[name] = offer.Amount(name, q)
	}
	return out
}
