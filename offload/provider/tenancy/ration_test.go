package tenancy

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"

	"rivulet/fabric/peer"
)

const cpu = corev1.ResourceCPU

// A model of an API server: quotas come into force one by one, late, in any
// order; pods are let in past no quota that is in force; what is lent changes.
// Never may more be let in than what is lent at the time, never may a consumer
// get past its part, and in the end those who wait get what is free.
func TestRationsNeverSumUpToMore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		consumers := []peer.ID{alice, bob}
		twins := map[string]account{}
		for i := range rapid.IntRange(1, 5).Draw(t, "twins") {
			twins[fmt.Sprint("t", i)] = account{consumer: consumers[i%2], pool: consumers[i%2], spec: amounts{cpu: 0}, hard: amounts{cpu: 0}, used: amounts{cpu: 0}, waits: amounts{}, excess: amounts{}}
		}
		lent := rapid.Int64Range(0, 1000).Draw(t, "lent")
		parts := map[peer.ID]amounts{alice: {cpu: lent / 2}, bob: {cpu: lent - lent/2}}
		write := func() {
			for name, want := range ration(amounts{cpu: lent}, parts, twins, nil) {
				a := twins[name]
				a.spec = want
				if want[cpu] < 0 {
					t.Fatalf("%s is given %d", name, want[cpu])
				}
				twins[name] = a
			}
		}
		sum := func(of func(account) int64, whose ...peer.ID) (total int64) {
			for _, a := range twins {
				if len(whose) == 0 || a.consumer == whose[0] {
					total += of(a)
				}
			}
			return total
		}
		used := func(a account) int64 { return a.used[cpu] }
		inForce := func(a account) int64 { return max(a.hard[cpu], a.used[cpu]) }
		for step := range rapid.IntRange(1, 40).Draw(t, "steps") {
			name := fmt.Sprint("t", rapid.IntRange(0, len(twins)-1).Draw(t, "which"))
			a := twins[name]
			switch rapid.SampledFrom([]string{"write", "force", "use", "end", "wait", "part"}).Draw(t, "what") {
			case "write":
				write()
			case "force":
				a.hard = amounts{cpu: a.spec[cpu]}
				twins[name] = a
			case "use":
				if room := a.hard[cpu] - a.used[cpu]; room > 0 {
					a.used = amounts{cpu: a.used[cpu] + rapid.Int64Range(0, room).Draw(t, "more")}
					twins[name] = a
				}
			case "end":
				a.used = amounts{cpu: rapid.Int64Range(0, a.used[cpu]).Draw(t, "left")}
				twins[name] = a
			case "wait":
				a.waits = amounts{cpu: rapid.Int64Range(0, 500).Draw(t, "wait")}
				twins[name] = a
			case "part": // moves between the consumers; what is lent stays
				parts[alice] = amounts{cpu: rapid.Int64Range(0, lent).Draw(t, "part")}
				parts[bob] = amounts{cpu: lent - parts[alice][cpu]}
			}
			if s := sum(inForce); s > lent {
				t.Fatalf("step %d: quotas of %d are in force, %d is lent: %+v", step, s, lent, twins)
			}
		}
		// Left alone, it settles.
		for range 10 {
			write()
			for name, a := range twins {
				a.hard = amounts{cpu: a.spec[cpu]}
				twins[name] = a
			}
		}
		for _, c := range consumers {
			over := sum(used, c) - parts[c][cpu]
			if over <= 0 && sum(inForce, c) > parts[c][cpu] {
				t.Fatalf("%s may use %d of %d", c, sum(inForce, c), parts[c][cpu])
			}
		}
		if sum(used, alice) > parts[alice][cpu] || sum(used, bob) > parts[bob][cpu] {
			return // somebody has to hand back first
		}
		for name, a := range twins {
			spare := parts[a.consumer][cpu] - sum(used, a.consumer)
			waiting := sum(func(o account) int64 { return o.waits[cpu] }, a.consumer)
			if waiting <= spare && a.hard[cpu] < a.used[cpu]+a.waits[cpu] {
				t.Fatalf("%s waits for %d beside %d, %d is free, and it is held at %d: %+v", name, a.waits[cpu], a.used[cpu], spare, a.hard[cpu], twins)
			}
		}
	})
}

