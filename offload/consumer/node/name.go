package node

import (
	"cmp"
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
		if nodes[i].Labels[policy.VirtualNodeLabel] == id {
			return cmp.Or(nodes[i].Labels[policy.TargetLabel], nodes[i].Name)
		}
		taken[nodes[i].Name] = true
	}
	label := dnsLabel(name)
	if label == "" {
		return "peer-" + short
	}
	if taken[label] || reserved(label) {
		return suffixed(label, short)
	}
	return label
}

// PlatformName chooses the name of the virtual node for another platform of a target: the target's name with the
// architecture, extended if that is taken.
func PlatformName(target string, p offer.Platform, short string, taken func(string) bool) string {
	suffix := dnsLabel(p.Architecture)
	if p.OS != "linux" {
		suffix = dnsLabel(p.OS + "-" + p.Architecture)
	}
	name := suffixed(target, suffix)
	if taken(name) {
		name = suffixed(target, suffix+"-"+short)
	}
	return name
}

func suffixed(label, suffix string) string {
	if most := validation.DNS1123LabelMaxLength - len(suffix) - 1; len(label) > most {
		label = strings.TrimRight(label[:most], "-")
	}
	return label + "-" + suffix
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
