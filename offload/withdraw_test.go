package offload

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"rivulet/fabric/peer"
	"rivulet/offload/offer"
	"rivulet/offload/policy"
	"rivulet/test/harness/apiserver"
	"rivulet/test/harness/await"
)

// TestWithdrawn has a provider lend nothing any more: it tells, Services at home leave its
// pods out at once, and what must not run twice is made again when the provider has told that it is gone, one pod
// that hangs there included. Before, its link is lost and comes back.
func TestWithdrawn(t *testing.T) {
	a, b := world(t)
	apiserver.StartKubelet(t, b.Server, "b-1")
	ctx := t.Context()
	a.offloadNamespace(t, "lab")
	a.ready(t, true)
	a.create(t, web(2))
	a.create(t, set())
	a.create(t, job("long", map[string]string{"app": "long"}))
	_, err := a.Client.CoreV1().Services("lab").Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{})
	must(t, err)

	// The ready endpoints at home and away, as home has them.
	endpoints := func() (home, away int) {
		slices, err := a.Client.DiscoveryV1().EndpointSlices("lab").List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=web"})
		must(t, err)
		for _, s := range slices.Items {
			for _, e := range s.Endpoints {
				switch {
				case !ptr.Deref(e.Conditions.Ready, true):
				case strings.HasPrefix(e.Addresses[0], "10.77."):
					away++
				default:
					home++
				}
			}
		}
		return home, away
	}
	have := func(limit time.Duration, what string, home, away int) {
		t.Helper()
		await.Empty(t, limit, what, func(context.Context) string {
			if h, aw := endpoints(); h != home || aw != away {
				return fmt.Sprintf("%d endpoints at home, %d away", h, aw)
			}
			return ""
		})
	}
	have(time.Minute, "both are endpoints, away", 0, 2)
	apiserver.StartKubelet(t, a.Server, "a-1")
	await.Empty(t, time.Minute, "home has a node of its own", func(ctx context.Context) string {
		n, err := a.Client.CoreV1().Nodes().Get(ctx, "a-1", metav1.GetOptions{})
		if err != nil || len(n.Spec.Taints) > 0 {
			return fmt.Sprint(err, n)
		}
		return nodeReady(n)
	})
	scaled := []byte(`{"spec":{"replicas":4}}`)
	_, err = a.Client.AppsV1().Deployments("lab").Patch(ctx, "web", types.MergePatchType, scaled, metav1.PatchOptions{})
	must(t, err)
	have(time.Minute, "two more at home", 2, 2)
	db := a.running(t, "db-0", "")
	if db.Spec.NodeName != "b" {
		t.Fatalf("db-0 runs on %s", db.Spec.NodeName)
	}

	t.Run("a link that is known dead", func(t *testing.T) {
		before := a.pods(ctx, t, "")
		a.fabric.setState(peer.Lost)
		have(2*time.Second, "Services leave out what is away", 2, 0)
		a.fabric.setState(peer.Connected)
		have(10*time.Second, "and take it again", 2, 2)
		after := a.pods(ctx, t, "")
		if len(after) != len(before) || slices.ContainsFunc(after, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil }) {
			t.Errorf("%d pods, were %d, or some are deleted", len(after), len(before))
		}
	})

	// The pod of db hangs at b until the test lets it go.
	stuck := b.away(ctx, t, string(db.UID))[0]
	finalize := func(text string) {
		t.Helper()
		_, err := b.Client.CoreV1().Pods(stuck.Namespace).Patch(ctx, stuck.Name, types.JSONPatchType, []byte(text), metav1.PatchOptions{})
		must(t, err)
	}
	finalize(`[{"op":"add","path":"/metadata/finalizers/-","value":"test.rivulet.dev/stuck"}]`)
	runs := a.pods(ctx, t, "app=long")
	if len(runs) != 1 {
		t.Fatalf("%d pods of the Job", len(runs))
	}

	b.fabric.setRoles(false, true) // nobody but the stream of offers tells a
	await.Empty(t, 2*time.Second, "Services leave out what is withdrawn", func(context.Context) string {
		if _, away := endpoints(); away > 0 {
			return fmt.Sprintf("%d endpoints away", away)
		}
		return ""
	})
	await.Empty(t, time.Minute, "four run at home", func(context.Context) string {
		if h, aw := endpoints(); h != 4 || aw != 0 {
			return fmt.Sprintf("%d endpoints at home, %d away", h, aw)
		}
		return ""
	})
	await.Empty(t, time.Minute, "all but what hangs is gone at b", func(ctx context.Context) string {
		left, err := b.Client.CoreV1().Pods("").List(ctx, metav1.ListOptions{LabelSelector: policy.OriginLabel})
		must(t, err)
		if len(left.Items) != 1 {
			var names []string
			for _, p := range left.Items {
				names = append(names, fmt.Sprint(p.Name, p.Finalizers, p.DeletionTimestamp != nil, p.Status.Phase))
			}
			return fmt.Sprint(names)
		}
		return ""
	})
	// Longer than what would be waited for of a provider that cannot tell.
	until := time.Now().Add(12 * time.Second)
	for time.Now().Before(until) {
		p, err := a.Client.CoreV1().Pods("lab").Get(ctx, "db-0", metav1.GetOptions{})
		if err != nil || p.UID != db.UID {
			t.Fatalf("db-0 is made again while it runs at b: %v", err)
		}
		if now := a.pods(ctx, t, "app=long"); len(now) != 1 || now[0].UID != runs[0].UID {
			t.Fatalf("the Job has %d pods while b has not told that its twin is gone", len(now))
		}
		time.Sleep(200 * time.Millisecond) // it is watched that nothing happens
	}
	finalize(`[{"op":"replace","path":"/metadata/finalizers","value":[]}]`)
	if again := a.running(t, "db-0", db.UID); again.Spec.NodeName != "a-1" {
		t.Errorf("db-0 runs on %s", again.Spec.NodeName)
	}
	await.Empty(t, time.Minute, "the Job's pod has failed, and another runs at home", func(ctx context.Context) string {
		failed, running := 0, 0
		for _, p := range a.pods(ctx, t, "app=long") {
			switch {
			case p.Status.Phase == corev1.PodFailed:
				failed++
			case p.Status.Phase == corev1.PodRunning && p.Spec.NodeName == "a-1":
				running++
			}
		}
		if running != 1 {
			return fmt.Sprintf("%d failed, %d run at home", failed, running)
		}
		return ""
	})
	await.Empty(t, time.Minute, "node gone", func(ctx context.Context) string {
		if _, err := a.Client.CoreV1().Nodes().Get(ctx, "b", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Sprint(err)
		}
		return ""
	})
	b.fabric.setRoles(false, false)
	a.ready(t, true)
}