// The same of virtual clusters, which draw from one part: none gets past its quota, what is kept for one the others leave,
// no group gets past its cap, and whoever waits gets what is free, first come, first served.
func TestAPoolIsDrawnFromFirstComeFirstServed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const pool = peer.ID("pool")
		n := rapid.IntRange(1, 6).Draw(t, "students")
		part := rapid.Int64Range(0, 1000).Draw(t, "part")
		members, twins := map[peer.ID]member{}, map[string]account{}
		ids := make([]peer.ID, n)
		caps := map[string]int64{}
		for i := range rapid.IntRange(0, 3).Draw(t, "groups") {
			caps[fmt.Sprint("g", i)] = rapid.Int64Range(0, 1000).Draw(t, "cap")
		}
		for i := range ids {
			ids[i] = peer.ID(fmt.Sprint("s", i))
			m := member{most: amounts{}, least: amounts{cpu: rapid.Int64Range(0, part/int64(n)).Draw(t, "least")}}
			if rapid.Bool().Draw(t, "quota") {
				m.most[cpu] = rapid.Int64Range(m.least[cpu], 1000).Draw(t, "most")
			}
			m.groups = map[string]amounts{}
			for _, g := range slices.Sorted(maps.Keys(caps)) {
				if rapid.Bool().Draw(t, "in "+g) {
					m.groups[g] = amounts{cpu: caps[g]}
				}
			}
			members[ids[i]] = m
			for k := range rapid.IntRange(1, 3).Draw(t, "twins") {
				twins[fmt.Sprint(ids[i], "-", k)] = account{consumer: ids[i], pool: pool, spec: amounts{cpu: 0}, hard: amounts{cpu: 0}, used: amounts{cpu: 0}, waits: amounts{}, step: amounts{}, excess: amounts{}}
			}
		}
		names := slices.Sorted(maps.Keys(twins))
		write := func() {
			for name, want := range ration(amounts{cpu: part}, map[peer.ID]amounts{pool: {cpu: part}}, twins, members) {
				a := twins[name]
				a.spec = want
				twins[name] = a
			}
		}
		force := func(name string) {
			a := twins[name]
			a.hard = amounts{cpu: a.spec[cpu]}
			twins[name] = a
		}
		sum := func(of func(account) int64, whose peer.ID) (total int64) {
			for _, a := range twins {
				if whose == "" || a.consumer == whose {
					total += of(a)
				}
			}
			return total
		}
		used := func(a account) int64 { return a.used[cpu] }
		inForce := func(a account) int64 { return max(a.hard[cpu], a.used[cpu]) }
		asked := func(a account) int64 { return a.spec[cpu] }
		within := func(g string, of func(account) int64) (total int64) {
			for _, a := range twins {
				if members[a.consumer].groups[g] != nil {
					total += of(a)
				}
			}
			return total
		}
		settle := func() {
			for range 20 {
				write()
				for _, name := range names {
					force(name)
				}
			}
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			name := rapid.SampledFrom(names).Draw(t, "which")
			a := twins[name]
			switch rapid.SampledFrom([]string{"write", "force", "use", "end", "wait"}).Draw(t, "what") {
			case "write":
				write()
			case "force":
				force(name)
			case "use":
				if room := a.hard[cpu] - a.used[cpu]; room > 0 {
					a.used = amounts{cpu: a.used[cpu] + rapid.Int64Range(0, room).Draw(t, "more")}
				}
				twins[name] = a
			case "end":
				a.used = amounts{cpu: rapid.Int64Range(0, a.used[cpu]).Draw(t, "left")}
				twins[name] = a
			case "wait":
				one := rapid.Int64Range(1, 300).Draw(t, "one")
				a.waits, a.step = amounts{cpu: one * rapid.Int64Range(0, 3).Draw(t, "pods")}, amounts{cpu: one}
				twins[name] = a
			}
			if s := sum(inForce, ""); s > part {
				t.Fatalf("quotas of %d are in force, the part is %d: %+v", s, part, twins)
			}
			for g, most := range caps {
				if s := within(g, inForce); s > most {
					t.Fatalf("quotas of %d are in force in %s, its cap is %d: %+v %+v", s, g, most, twins, members)
				}
			}
		}
		settle()
		free := part - sum(used, "")
		for _, id := range ids {
			m := members[id]
			if most, limited := m.most[cpu]; limited && sum(asked, id) > max(most, sum(used, id)) {
				t.Fatalf("%s may use %d, its quota is %d: %+v", id, sum(asked, id), most, twins)
			}
			if kept := min(m.least[cpu], sum(used, id)+free); sum(asked, id) < kept && sum(used, "") <= part {
				others := int64(0)
				for _, other := range ids {
					others += max(m.least[cpu], sum(used, other))
				}
				capped := false
				for g, most := range caps {
					total := int64(0)
					for _, other := range ids {
						if members[other].groups[g] != nil {
							total += max(members[other].least[cpu], sum(used, other))
						}
					}
					capped = capped || members[id].groups[g] != nil && total > most
				}
				if others <= part && !capped { // what is kept for all of them is there
					t.Fatalf("%s is left with %d of the %d that are kept for it: %+v", id, sum(asked, id), kept, twins)
				}
			}
		}
		// One pod that is alone to wait, and fits beside what is kept for the others and within the quota, gets its room.
		for _, name := range names {
			a := twins[name]
			a.waits, a.step = amounts{}, amounts{}
			twins[name] = a
		}
		name := rapid.SampledFrom(names).Draw(t, "the last")
		a := twins[name]
		open := free
		for _, id := range ids {
			if id != a.consumer {
				open -= max(members[id].least[cpu]-sum(used, id), 0)
			}
		}
		if most, limited := members[a.consumer].most[cpu]; limited {
			open = min(open, most-sum(used, a.consumer))
		}
		for g := range members[a.consumer].groups {
			least := within(g, used)
			for _, id := range ids {
				if id != a.consumer && members[id].groups[g] != nil {
					least += max(members[id].least[cpu]-sum(used, id), 0)
				}
			}
			open = min(open, caps[g]-least)
		}
		if open <= 0 {
			return
		}
		a.waits, a.step = amounts{cpu: open}, amounts{cpu: open}
		twins[name] = a
		settle()
		if twins[name].hard[cpu] < a.used[cpu]+open {
			t.Fatalf("%s waits for %d beside %d, and is held at %d: part %d, %+v, %+v", name, open, a.used[cpu], twins[name].hard[cpu], part, twins, members)
		}
	})
}

