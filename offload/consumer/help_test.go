package consumer

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// nodeReady says why the node is not Ready; "" if it is.
func nodeReady(n *corev1.Node) string {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			return c.Message
		} else if c.Type == corev1.NodeReady {
			return ""
		}
	}
	return "no condition"
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
