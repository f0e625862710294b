package offload

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/metrics/pkg/apis/metrics/v1beta1"
	"k8s.io/utils/ptr"

	"rivulet/offload/consumer/drain"
	"rivulet/offload/policy"
	"rivulet/test/harness/apiserver"
	"rivulet/test/harness/await"
)

// TestGiveAndTakeBack looks at pods that are away, and takes them back.
func TestGiveAndTakeBack(t *testing.T) {
	a, b, pod := talk(t)

	t.Run("what it uses is told under its name at home", func(t *testing.T) { a.tops(t, pod) })
	t.Run("the provider knows its tenant, and hears it", func(t *testing.T) {
		c := b.offload.Status().Consumers
		if len(c) != 1 || c[0].ID != a.identity.ID || !c[0].Peer || c[0].Silent != 0 || c[0].Twins["lab"] == "" {
			t.Errorf("%+v", c)
		}
	})
	t.Run("what pods have stored", func(t *testing.T) { a.writes(t, b, 40) })
	t.Run("watches that go mute", func(t *testing.T) { a.goMute(t, b) })
	t.Run("many pods over a bad link", func(t *testing.T) { a.burst(t, b, 30, "a link that breaks") })
	t.Run("drain respects budgets", func(t *testing.T) { a.drains(t, b) })
}

// TestStreams opens streams of a pod that is away, over links of all kinds.
func TestStreams(t *testing.T) {
	a, _, _ := talk(t)
	t.Run("twenty streams at once", func(t *testing.T) { a.manyStreams(t) })
	t.Run("a terminal and its sizes", func(t *testing.T) { a.terminal(t) })
	t.Run("attached", func(t *testing.T) { a.attachments(t) })
	t.Run("twenty port-forwards over a link that stalls", func(t *testing.T) { a.manyForwards(t) })
	t.Run("a large file over a link that stalls", func(t *testing.T) { a.largeFile(t) })
	t.Run("streams over a link that goes silent", func(t *testing.T) { a.silentLink(t) })
}

// talk is a world in which pod talk of a runs at b.
func talk(t *testing.T) (a, b *device, pod *corev1.Pod) {
	t.Helper()
	a, b = world(t)
	apiserver.StartKubelet(t, b.Server, "b-node")
	measures(b)
	a.offloadNamespace(t, "lab")
	a.ready(t, true)
	a.create(t, bare("talk", corev1.PodSpec{Tolerations: []corev1.Toleration{{Key: policy.VirtualTaint, Operator: corev1.TolerationOpExists}}}))
	return a, b, a.running(t, "talk", "")
}

func (d *device) ready(t *testing.T, want bool) {
	t.Helper()
	await.Empty(t, time.Minute, fmt.Sprintf("b is ready: %v", want), func(ctx context.Context) string {
		n, err := d.Client.CoreV1().Nodes().Get(ctx, "b", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if (nodeReady(n) == "") != want {
			return fmt.Sprint("ready: ", !want)
		}
		return ""
	})
}

// measures has d answer as if its kubelet had measured: every pod the same.
func measures(d *device) {
	d.fabric.mu.Lock()
	defer d.fabric.mu.Unlock()
	d.fabric.routes.HandleFunc("GET /k8s/apis/metrics.k8s.io/v1beta1/namespaces/{namespace}/pods", func(w http.ResponseWriter, r *http.Request) {
		pods, err := d.Client.CoreV1().Pods(r.PathValue("namespace")).List(r.Context(), metav1.ListOptions{LabelSelector: r.URL.Query().Get("labelSelector")})
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		var out v1beta1.PodMetricsList
		for _, p := range pods.Items {
			out.Items = append(out.Items, v1beta1.PodMetrics{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name}, Timestamp: metav1.Now(),
				Containers: []v1beta1.ContainerMetrics{{Name: "web", Usage: corev1.ResourceList{
					corev1.ResourceCPU: resource.MustParse("250m"), corev1.ResourceMemory: resource.MustParse("32Mi")}}}})
		}
		_ = json.NewEncoder(w).Encode(out)
	})
}