// A pod more of one virtual cluster writes the quotas of few others.
func TestAPoolIsCalm(t *testing.T) {
	const pool = peer.ID("pool")
	twins, members := map[string]account{}, map[peer.ID]member{}
	for i := range 30 {
		id := peer.ID(fmt.Sprint("s", i))
		members[id] = member{least: amounts{cpu: 30}}
		twins[string(id)] = account{consumer: id, pool: pool, spec: amounts{cpu: 0}, hard: amounts{cpu: 0}, used: amounts{cpu: 0}, waits: amounts{}, step: amounts{}, excess: amounts{}}
	}
	pass := func() (wrote int) {
		for name, next := range ration(amounts{cpu: 4000}, map[peer.ID]amounts{pool: {cpu: 4000}}, twins, members) {
			a := twins[name]
			if a.spec[cpu] != next[cpu] {
				wrote++
			}
			a.spec, a.hard = next, next
			twins[name] = a
		}
		return wrote
	}
	for pass() > 0 {
	}
	a := twins["s0"]
	a.used = amounts{cpu: 100}
	twins["s0"] = a
	if wrote := pass(); wrote > 2 {
		t.Errorf("a pod that fits writes %d quotas", wrote)
	}
	a = twins["s1"]
	a.waits, a.step = amounts{cpu: 500}, amounts{cpu: 500}
	twins["s1"] = a
	wrote := 0
	for n := pass(); n > 0; n = pass() {
		wrote += n
	}
	if wrote > 16 || twins["s1"].hard[cpu] < 500 {
		t.Errorf("a pod that waits writes %d quotas, and has %d", wrote, twins["s1"].hard[cpu])
	}
}

func TestRationIsCalm(t *testing.T) {
	twins := map[string]account{
		"a": {consumer: alice, pool: alice, spec: amounts{cpu: 500}, hard: amounts{cpu: 500}, used: amounts{cpu: 400}},
		"b": {consumer: alice, pool: alice, spec: amounts{cpu: 480}, hard: amounts{cpu: 480}, used: amounts{cpu: 0}},
	}
	got := ration(amounts{cpu: 1000}, map[peer.ID]amounts{alice: {cpu: 1000}}, twins, nil)
	if got["a"][cpu] != 500 || got["b"][cpu] != 480 {
		t.Errorf("%v: written for nothing", got)
	}
	a := twins["a"]
	a.waits = amounts{cpu: 300}
	twins["a"] = a
	got = ration(amounts{cpu: 1000}, map[peer.ID]amounts{alice: {cpu: 1000}}, twins, nil)
	if got["b"][cpu] != 150 || got["a"][cpu] != 520 {
		t.Errorf("%v: b goes down to 150 first, a up by what is not committed", got)
	}
	b := twins["b"]
	b.spec, b.hard = got["b"], got["b"]
	a.spec, a.hard = got["a"], got["a"]
	twins["a"], twins["b"] = a, b
	if got = ration(amounts{cpu: 1000}, map[peer.ID]amounts{alice: {cpu: 1000}}, twins, nil); got["a"][cpu] != 850 {
		t.Errorf("%v: a gets what it waits for and half of the rest", got)
	}
}

