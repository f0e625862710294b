package offload

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"rivulet/offload/consumer/drain"
	"rivulet/offload/consumer/fit"
	"rivulet/offload/policy"
	"rivulet/test/harness/apiserver"
	"rivulet/test/harness/await"
)

// TestTwoPlatforms is the story of a provider with nodes of two architectures, on real
// API servers.
func TestTwoPlatforms(t *testing.T) {
	a, b := world(t)
	ctx := t.Context()
	a.stop()
	a.missing = 3 * time.Second
	a.images = func() (map[string][]string, error) {
		return map[string][]string{"docker.io/library/known:latest": {"arm64"}, "docker.io/library/both:1": {"amd64", "arm64"}}, nil
	}
	a.start()
	apiserver.StartKubelet(t, b.Server, "b-arm")
	measures(b)
	a.ready(t, true)
	amd := apiserver.StartKubeletOf(t, b.Server, "b-amd", "amd64", "10.42.4.0/23")
	_, err := b.Client.CoreV1().Nodes().Patch(ctx, "b-amd", types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"disk":"ssd"}},"status":{"capacity":{"nvidia.com/gpu":"2"},"allocatable":{"nvidia.com/gpu":"2"}}}`), metav1.PatchOptions{}, "status")
	must(t, err)
	_, err = b.Client.CoreV1().Nodes().Patch(ctx, "b-amd", types.MergePatchType, []byte(`{"metadata":{"labels":{"disk":"ssd"}}}`), metav1.PatchOptions{})
	must(t, err)
	second := func(ctx context.Context) string {
		n, err := a.Client.CoreV1().Nodes().Get(ctx, "b-amd64", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		gpus := n.Status.Allocatable["nvidia.com/gpu"]
		if n.Labels[corev1.LabelArchStable] != "amd64" || n.Labels["disk"] != "ssd" || n.Labels[policy.TargetLabel] != "b" || gpus.Value() != 2 || n.Status.Allocatable.Cpu().Value() != 4 {
			return fmt.Sprint(n.Labels, n.Status.Allocatable)
		}
		return nodeReady(n)
	}
	await.Empty(t, time.Minute, "the second platform is a node of its own, with its labels and GPUs", second)
	first, err := a.Client.CoreV1().Nodes().Get(ctx, "b", metav1.GetOptions{})
	must(t, err)
	if gpus := first.Status.Allocatable["nvidia.com/gpu"]; first.Labels[corev1.LabelArchStable] != "arm64" || first.Labels["disk"] != "" || !gpus.IsZero() {
		t.Errorf("%v %v", first.Labels, first.Status.Allocatable)
	}

	a.offloadNamespace(t, "lab")
	_, err = a.Client.CoreV1().Namespaces().Patch(ctx, "lab", types.MergePatchType, []byte(`{"metadata":{"labels":{"rivulet.dev/offload":"remote","rivulet.dev/offload-to":"b"}}}`), metav1.PatchOptions{})
	must(t, err)
	await.Empty(t, time.Minute, "the namespace is offloaded to b alone", func(ctx context.Context) string {
		made, err := a.Client.CoreV1().Pods("lab").Create(ctx, bare("probe", corev1.PodSpec{}), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil || made.Spec.Affinity == nil || !strings.Contains(fmt.Sprint(made.Spec.Affinity.NodeAffinity), policy.TargetLabel) {
			return fmt.Sprint(err)
		}
		return ""
	})
	for name, selector := range map[string]map[string]string{"arm": {corev1.LabelArchStable: "arm64"}, "amd": {corev1.LabelArchStable: "amd64"}, "fast": {"disk": "ssd"}} {
		a.create(t, bare(name, corev1.PodSpec{NodeSelector: selector}))
	}
	where := func(pod *corev1.Pod) string {
		away := b.away(ctx, t, string(pod.UID))
		if len(away) != 1 {
			return fmt.Sprint(len(away), " pods")
		}
		return away[0].Spec.NodeName
	}
	pods := map[string]*corev1.Pod{}
	for name, want := range map[string][2]string{"arm": {"b", "b-arm"}, "amd": {"b-amd64", "b-amd"}, "fast": {"b-amd64", "b-amd"}} {
		p := a.running(t, name, "")
		pods[name] = p
		if p.Spec.NodeName != want[0] || where(p) != want[1] {
			t.Errorf("%s is bound to %s and runs on %s, want %v", name, p.Spec.NodeName, where(p), want)
		}
	}

	t.Run("each node tells of its own pods, and reaches them", func(t *testing.T) {
		for node, want := range map[string][]string{"b": {"arm"}, "b-amd64": {"amd", "fast"}} {
			await.Empty(t, time.Minute, node+" tells", func(ctx context.Context) string {
				raw, err := a.Client.CoreV1().RESTClient().Get().Resource("nodes").Name(node).SubResource("proxy").Suffix("stats/summary").DoRaw(ctx)
				if err != nil {
					return err.Error()
				}
				var s stats.Summary
				must(t, json.Unmarshal(raw, &s))
				var names []string
				for _, p := range s.Pods {
					names = append(names, p.PodRef.Name)
				}
				if slices.Sort(names); !slices.Equal(names, want) {
					return fmt.Sprint(names)
				}
				return ""
			})
		}
		for name := range pods {
			if text, err := a.Client.CoreV1().Pods("lab").GetLogs(name, &corev1.PodLogOptions{}).DoRaw(ctx); err != nil || !strings.HasPrefix(string(text), "log of "+name) {
				t.Errorf("%s: %q %v", name, text, err)
			}
		}
		st := a.offload.Status().VirtualNodes
		if len(st) != 2 || st[0].Pods != 1 || st[1].Pods != 2 || st[1].Architecture != "amd64" || st[1].Target != "b" {
			t.Errorf("%+v", st)
		}
	})
	t.Run("a restart of home changes nothing", func(t *testing.T) {
		before := map[string]types.UID{}
		for name, p := range pods {
			before[name] = b.away(ctx, t, string(p.UID))[0].UID
		}
		a.stop()
		a.start()
		await.Empty(t, time.Minute, "streams work again", func(context.Context) string {
			for name := range pods {
				if _, err := a.Client.CoreV1().Pods("lab").GetLogs(name, &corev1.PodLogOptions{}).DoRaw(ctx); err != nil {
					return err.Error()
				}
			}
			return second(ctx)
		})
		for name, p := range pods {
			if after := b.away(ctx, t, string(p.UID)); len(after) != 1 || after[0].UID != before[name] {
				t.Errorf("%s was replaced: %v", name, after)
			}
		}
	})
	t.Run("all of b is cordoned and drained", func(t *testing.T) {
		nodes, err := drain.Find(ctx, a.Client, "b")
		must(t, err)
		var names []string
		for _, n := range nodes {
			names = append(names, n.Name)
		}
		d := &drain.Drain{Client: a.Client, Nodes: names, Force: true}
		must(t, d.Run(ctx))
		if left := a.pods(ctx, t, ""); len(left) != 0 || len(names) != 2 {
			t.Errorf("%d pods are left on %v", len(left), names)
		}
		for _, n := range names {
			must(t, drain.Cordon(ctx, a.Client, n, false))
		}
	})
	t.Run("an image that does not run there", func(t *testing.T) { misfit(t, a, b) })
	t.Run("an image that home knows is not tried where it does not run", func(t *testing.T) { foreseen(t, a) })
	t.Run("a platform that is gone takes its node along", func(t *testing.T) {
		amd.Stop()
		must(t, b.Client.CoreV1().Nodes().Delete(ctx, "b-amd", metav1.DeleteOptions{}))
		await.Empty(t, time.Minute, "b-amd64 is gone, b is not", func(ctx context.Context) string {
			list, err := a.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: policy.VirtualNodeLabel})
			must(t, err)
			if len(list.Items) != 1 || list.Items[0].Name != "b" {
				return fmt.Sprint(len(list.Items), " nodes")
			}
			return nodeReady(&list.Items[0])
		})
	})
}

// foreseen are pods with an image that home has the index of.
func foreseen(t *testing.T, a *device) {
	ctx := t.Context()
	try := func(image string) *corev1.Pod {
		p := bare("probe", spec())
		p.Spec.Containers[0].Image = image
		got, err := a.Client.CoreV1().Pods("lab").Create(ctx, p, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		must(t, err)
		return got
	}
	for _, image := range []string{"known", "known:latest", "docker.io/library/known:latest"} {
		await.Empty(t, time.Minute, image+" is kept off amd64", func(context.Context) string {
			if !fit.Avoids(try(image), "amd64") {
				return "not yet"
			}
			return ""
		})
		if fit.Avoids(try(image), "arm64") {
			t.Errorf("%s is kept off arm64, too", image)
		}
	}
	if fit.Avoids(try("both:1"), "amd64") {
		t.Error("an image for both is kept off one")
	}
}

// misfit has a provider's kubelet say that an image has nothing for its platform.
func misfit(t *testing.T, a, b *device) {
	ctx := t.Context()
	must(t, drain.Cordon(ctx, a.Client, "b", true))
	a.create(t, web(1))
	var first corev1.Pod
	await.Empty(t, time.Minute, "it runs on b-amd64", func(ctx context.Context) string {
		pods := a.pods(ctx, t, "app=web")
		if len(pods) != 1 || pods[0].Spec.NodeName != "b-amd64" || pods[0].Status.Phase != corev1.PodRunning {
			return fmt.Sprint(len(pods))
		}
		first = pods[0]
		return ""
	})
	// The stand-in has it running; what a kubelet says between two tries follows.
	await.Empty(t, time.Minute, "the kubelet says so", func(ctx context.Context) string {
		away := b.away(ctx, t, string(first.UID))
		if len(away) != 1 || len(away[0].Status.ContainerStatuses) != 1 {
			return fmt.Sprint(len(away), " pods")
		}
		p := &away[0]
		p.Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull",
			Message: `failed to pull and unpack image "web:1": no match for platform in manifest: not found`}}
		p.Status.ContainerStatuses[0].Ready = false
		if _, err := b.Client.CoreV1().Pods(p.Namespace).UpdateStatus(ctx, p, metav1.UpdateOptions{}); err != nil {
			return err.Error()
		}
		return ""
	})
	await.Empty(t, time.Minute, "it is handed back, and the next one goes nowhere else than where it may run", func(ctx context.Context) string {
		pods := a.pods(ctx, t, "app=web")
		if len(pods) != 1 || pods[0].UID == first.UID || !fit.Avoids(&pods[0], "amd64") || pods[0].Spec.NodeName != "" {
			return fmt.Sprint(len(pods), " pods")
		}
		return ""
	})
	events, err := a.Client.CoreV1().Events("lab").List(ctx, metav1.ListOptions{FieldSelector: "reason=ImagePlatform"})
	must(t, err)
	if len(events.Items) != 1 || !strings.Contains(events.Items[0].Message, "image web:1 does not run on b-amd64 (linux/amd64): no match for platform") {
		t.Errorf("%+v", events.Items)
	}
	must(t, drain.Cordon(ctx, a.Client, "b", false))
	await.Empty(t, time.Minute, "there is room on arm64: it runs there", func(ctx context.Context) string {
		pods := a.pods(ctx, t, "app=web")
		if len(pods) != 1 || pods[0].Spec.NodeName != "b" || pods[0].Status.Phase != corev1.PodRunning {
			return fmt.Sprint(len(pods))
		}
		return ""
	})
	must(t, a.Client.AppsV1().Deployments("lab").Delete(ctx, "web", metav1.DeleteOptions{}))
}
