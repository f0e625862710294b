package tenancy

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
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
			twins[fmt.Sprint("t", i)] = account{consumer: consumers[i%2], spec: amounts{cpu: 0}, hard: amounts{cpu: 0}, used: amounts{cpu: 0}, waits: amounts{}, excess: amounts{}}
		}
		lent := rapid.Int64Range(0, 1000).Draw(t, "lent")
		parts := map[peer.ID]amounts{alice: {cpu: lent / 2}, bob: {cpu: lent - lent/2}}
		write := func() {
			for name, want := range ration(amounts{cpu: lent}, parts, twins) {
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

func TestRationIsCalm(t *testing.T) {
	twins := map[string]account{
		"a": {consumer: alice, spec: amounts{cpu: 500}, hard: amounts{cpu: 500}, used: amounts{cpu: 400}},
		"b": {consumer: alice, spec: amounts{cpu: 480}, hard: amounts{cpu: 480}, used: amounts{cpu: 0}},
	}
	got := ration(amounts{cpu: 1000}, map[peer.ID]amounts{alice: {cpu: 1000}}, twins)
	if got["a"][cpu] != 500 || got["b"][cpu] != 480 {
		t.Errorf("%v: written for nothing", got)
	}
	a := twins["a"]
	a.waits = amounts{cpu: 300}
	twins["a"] = a
	got = ration(amounts{cpu: 1000}, map[peer.ID]amounts{alice: {cpu: 1000}}, twins)
	if got["b"][cpu] != 150 || got["a"][cpu] != 520 {
		t.Errorf("%v: b goes down to 150 first, a up by what is not committed", got)
	}
	b := twins["b"]
	b.spec, b.hard = got["b"], got["b"]
	a.spec, a.hard = got["a"], got["a"]
	twins["a"], twins["b"] = a, b
	if got = ration(amounts{cpu: 1000}, map[peer.ID]amounts{alice: {cpu: 1000}}, twins); got["a"][cpu] != 850 {
		t.Errorf("%v: a gets what it waits for and half of the rest", got)
	}
}

// Two twins wait for a pod each and there is room for one: one of them gets it.
func TestGrantsAreWholePods(t *testing.T) {
	if got := grant(100, []int64{100, 100}, []int64{100, 100}); got[0] != 100 || got[1] != 0 {
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
		got, sum, all := grant(spare, waits, steps), int64(0), true
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
