package drain

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"rivulet/offload/policy"
)

// Cordon sets whether the scheduler may place new pods on the node, like kubectl cordon.
func Cordon(ctx context.Context, client kubernetes.Interface, node string, on bool) error {
	patch := fmt.Sprintf(`{"spec":{"unschedulable":%t}}`, on)
	if _, err := client.CoreV1().Nodes().Patch(ctx, node, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("drain: node %s: %w; is rivulet running?", node, err)
	}
	return nil
}

// Find returns the virtual nodes for a name that a user wrote. A target's name, or an ID of its cluster (whole, or at
// least its first eight characters), selects all of the target's nodes; a node's name selects that node. ids are those
// of the peers with that name.
func Find(ctx context.Context, client kubernetes.Interface, name string, ids ...string) ([]corev1.Node, error) {
	list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("drain: nodes: %w; is rivulet running?", err)
	}
	return find(list.Items, name, ids)
}

const shortest = 8 // characters of an ID

func find(nodes []corev1.Node, name string, ids []string) ([]corev1.Node, error) {
	targets := map[string][]corev1.Node{} // by ID
	var known, found []string
	named := ""
	for i := range nodes {
		n := &nodes[i]
		id, virtual := n.Labels[policy.VirtualNodeLabel]
		if !virtual {
			if n.Name == name {
				return nil, fmt.Errorf("%s is a node of this cluster, not a peer; use: rivulet kubectl cordon|drain %s", name, name)
			}
			continue
		}
		known = append(known, n.Name)
		first := n.Labels[policy.TargetLabel]
		if n.Name == name && first != "" && first != name {
			return []corev1.Node{*n}, nil
		}
		if n.Name == name || first == name {
			named = id
		}
		matches := len(name) >= shortest && strings.HasPrefix(id, name) || slices.Contains(ids, id)
		if matches && len(targets[id]) == 0 {
			found = append(found, id)
		}
		targets[id] = append(targets[id], *n)
	}
	for _, of := range targets {
		slices.SortFunc(of, func(a, b corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	}
	switch {
	case named != "":
		return targets[named], nil
	case len(found) == 1:
		return targets[found[0]], nil
	case len(found) > 1:
		return nil, fmt.Errorf("%s may be %s or %s; use the name of one", name, targets[found[0]][0].Name, targets[found[1]][0].Name)
	case len(known) == 0:
		return nil, fmt.Errorf("there is no virtual node %s, and no other; see: rivulet peers, or rivulet burst list", name)
	}
	return nil, fmt.Errorf("there is no virtual node %s; there are: %s", name, strings.Join(known, ", "))
}
