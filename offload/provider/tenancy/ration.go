package tenancy

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"rivulet/fabric/peer"
	"rivulet/offload/offer"
)

// account is what the API server knows of one twin's quota, and what the twin
// could use more of. Amounts are those of offer.Amount, by resource of an offer.
type account struct {
	consumer peer.ID
	// spec is what was asked of the API server, hard what it enforces by now, used
	// what it has counted: no pod is let in past hard.
	spec, hard, used amounts
	// waits is what pods ask for that controllers have not been able to make, step the
	// least that one of them asks for, excess what pods use that are to be handed back.
	waits, step, excess amounts
}

type amounts map[corev1.ResourceName]int64

// committed is what may come to be used before another quota is in force.
func (a account) committed(name corev1.ResourceName) int64 {
	return max(a.spec[name], a.hard[name], a.used[name])
}

// ration is the second step of the split that offer.Divide begins and keepRations puts into
// force. It says what each twin's quota should be next, so that the twins of a
// consumer together may use its part, and all consumers together no more than is
// lent: no sum of quotas is ever more than that, whichever of them the API server
// has put into force already. A quota is therefore lowered at once, and raised only
// by what the others have verifiably given up; call it again when they have.
//
// Within a part, pods that are waiting come first; see share for the rest. Quotas are left
// as they are while they may be: each change is a write.
func ration(lent amounts, parts map[peer.ID]amounts, twins map[string]account) map[string]amounts {
	next := map[string]amounts{}
	for name := range twins {
		next[name] = amounts{}
	}
	names := slices.Sorted(maps.Keys(twins))
	for resource := range lent {
		left := lent[resource] // of what is lent to all, not committed
		for _, t := range twins {
			left -= t.committed(resource)
		}
		for _, consumer := range slices.Sorted(maps.Keys(parts)) {
			var mine []string
			for _, name := range names {
				if twins[name].consumer == consumer {
					mine = append(mine, name)
				}
			}
			part := parts[consumer][resource]
			want := share(part, resource, mine, twins)
			own := part
			for _, name := range mine {
				own -= twins[name].committed(resource)
			}
			for i, name := range mine {
				t := twins[name]
				if raise := want[i] - t.spec[resource]; raise > 0 {
					// What is committed already may be asked for without any risk.
					free := t.committed(resource) - t.spec[resource]
					more := min(max(raise-free, 0), max(own, 0), max(left, 0))
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

// share divides a consumer's part of one resource among its twins: what each uses, what
// its waiting pods need, and room for more. Room stays where it is as long as nobody has
// less than a quarter of an equal share; who has gets one, of what is free, else from those
// with the most. So a twin that is new takes room from one or two others, not from all.
func share(part int64, resource corev1.ResourceName, twins []string, all map[string]account) []int64 {
	out, waits, steps := make([]int64, len(twins)), make([]int64, len(twins)), make([]int64, len(twins))
	left := part
	for i, name := range twins {
		t := all[name]
		out[i] = max(t.used[resource]-t.excess[resource], 0)
		waits[i], steps[i] = t.waits[resource], max(t.step[resource], 1)
		left -= out[i]
	}
	for i, granted := range grant(left, waits, steps) {
		out[i] += granted
		left -= granted
	}
	if left <= 0 || len(twins) == 0 {
		return out
	}
	fair, free := left/int64(len(twins)), left
	room := make([]int64, len(twins))
	for i, name := range twins {
		if t := all[name]; t.excess[resource] == 0 {
			room[i] = max(t.spec[resource]-out[i], 0)
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
	for over > 0 {
		most := 0
		for i := range room {
			if room[i] > room[most] {
				most = i
			}
		}
		cut := min(over, (room[most]+1)/2)
		room[most] -= cut
		over -= cut
	}
	for i := range out {
		out[i] += room[i]
	}
	return out
}

// grant shares what is spare among those who wait, in steps: half of a pod's room
// for each of two is no use to either.
func grant(spare int64, waits, steps []int64) []int64 {
	got := offer.Fill(spare, waits)
	for i := range got {
		got[i] -= got[i] % steps[i]
		spare -= got[i]
	}
	for i := range got {
		if steps[i] <= spare && got[i]+steps[i] <= waits[i] {
			got[i] += steps[i]
			spare -= steps[i]
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
