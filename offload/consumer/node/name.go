package node

import (
	"cmp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"rivulet/offload/offer"
	"rivulet/offload/policy"
)

// Name picks the name of a target, which is that of its first virtual node. Where nodes
// stand for it already the name stays. Else it is the target's own name, unless a node of that
// name is there or reserved reports that another target may claim it; then the
// short ID is added.
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

// PlatformName picks the name of the virtual node for another platform of a target:
// the target's with the architecture, or with more where that is taken.
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

// dnsLabel makes of what a user called a device something a Node may be called.
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
