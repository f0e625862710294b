package drain

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"rivulet/offload/policy"
)

// Cordon keeps new pods off the node, or lets them come again. It is the switch
// that kubectl cordon turns.
func Cordon(ctx context.Context, client kubernetes.Interface, node string, on bool) error {
	patch := fmt.Sprintf(`{"spec":{"unschedulable":%t}}`, on)
	if _, err := client.CoreV1().Nodes().Patch(ctx, node, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("drain: node %s: %w; is rivulet running?", node, err)
	}
	return nil
}

// Find returns the virtual node that stands for what a user calls name: the
// node's own name, or an ID of its cluster, whole or the first eight characters
// and more. ids are those of peers that have the name.
func Find(ctx context.Context, client kubernetes.Interface, name string, ids ...string) (*corev1.Node, error) {
	list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("drain: nodes: %w; is rivulet running?", err)
	}
	return find(list.Items, name, ids)
}

const shortest = 8 // characters of an ID

func find(nodes []corev1.Node, name string, ids []string) (*corev1.Node, error) {
	var found []*corev1.Node
	var known []string
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
		if n.Name == name {
			return n, nil
		}
		matches := len(name) >= shortest && strings.HasPrefix(id, name)
		for _, other := range ids {
			matches = matches || id == other
		}
		if matches {
			found = append(found, n)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return nil, fmt.Errorf("%s may be %s or %s; use the name of one", name, found[0].Name, found[1].Name)
	case len(known) == 0:
		return nil, fmt.Errorf("there is no virtual node %s, and no other; see: rivulet peers", name)
	}
	return nil, fmt.Errorf("there is no virtual node %s; there are: %s", name, strings.Join(known, ", "))
}
