package offload

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/offload/policy"
	"rivulet/test/harness/apiserver"
	"rivulet/test/harness/await"
)

// TestManyPodsOverABadLink is a search for what is rare: rounds of pods sent away
// and taken back while the link stalls and breaks, and none is left waiting. One
// round is part of TestGiveAndTakeBack.
func TestManyPodsOverABadLink(t *testing.T) {
	rounds, pods := number("RIVULET_TEST_ROUNDS", 0), number("RIVULET_TEST_PODS", 50)
	if rounds == 0 {
		t.Skip("needs RIVULET_TEST_ROUNDS, a number; RIVULET_TEST_PODS in each are 50")
	}
	a, b := world(t)
	apiserver.StartKubelet(t, b.Server, "b-node")
	a.offloadNamespace(t, "lab")
	a.ready(t, true)
	for i := range rounds {
		a.burst(t, b, pods, []string{"a link that breaks", "a link that stalls", "a steady link"}[i%3])
	}
}

// burst sends pods away over a link of some kind, and takes them back.
func (d *device) burst(t *testing.T, b *device, pods int, mode string) {
	ctx := t.Context()
	stop := d.fabric.flap(mode)
	defer stop()
	d.create(t, web(int32(pods)))
	await.Empty(t, 2*time.Minute, fmt.Sprintf("%d pods run over %s", pods, mode), func(context.Context) string {
		return d.allRun(t, b, pods)
	})
	foreground := metav1.DeletePropagationForeground
	must(t, d.Client.AppsV1().Deployments("lab").Delete(ctx, "web", metav1.DeleteOptions{PropagationPolicy: &foreground}))
	await.Empty(t, 2*time.Minute, "all gone", func(ctx context.Context) string {
		left, err := b.Client.CoreV1().Pods("").List(ctx, metav1.ListOptions{LabelSelector: policy.OriginLabel + ",app=web"})
		must(t, err)
		here := d.pods(ctx, t, "app=web")
		_, err = d.Client.AppsV1().Deployments("lab").Get(ctx, "web", metav1.GetOptions{})
		if len(here)+len(left.Items) > 0 || !apierrors.IsNotFound(err) {
			return fmt.Sprintf("%d at home, %d away, Deployment: %v", len(here), len(left.Items), err)
		}
		return ""
	})
}

// goMute has every watch of the provider go mute, in connections that live: each ends when
// its time is over, and the next shows what was missed.
func (d *device) goMute(t *testing.T, b *device) {
	away := corev1.PodSpec{Tolerations: []corev1.Toleration{{Key: policy.VirtualTaint, Operator: corev1.TolerationOpExists}}}
	runs := func(name string) {
		await.Empty(t, 2*time.Minute, name+" runs", func(ctx context.Context) string {
			p, err := d.Client.CoreV1().Pods("lab").Get(ctx, name, metav1.GetOptions{})
			if err != nil || p.Status.Phase != corev1.PodRunning {
				return fmt.Sprintf("%v %s %s", err, p.Status.Phase, p.Status.Message)
			}
			return ""
		})
	}
	d.create(t, bare("before", away))
	runs("before")
	d.fabric.mute.all()
	// One that is made and changed: the second change meets a twin whose watch does not show the first.
	maps := d.Client.CoreV1().ConfigMaps("lab")
	quiet, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "quiet", Annotations: map[string]string{policy.ReflectAnnotation: policy.ReflectOn}}}, metav1.CreateOptions{})
	must(t, err)
	quietAway := func(want string) {
		await.Empty(t, 2*time.Minute, "ConfigMap quiet is away: "+want, func(ctx context.Context) string {
			m, err := b.Client.CoreV1().ConfigMaps(d.twin("lab")).Get(ctx, "quiet", metav1.GetOptions{})
			if err != nil || m.Data["say"] != want {
				return fmt.Sprintf("%v %v", err, m.Data)
			}
			return ""
		})
	}
	quietAway("")
	quiet.Data = map[string]string{"say": "something"}
	_, err = maps.Update(t.Context(), quiet, metav1.UpdateOptions{})
	must(t, err)
	d.create(t, bare("after", away))
	must(t, d.Client.CoreV1().Pods("lab").Delete(t.Context(), "before", metav1.DeleteOptions{}))
	runs("after")
	quietAway("something")
	must(t, maps.Delete(t.Context(), "quiet", metav1.DeleteOptions{}))
	d.gone(t, "before")
	must(t, d.Client.CoreV1().Pods("lab").Delete(t.Context(), "after", metav1.DeleteOptions{}))
	d.gone(t, "after")
}

func number(env string, fallback int) int {
	if n, err := strconv.Atoi(os.Getenv(env)); err == nil {
		return n
	}
	return fallback
}

// allRun says what is missing for n pods to run, and what the first of them waits for.
func (d *device) allRun(t *testing.T, provider *device, n int) string {
	run, first := 0, ""
	for _, p := range d.pods(t.Context(), t, "app=web") {
		if p.Status.Phase == corev1.PodRunning && p.Status.PodIP != "" {
			run++
		} else if first == "" {
			first = fmt.Sprintf("%s on %q: %s %s %s; away:", p.Name, p.Spec.NodeName, p.Status.Phase, p.Status.Reason, p.Status.Message)
			for _, q := range provider.away(t.Context(), t, string(p.UID)) {
				first += fmt.Sprintf(" %s on %q %s", q.Name, q.Spec.NodeName, q.Status.Phase)
			}
		}
	}
	if run == n {
		return ""
	}
	return fmt.Sprintf("%d of %d run; %s", run, n, first)
}

// roundTrip is how long a new connection and one request take, whatever the answer: a link that is whole for less than
// that is a cut one. On a machine with much to do it is more than a second.
func (f *loopback) roundTrip(ctx context.Context) time.Duration {
	begun := time.Now()
	client, base, err := f.Client(f.Links()[0].ID)
	if err != nil {
		return 0
	}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base, nil)
	if err != nil {
		return 0
	}
	if res, err := client.Do(req); err == nil {
		_ = res.Body.Close()
	}
	return time.Since(begun)
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
			lasts := 700 * time.Millisecond
			if !on {
				lasts = max(lasts, 3*f.roundTrip(ctx))
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(lasts):
			}
		}
	}()
	return func() { cancel(); <-done }
}