func (d *device) tops(t *testing.T, pod *corev1.Pod) {
	await.Empty(t, time.Minute, "the virtual node's kubelet API tells", func(ctx context.Context) string {
		raw, err := d.Client.CoreV1().RESTClient().Get().Resource("nodes").Name("b").SubResource("proxy").Suffix("stats/summary").DoRaw(ctx)
		if err != nil {
			return err.Error()
		}
		var s stats.Summary
		must(t, json.Unmarshal(raw, &s))
		if len(s.Pods) != 1 || s.Pods[0].PodRef != (stats.PodReference{Namespace: "lab", Name: "talk", UID: string(pod.UID)}) ||
			*s.Pods[0].Containers[0].CPU.UsageNanoCores != 250_000_000 || *s.Node.Memory.WorkingSetBytes != 32<<20 {
			return string(raw)
		}
		return ""
	})
	raw, err := d.Client.CoreV1().RESTClient().Get().Resource("nodes").Name("b").SubResource("proxy").Suffix("metrics/resource").DoRaw(t.Context())
	if err != nil || !strings.Contains(string(raw), `pod_memory_working_set_bytes{namespace="lab",pod="talk"} 33554432`) {
		t.Errorf("%s %v", raw, err)
	}
}

// shouts runs a command that gives its input back in capitals.
func (d *device) shouts(ctx context.Context, in io.Reader) (string, error) {
	r := d.Client.CoreV1().RESTClient().Post().Resource("pods").Namespace("lab").Name("talk").SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Command: []string{"shout", "0"}, Stdin: true, Stdout: true}, scheme.ParameterCodec)
	e, err := remotecommand.NewWebSocketExecutor(d.Config, "GET", r.URL().String())
	if err != nil {
		return "", err
	}
	var out bytes.Buffer
	if err := e.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: in, Stdout: &out}); err != nil {
		return "", err // what copies the output may still be at work
	}
	return out.String(), nil
}

