package offload

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/offload/policy"
	"rivulet/test/harness/apiserver"
	"rivulet/test/harness/await"
)

// TestFirstPods labels a namespace and makes a pod in it at once, again and again: with
// nothing wrong anywhere, no event warns at home, no pod is refused by the provider, and
// neither side logs a warning.
func TestFirstPods(t *testing.T) {
	a, b := world(t)
	apiserver.StartKubelet(t, b.Server, "b-node")
	a.ready(t, true)
	a.offloadNamespace(t, "lab") // the admission policies are in force
	a.starts(t, "lab", "before") // and what bounds consumers is at b
	ctx := t.Context()
	from := [2]int{a.warnings.count(), b.warnings.count()}
	for i := range number("RIVULET_TEST_FIRST", 20) {
		name := fmt.Sprint("first-", i)
		a.create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{policy.NamespaceLabel: string(policy.Remote)}}})
		first := a.starts(t, name, "first")
		next := a.starts(t, name, "next")
		t.Logf("%s: the first pod runs after %.2f s, the next after %.2f s", name, first.Seconds(), next.Seconds())
		if i%5 == 4 { // what it had goes to others
			must(t, a.Client.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{}))
		}
	}
	for _, d := range []*device{a, b} {
		events, err := d.Client.CoreV1().Events("").List(ctx, metav1.ListOptions{})
		must(t, err)
		for _, e := range events.Items {
			if strings.HasPrefix(e.Namespace, "first-") && (e.Type == corev1.EventTypeWarning || e.InvolvedObject.Kind == "ReplicaSet") {
				t.Errorf("%s: event in %s of %s %s: %s: %s", d.name, e.Namespace, e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Reason, e.Message)
			}
		}
	}
	for i, d := range []*device{a, b} {
		for _, line := range d.warnings.since(from[i]) {
			t.Errorf("%s logs %s", d.name, line)
		}
	}
}

// starts makes a pod and returns how long it took until home saw it Ready.
func (d *device) starts(t *testing.T, namespace, name string) time.Duration {
	t.Helper()
	begun := time.Now()
	await.Empty(t, time.Minute, namespace+"/"+name+" is made", func(ctx context.Context) string {
		begun = time.Now()
		_, err := d.Client.CoreV1().Pods(namespace).Create(ctx, bare(name, corev1.PodSpec{}), metav1.CreateOptions{})
		if apierrors.IsForbidden(err) && strings.Contains(err.Error(), "service account") {
			return err.Error() // which its controller is about to make
		}
		must(t, err)
		return ""
	})
	w, err := d.Client.CoreV1().Pods(namespace).Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	must(t, err)
	defer w.Stop()
	last := "nothing"
	for end := time.After(time.Minute); ; {
		select {
		case e := <-w.ResultChan():
			p, ok := e.Object.(*corev1.Pod)
			if !ok {
				t.Fatalf("%s/%s: %v", namespace, name, e.Object)
			}
			if slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue }) {
				return time.Since(begun)
			}
			last = fmt.Sprintf("%s %s %s", p.Status.Phase, p.Status.Reason, p.Status.Message)
		case <-end:
			t.Fatalf("%s/%s is not ready after a minute: %s", namespace, name, last)
		}
	}
}
