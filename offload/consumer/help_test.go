package consumer

import (
	"context"
	"testing"
	"time"

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

// eventually polls a condition; it returns "" when it holds, else what is missing.
func eventually(t *testing.T, limit time.Duration, what string, condition func(ctx context.Context) string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	for {
		missing := condition(ctx)
		if missing == "" {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not within %s: %s", what, limit, missing)
		case <-time.After(50 * time.Millisecond):
		}
	}
}