// A share that is lowered to nothing is a withdrawal: no pod waits for the time after which
// surplus is handed back. What is lent again is used again.
func TestShareLoweredToNothing(t *testing.T) {
	a, b := world(t)
	apiserver.StartKubelet(t, b.Server, "b-1")
	a.offloadNamespace(t, "lab")
	a.ready(t, true)
	a.create(t, web(2))
	a.create(t, set())
	b.lend(offer.Share{CPU: 50}) // less, and enough
	db := a.running(t, "db-0", "")
	await.Empty(t, time.Minute, "three run at b", func(ctx context.Context) string {
		running := 0
		for _, p := range a.pods(ctx, t, "") {
			if p.Status.Phase == corev1.PodRunning && p.Spec.NodeName == "b" && p.DeletionTimestamp == nil {
				running++
			}
		}
		if running != 3 {
			return fmt.Sprintf("%d run", running)
		}
		return ""
	})
	apiserver.StartKubelet(t, a.Server, "a-1")

	b.lend(offer.Share{CPU: 50, MaxPods: offer.Nothing})
	await.Empty(t, time.Minute, "nothing of a's is left at b, its twins included", func(ctx context.Context) string {
		pods, err := b.Client.CoreV1().Pods("").List(ctx, metav1.ListOptions{LabelSelector: policy.OriginLabel})
		must(t, err)
		twins, err := b.Client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: policy.OriginLabel})
		must(t, err)
		if len(pods.Items)+len(twins.Items) > 0 {
			return fmt.Sprintf("%d pods, %d twins", len(pods.Items), len(twins.Items))
		}
		return ""
	})
	if again := a.running(t, "db-0", db.UID); again.Spec.NodeName != "a-1" {
		t.Errorf("db-0 runs on %s", again.Spec.NodeName)
	}
	await.Empty(t, time.Minute, "the virtual node is gone", func(ctx context.Context) string {
		if _, err := a.Client.CoreV1().Nodes().Get(ctx, "b", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Sprint(err)
		}
		return ""
	})
	b.lend(offer.Share{})
	a.ready(t, true)
}
