package nodes

import (
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A node whose range is not its own gets no traffic, and takes none from another one; when it is removed, nothing of it
// is left.
func TestRangesOfNodes(t *testing.T) {
	all := netip.MustParsePrefix("10.42.0.0/16")
	node := func(name, cidr string, age time.Duration) corev1.Node {
		return corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Unix(0, 0).Add(-age))}, Spec: corev1.NodeSpec{PodCIDR: cidr}}
	}
	pi, w := node("pi", "10.42.0.0/24", 2*time.Hour), node("w", "10.42.1.0/24", time.Hour)
	for what, c := range map[string]struct {
		of    corev1.Node
		wrong string
	}{
		"its own":             {node("x", "10.42.2.0/24", 0), ""},
		"none yet":            {node("x", "", 0), ""},
		"another worker's":    {node("x", "10.42.1.0/24", 0), "of node w"},
		"the server's":        {node("x", "10.42.0.0/24", 3*time.Hour), "of node pi"},
		"a larger one":        {node("x", "10.42.0.0/17", 0), "no /24"},
		"a smaller one":       {node("x", "10.42.1.128/25", 0), "no /24"},
		"an address":          {node("x", "10.42.1.7/32", 0), "no /24"},
		"one with host bits":  {node("x", "10.42.2.7/24", 0), "no /24"},
		"outside":             {node("x", "10.43.0.0/24", 0), "no /24"},
		"of another family":   {node("x", "fd00::/24", 0), "no /24"},
		"something else":      {node("x", "x", 0), "no /24"},
		"all":                 {node("x", "0.0.0.0/0", 0), "no /24"},
		"the server's, older": {node("a", "10.42.0.0/24", 9*time.Hour), "of node pi"},
	} {
		want := map[string]netip.Prefix{"pi": netip.MustParsePrefix("10.42.0.0/24"), "w": netip.MustParsePrefix("10.42.1.0/24")}
		before, err := podRanges([]corev1.Node{pi, w}, "pi", all)
		if err != nil || !maps.Equal(before, want) {
			t.Errorf("%s: without it: %v %v", what, before, err)
		}
		if c.wrong == "" && c.of.Spec.PodCIDR != "" {
			want[c.of.Name] = netip.MustParsePrefix(c.of.Spec.PodCIDR)
		}
		for _, nodes := range [][]corev1.Node{{pi, w, c.of}, {c.of, w, pi}} {
			got, err := podRanges(nodes, "pi", all)
			if !maps.Equal(got, want) || (err != nil) != (c.wrong != "") || err != nil && (!strings.Contains(err.Error(), c.wrong) || !strings.Contains(err.Error(), "rivulet nodes remove "+c.of.Name)) {
				t.Errorf("%s: %v, %v", what, got, fmt.Sprint(err))
			}
		}
	}
}
