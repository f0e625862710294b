package node

import (
	"cmp"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"rivulet/offload/offer"
	"rivulet/offload/policy"
)

// Name chooses the name of a target, which is also that of its first virtual node. A target with nodes keeps its name.
// Otherwise it is the target's own name; the short ID is added if a node has that name, or another target may claim it
// (reserved).
func Name(name, id, short string, nodes []corev1.Node, reserved func(string) bool) string {
	taken := map[string]bool{}
	for i := range nodes {
		if Of(&nodes[i]) == id {
			return cmp.Or(nodes[i].Labels[policy.TargetLabel], nodes[i].Name)
		}
		taken[nodes[i].Name] = true
	}
	label := dnsLabel(name)
	if label == "" {
		return suffixed("peer", short)
	}
	if taken[label] || reserved(label) {
		return suffixed(label, short)
	}
	return label
}

// PlatformName chooses the name of the virtual node for another platform of a target: the target's name with the
// architecture, extended as long as that is taken. Whatever the platform is called, it is a valid name of a Node.
func PlatformName(target string, p offer.Platform, short string, taken func(string) bool) string {
	suffix := dnsLabel(p.Architecture)
	if p.OS != "linux" {
		suffix = dnsLabel(p.OS + "-" + p.Architecture)
	}
	name := suffixed(target, suffix)
	for i := 1; taken(name); i++ {
		more := suffix + "-" + short
		if i > 1 {
			more += "-" + strconv.Itoa(i)
		}
		name = suffixed(target, more)
	}
	return name
}

// suffixed returns a valid label that begins with the first part and ends with the last, both cut off as far as needed:
// the last keeps its end, and leaves at least half of the length to the first.
func suffixed(label, suffix string) string {
	const longest = validation.DNS1123LabelMaxLength
	suffix = dnsLabel(suffix[max(0, len(suffix)-longest/2):])
	label = dnsLabel(label)
	label = strings.TrimRight(label[:min(len(label), longest-len(suffix)-1)], "-")
	return cmp.Or(strings.Trim(label+"-"+suffix, "-"), "peer")
}

// dnsLabel converts the name of a device to a valid name of a Node.
func dnsLabel(name string) string {
	mapped := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '-'
	}, name)
	if len(mapped) > validation.DNS1123LabelMaxLength {
		mapped = mapped[:validation.DNS1123LabelMaxLength]
	}
	return strings.Trim(mapped, "-")
}
