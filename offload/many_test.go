package offload

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/offload/policy"
	"rivulet/test/apiserver"
)

// TestManyPodsOverABadLink sends rounds of pods away while the link stalls and
// breaks, and finds none that is left waiting. RIVULET_TEST_ROUNDS and _PODS make
// it a search for what is rare.
func TestManyPodsOverABadLink(t *testing.T) {
	rounds, pods := number("RIVULET_TEST_ROUNDS", 1), number("RIVULET_TEST_PODS", 30)
	a, b := world(t)
	apiserver.StartKubelet(t, b.Server, "b-node")
	ctx := t.Context()
	a.offloadNamespace(t, "lab")
	_, err := a.Client.CoreV1().Namespaces().Patch(ctx, "lab", "application/merge-patch+json",
		[]byte(`{"metadata":{"labels":{"`+policy.NamespaceLabel+`":"remote"}}}`), metav1.PatchOptions{})
	must(t, err)
	eventually(t, 20*time.Second, "b is there", func(ctx context.Context) string {
		n, err := a.Client.CoreV1().Nodes().Get(ctx, "b", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		return nodeReady(n)
	})
	// A watch may go mute in a connection that lives: what was written finds it out.
	runs := func(name string) {
		eventually(t, 60*time.Second, name+" runs", func(ctx context.Context) string {
			p, err := a.Client.CoreV1().Pods("lab").Get(ctx, name, metav1.GetOptions{})
			if err != nil || p.Status.Phase != corev1.PodRunning {
				return fmt.Sprintf("%v %s %s", err, p.Status.Phase, p.Status.Message)
			}
			return ""
		})
	}
	a.create(t, bare("before", corev1.PodSpec{}))
	runs("before")
	a.fabric.mute.all()
	a.create(t, bare("after", corev1.PodSpec{}))
	must(t, a.Client.CoreV1().Pods("lab").Delete(ctx, "before", metav1.DeleteOptions{}))
	runs("after")
	a.gone(t, "before")

	for round := range rounds {
		mode := []string{"a link that breaks", "a link that stalls", "a steady link"}[round%3]
		stop := a.fabric.flap(mode)
		a.create(t, web(int32(pods)))
		eventually(t, 2*time.Minute, fmt.Sprintf("round %d: %d pods run over %s", round, pods, mode), func(ctx context.Context) string {
			defer pauseFor(200 * time.Millisecond)
			return a.allRun(ctx, t, b, pods)
		})
		foreground := metav1.DeletePropagationForeground
		must(t, a.Client.AppsV1().Deployments("lab").Delete(ctx, "web", metav1.DeleteOptions{PropagationPolicy: &foreground}))
		eventually(t, 2*time.Minute, "all gone", func(ctx context.Context) string {
			defer pauseFor(200 * time.Millisecond)
			left, err := b.Client.CoreV1().Pods("").List(ctx, metav1.ListOptions{LabelSelector: policy.OriginLabel})
			must(t, err)
			here := a.pods(ctx, t, "app=web")
			_, err = a.Client.AppsV1().Deployments("lab").Get(ctx, "web", metav1.GetOptions{})
			if len(here)+len(left.Items) > 1 || !apierrors.IsNotFound(err) {
				return fmt.Sprintf("%d at home, %d away, Deployment: %v", len(here), len(left.Items), err)
			}
			return ""
		})
		stop()
	}
}

func pauseFor(d time.Duration) { time.Sleep(d) }

func number(env string, fallback int) int {
	if n, err := strconv.Atoi(os.Getenv(env)); err == nil {
		return n
	}
	return fallback
}

// allRun says what is missing for n pods to run, and what the first of them waits for.
func (d *device) allRun(ctx context.Context, t *testing.T, provider *device, n int) string {
	run, first := 0, ""
	for _, p := range d.pods(ctx, t, "app=web") {
		if p.Status.Phase == corev1.PodRunning && p.Status.PodIP != "" {
			run++
		} else if first == "" {
			first = fmt.Sprintf("%s on %q: %s %s %s; away:", p.Name, p.Spec.NodeName, p.Status.Phase, p.Status.Reason, p.Status.Message)
			for _, q := range provider.away(ctx, t, string(p.UID)) {
				first += fmt.Sprintf(" %s on %q %s", q.Name, q.Spec.NodeName, q.Status.Phase)
			}
		}
	}
	if run == n {
		return ""
	}
	return fmt.Sprintf("%d of %d run; %s", run, n, first)
}

// flap makes the link bad, now and then, until stop is called.
func (f *loopback) flap(mode string) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer f.stall.set(false)
		defer f.setCut(false)
		for on := false; ; on = !on {
			switch mode {
			case "a link that breaks":
				f.setCut(on)
			case "a link that stalls":
				f.stall.set(on)
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(700 * time.Millisecond):
			}
		}
	}()
	return func() { cancel(); <-done }
}
