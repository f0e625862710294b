package node

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"rivulet/offload/policy"
)

// Name picks the name of the virtual node of a target. A node that stands for it
// already keeps its name. Else it is the target's own name, unless a node of that
// name is there or reserved reports that another target may claim it; then the
// short ID is added.
func Name(name, id, short string, nodes []corev1.Node, reserved func(string) bool) string {
	taken := map[string]bool{}
	for i := range nodes {
		if nodes[i].Labels[policy.VirtualNodeLabel] == id {
			return nodes[i].Name
		}
		taken[nodes[i].Name] = true
	}
	label := dnsLabel(name)
	if label == "" {
		return "peer-" + short
	}
	if taken[label] || reserved(label) {
		if max := validation.DNS1123LabelMaxLength - len(short) - 1; len(label) > max {
			label = strings.TrimRight(label[:max], "-")
		}
		return label + "-" + short
	}
	return label
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
