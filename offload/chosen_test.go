package offload

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/offload/policy"
	"rivulet/test/harness/apiserver"
	"rivulet/test/harness/await"
)

// A peer that is not chosen gets no new pods and keeps those that it has; then its node goes. Chosen again, it is back.
func TestUnchosen(t *testing.T) {
	a, b := world(t)
	apiserver.StartKubelet(t, b.Server, "b-1")
	ctx := t.Context()
	a.offloadNamespace(t, "lab")
	a.ready(t, true)
	choose := func(text string) {
		t.Helper()
		rule, err := policy.ParseNodes(text)
		must(t, err)
		a.nodes.Store(&rule)
		a.offload.SettingsChanged()
	}
	unchosen := func(what string, want bool) {
		t.Helper()
		await.Empty(t, time.Minute, what, func(ctx context.Context) string {
			n, err := a.Client.CoreV1().Nodes().Get(ctx, "b", metav1.GetOptions{})
			if err != nil {
				return err.Error()
			}
			closed := slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == policy.UnchosenTaint })
			if told := len(a.offload.Status().Unchosen) > 0; closed != want || told != want {
				return fmt.Sprintf("closed %t, told %t", closed, told)
			}
			return nodeReady(n)
		})
	}
	gone := func() {
		t.Helper()
		await.Empty(t, time.Minute, "b has no virtual node", func(ctx context.Context) string {
			if _, err := a.Client.CoreV1().Nodes().Get(ctx, "b", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return fmt.Sprint("it is there: ", err)
			}
			return ""
		})
	}
	a.create(t, set())
	before := a.running(t, "db-0", "")
	choose("room=lab")
	unchosen("b gets no new pods", true)
	a.create(t, web(1))
	await.Empty(t, time.Minute, "a new pod waits", func(ctx context.Context) string {
		for _, p := range a.pods(ctx, t, "app=web") {
			if p.Spec.NodeName == "" && len(p.Status.Conditions) > 0 {
				return ""
			}
		}
		return "it does not"
	})

	a.stop()
	a.start()
	unchosen("b gets no new pods after a restart", true)
	await.True(t, time.Minute, "the choice has settled", func() bool {
		list, err := a.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: policy.VirtualNodeLabel})
		must(t, err)
		return len(list.Items) == 1 && time.Since(list.Items[0].Spec.Taints[len(list.Items[0].Spec.Taints)-1].TimeAdded.Time) > 15*time.Second
	})
	if after := a.running(t, "db-0", ""); after.UID != before.UID || after.DeletionTimestamp != nil {
		t.Fatal("the pod that ran there was replaced")
	}
	must(t, a.Client.AppsV1().StatefulSets("lab").Delete(ctx, "db", metav1.DeleteOptions{}))
	gone()

	a.stop()
	a.start()
	await.True(t, time.Minute, "b is told as not chosen", func() bool { return len(a.offload.Status().Unchosen) == 1 })
	gone()
	choose("5 nearest")
	unchosen("b is back", false)
	a.running(t, a.pods(ctx, t, "app=web")[0].Name, "")
}
