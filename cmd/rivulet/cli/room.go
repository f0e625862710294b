package cli

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// roomText is a list of resources on one line: cpu=8 memory=16Gi.
func roomText(room corev1.ResourceList) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(room)) {
		q := room[name]
		parts = append(parts, string(name)+"="+q.String())
	}
	return strings.Join(parts, " ")
}