func (d *device) manyStreams(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	var resets atomic.Int32
	for i := range 20 {
		wg.Go(func() { // as cp does: a file goes in, a file comes out
			in := strings.Repeat(fmt.Sprintf("file %d ", i), 16<<10)
			out, err := d.shouts(ctx, strings.NewReader(in))
			// An API server resets a client whose ping it has not read at the end: client-go pings after five seconds, and
			// home's API server does that to this test.
			if err != nil && strings.Contains(err.Error(), "connection reset by peer") && resets.Add(1) <= 3 {
				out, err = d.shouts(ctx, strings.NewReader(in))
			}
			if err != nil || out != strings.ToUpper(in) {
				t.Errorf("exec %d: %d bytes of %d, %v", i, len(out), len(in), err)
			}
		})
		wg.Go(func() {
			follow, err := d.Client.CoreV1().Pods("lab").GetLogs("talk", &corev1.PodLogOptions{Follow: true}).Stream(ctx)
			if err != nil {
				t.Errorf("log %d: %v", i, err)
				return
			}
			defer follow.Close()
			if err := until(follow, "line 5\n"); err != nil {
				t.Errorf("log %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	text, err := d.Client.CoreV1().Pods("lab").GetLogs("talk", &corev1.PodLogOptions{Previous: true, SinceSeconds: ptr.To[int64](60)}).DoRaw(ctx)
	if err != nil || !strings.HasPrefix(string(text), "previous log of talk/") {
		t.Errorf("%q %v", text, err)
	}
}

// until reads until the text has come.
func until(r io.Reader, text string) error {
	var all bytes.Buffer
	for buf := make([]byte, 4096); !strings.Contains(all.String(), text); {
		n, err := r.Read(buf)
		all.Write(buf[:n])
		if err != nil {
			return fmt.Errorf("after %d bytes: %w", all.Len(), err)
		}
	}
	return nil
}

type queue chan remotecommand.TerminalSize

func (q queue) Next() *remotecommand.TerminalSize {
	if size, ok := <-q; ok {
		return &size
	}
	return nil
}

func (d *device) terminal(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	r := d.Client.CoreV1().RESTClient().Post().Resource("pods").Namespace("lab").Name("talk").SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Command: []string{"sizes"}, Stdin: true, Stdout: true, TTY: true}, scheme.ParameterCodec)
	e, err := remotecommand.NewWebSocketExecutor(d.Config, "GET", r.URL().String())
	must(t, err)
	sizes := make(queue, 2)
	sizes <- remotecommand.TerminalSize{Width: 80, Height: 24}
	sizes <- remotecommand.TerminalSize{Width: 132, Height: 43}
	defer close(sizes)
	in, keep := io.Pipe()
	defer keep.Close()
	var out bytes.Buffer
	err = e.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: in, Stdout: &out, Tty: true, TerminalSizeQueue: sizes})
	if err != nil || strings.ReplaceAll(out.String(), "\r", "") != "80x24\n132x43\n" {
		t.Errorf("%q %v", out.String(), err)
	}
}

func (d *device) silentLink(t *testing.T) {
	type end struct {
		what string
		out  string
		err  error
	}
	ends := make(chan end, 2)
	in, typed := io.Pipe()
	go func() {
		out, err := d.shouts(t.Context(), in)
		ends <- end{"exec", out, err}
	}()
	_, err := io.WriteString(typed, "half ")
	must(t, err)
	d.fabric.stall.set(true)
	time.Sleep(3 * time.Second) // a flap: that nothing ends is the point
	d.fabric.stall.set(false)
	_, err = io.WriteString(typed, "a word")
	must(t, err)
	must(t, typed.Close())
	if e := <-ends; e.err != nil || e.out != "HALF A WORD" {
		t.Fatalf("a short flap ends an exec: %q %v", e.out, e.err)
	}

	in, typed = io.Pipe()
	defer typed.Close()
	go func() {
		out, err := d.shouts(t.Context(), in)
		ends <- end{"exec", out, err}
	}()
	_, err = io.WriteString(typed, "half ")
	must(t, err)
	follow, err := d.Client.CoreV1().Pods("lab").GetLogs("talk", &corev1.PodLogOptions{Follow: true}).Stream(t.Context())
	must(t, err)
	defer follow.Close()
	must(t, until(follow, "line 2\n"))
	go func() {
		_, err := io.Copy(io.Discard, follow)
		ends <- end{"log", "", err}
	}()
	d.fabric.stall.set(true)
	defer d.fabric.stall.set(false)
	begun := time.Now()
	for range 2 {
		select {
		case e := <-ends:
			t.Logf("after %5.1f s: the %s ended: %v", time.Since(begun).Seconds(), e.what, e.err)
			if e.what == "exec" && e.err == nil { // what it says, TestALostExecSaysWhy asserts
				t.Error("an exec that was cut off ends well")
			}
		case <-time.After(60 * time.Second):
			t.Fatal("a stream hangs over a link that is silent")
		}
	}
	d.ready(t, false)
	begun = time.Now()
	if _, err := d.shouts(t.Context(), strings.NewReader("x")); err == nil {
		t.Error("an exec works over a silent link")
	} else if took := time.Since(begun); took > 40*time.Second {
		t.Errorf("it takes %s to say that there is no link", took)
	} else {
		t.Logf("after %5.1f s: a new exec fails: %v", took.Seconds(), err)
	}
	d.fabric.stall.set(false)
	d.ready(t, true)
	if out, err := d.shouts(t.Context(), strings.NewReader("again")); err != nil || out != "AGAIN" {
		t.Errorf("the first exec afterwards: %q %v", out, err)
	}
}

func (d *device) drains(t *testing.T, b *device) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	d.create(t, web(3))
	await.Empty(t, time.Minute, "three run", func(ctx context.Context) string { return d.allRun(t, b, 3) })
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: policyv1.PodDisruptionBudgetSpec{
		MinAvailable: ptr.To(intstr.FromInt32(2)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}}
	_, err := d.Client.PolicyV1().PodDisruptionBudgets("lab").Create(ctx, budget, metav1.CreateOptions{})
	must(t, err)
	await.Empty(t, time.Minute, "the budget has counted", func(ctx context.Context) string {
		now, err := d.Client.PolicyV1().PodDisruptionBudgets("lab").Get(ctx, "web", metav1.GetOptions{})
		must(t, err)
		if now.Status.DisruptionsAllowed != 1 {
			return fmt.Sprintf("%+v", now.Status)
		}
		return ""
	})

	dr := &drain.Drain{Client: d.Client, Nodes: []string{"b"}, Retry: 200 * time.Millisecond}
	var alone *drain.Unmanaged
	if err := dr.Run(ctx); !errors.As(err, &alone) || len(alone.Pods) != 1 {
		t.Fatalf("%v, want the bare pod to be named", err)
	}
	must(t, d.Client.CoreV1().Pods("lab").Delete(ctx, "talk", metav1.DeleteOptions{}))
	d.gone(t, "talk")

	var mu sync.Mutex
	count := map[string]int{}
	dr.Report = func(e drain.Event) {
		mu.Lock()
		defer mu.Unlock()
		count[e.What]++
		t.Logf("%+v", e)
	}
	finished := make(chan error, 1)
	go func() { finished <- dr.Run(ctx) }()
	await.Empty(t, time.Minute, "one went, two may not: their replacement has no other node", func(context.Context) string {
		mu.Lock()
		defer mu.Unlock()
		if count[drain.Gone] != 1 || count[drain.Blocked] < 2 {
			return fmt.Sprint(count)
		}
		return ""
	})
	if n := len(d.onB(ctx, t)); n != 2 {
		t.Errorf("%d pods are left, want 2", n)
	}
	must(t, d.Client.PolicyV1().PodDisruptionBudgets("lab").Delete(ctx, "web", metav1.DeleteOptions{}))
	if err := <-finished; err != nil {
		t.Fatal(err)
	}
	left, err := b.Client.CoreV1().Pods("").List(ctx, metav1.ListOptions{LabelSelector: policy.OriginLabel})
	must(t, err)
	if len(left.Items) != 0 {
		t.Errorf("%d pods are left at b", len(left.Items))
	}
	must(t, drain.Cordon(ctx, d.Client, "b", false))
	await.Empty(t, time.Minute, "uncordoned, they go there again", func(ctx context.Context) string { return d.allRun(t, b, 3) })

	// Called home, a namespace's pods leave as their budget allows, too.
	budget.ResourceVersion = ""
	_, err = d.Client.PolicyV1().PodDisruptionBudgets("lab").Create(ctx, budget, metav1.CreateOptions{})
	must(t, err)
	_, err = d.Client.CoreV1().Namespaces().Patch(ctx, "lab", types.MergePatchType, []byte(`{"metadata":{"labels":{"rivulet.dev/offload":"off"}}}`), metav1.PatchOptions{})
	must(t, err)
	await.Empty(t, time.Minute, "called home: one went, two are held", func(ctx context.Context) string {
		events, err := d.Client.CoreV1().Events("lab").List(ctx, metav1.ListOptions{FieldSelector: "reason=OffloadHeld"})
		must(t, err)
		if n := len(d.onB(ctx, t)); n != 2 || len(events.Items) < 2 {
			return fmt.Sprintf("%d on b, %d events", n, len(events.Items))
		}
		return ""
	})
	must(t, d.Client.PolicyV1().PodDisruptionBudgets("lab").Delete(ctx, "web", metav1.DeleteOptions{}))
	await.Empty(t, time.Minute, "without the budget all go", func(ctx context.Context) string {
		if n := len(d.onB(ctx, t)); n != 0 {
			return fmt.Sprintf("%d on b", n)
		}
		return ""
	})

	// Drained or not, a node keeps its switch when what keeps it starts again.
	must(t, drain.Cordon(ctx, d.Client, "b", true))
	d.stop()
	d.start()
	_, err = d.Client.CoreV1().Nodes().Patch(ctx, "b", types.MergePatchType, []byte(`{"metadata":{"annotations":{"touched":"yes"}}}`), metav1.PatchOptions{})
	must(t, err)
	d.ready(t, true)
	n, err := d.Client.CoreV1().Nodes().Get(ctx, "b", metav1.GetOptions{})
	must(t, err)
	if !n.Spec.Unschedulable {
		t.Error("a restart uncordons")
	}
}

func (d *device) onB(ctx context.Context, t *testing.T) (out []corev1.Pod) {
	for _, p := range d.pods(ctx, t, "app=web") {
		if p.Spec.NodeName == "b" && p.DeletionTimestamp == nil {
			out = append(out, p)
		}
	}
	return out
}
