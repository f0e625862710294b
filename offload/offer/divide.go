package offer

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"rivulet/fabric/peer"
)

// Divide divides what is lent among the consumers with a place here, by what each uses. It is the first of three steps,
// each of which reads only the previous one:
//
//	what is lent ─Divide─▶ a consumer's part ─ration─▶ quotas of its twins ─rationing─▶ ResourceQuota
//
// (ration.go, rationing.go and quota.go are in offload/provider/tenancy.) Resources are divided separately, by these
// rules:
//
//   - the parts together are what is lent, and never more;
//   - a consumer that uses at most an equal part never has to give anything back;
//   - a consumer that uses nothing has at least half of an equal part, so that
//     earlier ones cannot exclude it;
//   - a consumer that uses half of its part or more gets more, as long as the others
//     do not need it: a single one gets all;
//
// Of an indivisible resource (one GPU, two consumers) a part may be nothing.
func Divide(lent corev1.ResourceList, use map[peer.ID]corev1.ResourceList) map[peer.ID]corev1.ResourceList {
	consumers := slices.Sorted(maps.Keys(use))
	parts := map[peer.ID]corev1.ResourceList{}
	for _, c := range consumers {
		parts[c] = corev1.ResourceList{}
	}
	for name, q := range lent {
		used := make([]int64, len(consumers))
		for i, c := range consumers {
			used[i] = Amount(name, use[c][name])
		}
		for i, amount := range divide(Amount(name, q), used) {
			parts[consumers[i]][name] = Quantity(name, amount)
		}
	}
	return parts
}

// divideUpTo is divide with limits: a consumer above its limit gets the limit, and the rest is divided among the
// others.
func divideUpTo(lent int64, used []int64, limits map[int]int64) []int64 {
	parts := make([]int64, len(used))
	for open := ascending(used); ; {
		some := make([]int64, len(open))
		for k, i := range open {
			some[k] = used[i]
		}
		left := lent
		var rest []int
		for k, part := range divide(lent, some) {
			i := open[k]
			if limit, limited := limits[i]; limited && part > limit {
				parts[i] = limit
				left -= limit
			} else {
				parts[i] = part
				rest = append(rest, i)
			}
		}
		if len(rest) == len(open) {
			return parts
		}
		lent, open = left, rest
	}
}

// divide is Divide for one resource.
func divide(lent int64, used []int64) []int64 {
	n := int64(len(used))
	if n == 0 {
		return nil
	}
	lent = max(lent, 0)
	begin := lent / (2 * n)
	if begin == 0 && lent >= n {
		begin = 1
	}
	want := make([]int64, n)
	for i, u := range used {
		want[i] = max(2*max(u, 0), begin)
	}
	parts := Fill(lent, want)
	rest := lent
	for _, p := range parts {
		rest -= p
	}
	// All have what they need: the rest goes to any of them, and an indivisible remainder to the largest user.
	order := ascending(used)
	slices.Reverse(order)
	for turn, i := range order {
		parts[i] += rest / n
		if int64(turn) < rest%n {
			parts[i]++
		}
	}
	return parts
}

// Fill gives each what it wants; if there is too little, those that want more get the same (max-min fairness).
func Fill(have int64, want []int64) []int64 {
	got := make([]int64, len(want))
	for done, i := range ascending(want) {
		equal := max(have, 0) / int64(len(want)-done)
		got[i] = min(max(want[i], 0), equal)
		have -= got[i]
	}
	return got
}

// ascending returns indices in order of value; equals keep their order.
func ascending(values []int64) []int {
	order := make([]int, len(values))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case values[a] < values[b]:
			return -1
		case values[a] > values[b]:
			return 1
		}
		return 0
	})
	return order
}

// Amount is a quantity in the resource's smallest unit: thousandths of a CPU, bytes, pieces.
func Amount(name corev1.ResourceName, q resource.Quantity) int64 {
	if name == corev1.ResourceCPU {
		return q.MilliValue()
	}
	return q.Value()
}

// Quantity is the inverse of Amount.
func Quantity(name corev1.ResourceName, amount int64) resource.Quantity {
	switch name {
	case corev1.ResourceCPU:
		return *resource.NewMilliQuantity(amount, resource.DecimalSI)
	case corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
		return *resource.NewQuantity(amount, resource.BinarySI)
	}
	return *resource.NewQuantity(amount, resource.DecimalSI)
}

// extended reports whether a device plugin provides the resource, such as a GPU.
func extended(name corev1.ResourceName) bool {
	domain, _, qualified := strings.Cut(string(name), "/")
	return qualified && domain != "kubernetes.io" && !strings.HasSuffix(domain, ".kubernetes.io") && !strings.HasPrefix(domain, "requests.")
}