// Two twins wait for a pod each and there is room for one: one of them gets it.
func TestGrantsAreWholePods(t *testing.T) {
	if got := grant(100, []int64{100, 100}, []int64{100, 100}, []int64{0, 0}); got[0] != 100 || got[1] != 0 {
		t.Errorf("%v", got)
	}
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 5).Draw(t, "n")
		steps := rapid.SliceOfN(rapid.Int64Range(1, 50), n, n).Draw(t, "steps")
		waits, least := make([]int64, n), int64(1<<40)
		for i := range waits {
			if waits[i] = steps[i] * rapid.Int64Range(0, 10).Draw(t, "pods"); waits[i] > 0 {
				least = min(least, steps[i])
			}
		}
		spare := rapid.Int64Range(-10, 1000).Draw(t, "spare")
		got, sum, all := grant(spare, waits, steps, make([]int64, n)), int64(0), true
		for i, g := range got {
			if g < 0 || g > waits[i] || g%steps[i] != 0 {
				t.Fatalf("%d of %d in steps of %d", g, waits[i], steps[i])
			}
			sum += g
			all = all && g == waits[i]
		}
		if sum > max(spare, 0) {
			t.Fatalf("%v of %d", got, spare)
		}
		if sum == 0 && !all && slices.Max(steps) <= spare {
			t.Fatalf("%d spare, %v wait, nobody gets anything", spare, waits)
		}
	})
}

// grow adds a twin and returns how many quotas were written until nothing is written any more.
func grow(t interface {
	Helper()
	Fatalf(string, ...any)
}, twins map[string]account, part int64) (name string, written int) {
	t.Helper()
	name = fmt.Sprint("t", len(twins))
	twins[name] = account{consumer: alice, pool: alice, spec: amounts{cpu: 0}, hard: amounts{cpu: 0}, used: amounts{cpu: 0}}
	wrote := map[string]bool{}
	for range 20 {
		calm := true
		for name, next := range ration(amounts{cpu: part}, map[peer.ID]amounts{alice: {cpu: part}}, twins, nil) {
			a := twins[name]
			if next[cpu] != a.spec[cpu] {
				wrote[name], calm = true, false
			}
			a.spec, a.hard = next, amounts{cpu: next[cpu]}
			twins[name] = a
		}
		if calm {
			return name, len(wrote)
		}
	}
	t.Fatalf("it does not settle: %+v", twins)
	return "", 0
}

// A new twin has a quarter of an equal share at least, whatever the others have and use.
func TestANewTwinHasRoom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const part = 10000
		twins := map[string]account{}
		for range rapid.IntRange(1, 30).Draw(t, "twins") {
			name, _ := grow(t, twins, part)
			left := int64(part)
			for _, a := range twins {
				left -= a.used[cpu]
			}
			a := twins[name]
			if a.hard[cpu] < left/int64(len(twins))/4 {
				t.Fatalf("the new one of %d has %d, %d are left", len(twins), a.hard[cpu], left)
			}
			a.used = amounts{cpu: rapid.Int64Range(0, a.hard[cpu]).Draw(t, "use")}
			twins[name] = a
		}
	})
}

// Where the others have room, it takes it from a few of them.
func TestANewTwinTakesRoomFromFew(t *testing.T) {
	twins := map[string]account{}
	for range 50 {
		name, written := grow(t, twins, 10000)
		if written > 4 {
			t.Errorf("%d of %d quotas are written for one new twin", written, len(twins))
		}
		a := twins[name]
		a.used = amounts{cpu: 5}
		twins[name] = a
	}
}

// What is bounded by number is left alone in all other twins when one makes an object.
func TestAnObjectIsNoWriteInAllTwins(t *testing.T) {
	limits := map[corev1.ResourceName]int64{"count/configmaps": 2000}
	quota := func(used int64) *corev1.ResourceQuota {
		return &corev1.ResourceQuota{Status: corev1.ResourceQuotaStatus{Used: corev1.ResourceList{"count/configmaps": *resource.NewQuantity(used, resource.DecimalSI)}}}
	}
	one, other := quota(0), quota(0)
	both := []*corev1.ResourceQuota{one, other}
	one.Spec.Hard = counts(one, both, limits)
	writes := 0
	for used := range int64(2001) {
		other.Status.Used["count/configmaps"] = *resource.NewQuantity(used, resource.DecimalSI)
		next := counts(one, both, limits)
		if !equality.Semantic.DeepEqual(next, one.Spec.Hard) {
			writes++
			one.Spec.Hard = next
		}
		left, hard := 2000-used, next["count/configmaps"]
		if hard.Value() < left || hard.Value() > left+left/4 {
			t.Fatalf("with %d left the twin may have %d", left, hard.Value())
		}
	}
	if writes > 60 {
		t.Errorf("%d writes of one twin's quota for 2000 objects of another", writes)
	}
}
