package nodes

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// rangeBits is the size of a node's part of the pod network, the default of the controller manager, which gives it.
const rangeBits = 24

// podRanges returns the part of the pod network of each node. A part of another size, outside of the pod network, or
// in common with that of the server or of an older node is left out and reported by the error.
func podRanges(nodes []corev1.Node, server string, all netip.Prefix) (map[string]netip.Prefix, error) {
	order := make([]*corev1.Node, 0, len(nodes))
	for i := range nodes {
		order = append(order, &nodes[i])
	}
	rank := func(n *corev1.Node) int {
		if n.Name == server {
			return 0
		}
		return 1
	}
	slices.SortFunc(order, func(a, b *corev1.Node) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	out, given := map[string]netip.Prefix{}, map[netip.Prefix]string{}
	var errs []error
	for _, n := range order {
		if n.Spec.PodCIDR == "" {
			continue
		}
		p, err := netip.ParsePrefix(n.Spec.PodCIDR)
		other, taken := given[p]
		switch {
		case err != nil || p.Bits() != rangeBits || p != p.Masked() || !all.Contains(p.Addr()):
			err = fmt.Errorf("node %s has the pod range %q, which is no /%d of %s", n.Name, n.Spec.PodCIDR, rangeBits, all)
		case taken:
			err = fmt.Errorf("node %s has the pod range %s of node %s", n.Name, p, other)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%w; its pods are not reached: rivulet nodes remove %s, and join it again", err, n.Name))
			continue
		}
		out[n.Name], given[p] = p, n.Name
	}
	return out, errors.Join(errs...)
}
