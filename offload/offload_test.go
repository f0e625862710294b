package offload

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
	"k8s.io/utils/ptr"

	"rivulet/offload/policy"
	"rivulet/test/harness/apiserver"
	"rivulet/test/harness/await"
)

// TestPodsRunAway is the whole story of a consumer and a provider, on two real
// API servers: only containers and the tunnel are not there.
func TestPodsRunAway(t *testing.T) {
	a, b := world(t)
	apiserver.StartKubelet(t, b.Server, "b-node")
	ctx := t.Context()

	await.Empty(t, time.Minute, "b is a Ready virtual node of a, with b's architecture", func(ctx context.Context) string {
		n, err := a.Client.CoreV1().Nodes().Get(ctx, "b", metav1.GetOptions{})
		switch {
		case err != nil:
			return err.Error()
		case n.Status.NodeInfo.Architecture != "arm64", n.Labels[corev1.LabelArchStable] != "arm64":
			return "architecture " + n.Status.NodeInfo.Architecture
		case n.Status.Allocatable.Cpu().IsZero():
			return "no room"
		}
		return nodeReady(n)
	})

	a.offloadNamespace(t, "lab")
	a.create(t, web(2))
	var pod corev1.Pod
	await.Empty(t, time.Minute, "both pods run away, with addresses as home sees them", func(ctx context.Context) string {
		pods := a.pods(ctx, t, "app=web")
		if len(pods) != 2 {
			return fmt.Sprintf("%d pods", len(pods))
		}
		for _, p := range pods {
			if p.Spec.NodeName != "b" || p.Status.Phase != corev1.PodRunning || !strings.HasPrefix(p.Status.PodIP, "10.77.0.") || p.Status.HostIP != "127.0.0.1" {
				return fmt.Sprintf("%s on %q: %s %s %s", p.Name, p.Spec.NodeName, p.Status.Phase, p.Status.PodIP, p.Status.Message)
			}
		}
		pod = pods[0]
		return ""
	})
	await.Empty(t, time.Minute, "the Deployment is available", func(ctx context.Context) string {
		d, err := a.Client.AppsV1().Deployments("lab").Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if d.Status.AvailableReplicas != 2 {
			return fmt.Sprintf("%d available", d.Status.AvailableReplicas)
		}
		return ""
	})

	t.Run("streams", func(t *testing.T) { streams(t, a, pod.Name) })

	t.Run("home's API server", func(t *testing.T) { homeAPI(t, a, b, &pod) })

	t.Run("what the provider says of a pod", func(t *testing.T) { providerEvents(t, a, b, &pod) })
	t.Run("kubectl debug", func(t *testing.T) { debugging(t, a, b, &pod) })

	t.Run("a changed label reaches the away pod", func(t *testing.T) {
		_, err := a.Client.CoreV1().Pods("lab").Patch(ctx, pod.Name, types.MergePatchType, []byte(`{"metadata":{"labels":{"track":"canary"}}}`), metav1.PatchOptions{})
		must(t, err)
		await.Empty(t, time.Minute, "label is there", func(ctx context.Context) string {
			away := b.away(ctx, t, string(pod.UID))
			if len(away) != 1 || away[0].Labels["track"] != "canary" {
				return fmt.Sprintf("%d pods", len(away))
			}
			return ""
		})
	})

	t.Run("a change of its spec, too", func(t *testing.T) { podChanges(t, a, b) })
	t.Run("what the kubelet of its node says", func(t *testing.T) { kubeletAPI(t, a, &pod) })
	t.Run("a pod whose probe names a host says so", func(t *testing.T) { namesAHost(t, a, b) })

	t.Run("a pod that only the provider refuses comes home, or says why", func(t *testing.T) { refusedThere(t, a, b) })

	t.Run("a pod that the provider's policy holds says so", func(t *testing.T) { gatedThere(t, a, b) })

	t.Run("a Job runs once and stays finished", func(t *testing.T) {
		a.create(t, job("sum", map[string]string{apiserver.EndsLabel: "0"}))
		await.Empty(t, time.Minute, "job complete", func(ctx context.Context) string {
			j, err := a.Client.BatchV1().Jobs("lab").Get(ctx, "sum", metav1.GetOptions{})
			if err != nil {
				return err.Error()
			}
			if j.Status.Succeeded != 1 {
				return fmt.Sprintf("%+v", j.Status)
			}
			return ""
		})
	})

	t.Run("a pod that cannot run away says why", func(t *testing.T) {
		// In a namespace that bursts the scheduler would keep it at home.
		p := bare("host", corev1.PodSpec{HostNetwork: true, Tolerations: []corev1.Toleration{{Key: policy.VirtualTaint, Operator: corev1.TolerationOpExists}}})
		a.create(t, p)
		await.Empty(t, time.Minute, "refused", func(ctx context.Context) string {
			got, err := a.Client.CoreV1().Pods("lab").Get(ctx, "host", metav1.GetOptions{})
			must(t, err)
			if got.Status.Phase != corev1.PodPending || got.Status.Reason != "OffloadRefused" || !strings.Contains(got.Status.Message, "spec.hostNetwork") {
				return fmt.Sprintf("%s %s %s", got.Status.Phase, got.Status.Reason, got.Status.Message)
			}
			events, err := a.Client.CoreV1().Events("lab").List(ctx, metav1.ListOptions{FieldSelector: "reason=OffloadRefused"})
			if err != nil || len(events.Items) == 0 {
				return "no event"
			}
			return ""
		})
		must(t, a.Client.CoreV1().Pods("lab").Delete(ctx, "host", metav1.DeleteOptions{}))
		a.gone(t, "host")
	})

	t.Run("a restart of the consumer changes nothing that runs", func(t *testing.T) {
		before, token := b.away(ctx, t, string(pod.UID))[0], tokenOf(t, b, &pod)
		a.stop()
		a.start()
		await.Empty(t, time.Minute, "streams work again, through a new port", func(context.Context) string {
			if _, err := a.Client.CoreV1().Pods("lab").GetLogs(pod.Name, &corev1.PodLogOptions{}).DoRaw(ctx); err != nil {
				return err.Error()
			}
			return ""
		})
		after := b.away(ctx, t, string(pod.UID))
		if len(after) != 1 || after[0].UID != before.UID {
			t.Fatalf("the away pod was replaced: %v", after)
		}
		if tokenOf(t, b, &pod) != token {
			t.Error("its token was renewed before its time")
		}
	})

	t.Run("home ends before it has written that a pod was sent", func(t *testing.T) { untold(t, a, b) })

	t.Run("an away pod deleted by the provider comes back as a restart", func(t *testing.T) {
		before := b.away(ctx, t, string(pod.UID))[0]
		must(t, b.Client.CoreV1().Pods(before.Namespace).Delete(ctx, before.Name, metav1.DeleteOptions{}))
		await.Empty(t, time.Minute, "restart counted", func(ctx context.Context) string {
			p, err := a.Client.CoreV1().Pods("lab").Get(ctx, pod.Name, metav1.GetOptions{})
			must(t, err)
			if p.UID != pod.UID || len(p.Status.ContainerStatuses) != 1 || p.Status.ContainerStatuses[0].RestartCount != 1 || p.Status.PodIP == "" {
				return fmt.Sprintf("%+v", p.Status.ContainerStatuses)
			}
			return ""
		})
	})

	t.Run("what runs away is its own record", func(t *testing.T) { itsOwnRecord(t, a, b, &pod) })

	t.Run("during a cut nothing is decided, and after it everything is", func(t *testing.T) {
		a.fabric.setCut(true)
		await.Empty(t, time.Minute, "the virtual node is NotReady and says why", func(ctx context.Context) string {
			n, err := a.Client.CoreV1().Nodes().Get(ctx, "b", metav1.GetOptions{})
			must(t, err)
			for _, c := range n.Status.Conditions {
				if c.Type == corev1.NodeReady && c.Status == corev1.ConditionFalse && strings.Contains(c.Message, "cut") {
					return ""
				}
			}
			return "still ready"
		})
		must(t, a.Client.CoreV1().Pods("lab").Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](1)}))
		time.Sleep(2 * time.Second) // longer than the grace period: that it lasts is the point
		p, err := a.Client.CoreV1().Pods("lab").Get(ctx, pod.Name, metav1.GetOptions{})
		must(t, err)
		if p.DeletionTimestamp == nil || p.Status.Phase != corev1.PodRunning {
			t.Fatalf("the pod is %s, while nobody can know", p.Status.Phase)
		}
		if n := len(b.away(ctx, t, string(pod.UID))); n != 1 {
			t.Fatalf("%d away pods", n)
		}
		token := tokenOf(t, b, &pod)
		a.fabric.setCut(false)
		a.gone(t, pod.Name)
		tokenGone(t, a, b, &pod, token)
		if left := b.away(ctx, t, string(pod.UID)); len(left) != 0 {
			t.Fatalf("gone at home but not away: %v", left)
		}
	})

	t.Run("a StatefulSet's pod runs once, under whatever UID", func(t *testing.T) {
		a.create(t, set())
		first := a.running(t, "db-0", "")
		if s := b.away(ctx, t, string(first.UID))[0].Spec; ptr.Deref(s.HostnameOverride, "") != "db-0.db.lab.svc.cluster.local" {
			t.Errorf("its host name is %v, of %s.%s: not the full one of home", s.HostnameOverride, s.Hostname, s.Subdomain)
		}
		must(t, a.Client.CoreV1().Pods("lab").Delete(ctx, "db-0", metav1.DeleteOptions{}))
		second := a.running(t, "db-0", first.UID)
		if n := len(b.away(ctx, t, string(first.UID))); n != 0 {
			t.Errorf("%d away pods of the first", n)
		}
		if n := len(b.away(ctx, t, string(second.UID))); n != 1 {
			t.Errorf("%d away pods of the second", n)
		}
		must(t, a.Client.AppsV1().StatefulSets("lab").Delete(ctx, "db", metav1.DeleteOptions{}))
	})

	t.Run("a pod ends within the provider's bound, whatever was asked for", func(t *testing.T) {
		p := bare("slow", corev1.PodSpec{TerminationGracePeriodSeconds: ptr.To[int64](90), Tolerations: []corev1.Toleration{{Key: policy.VirtualTaint, Operator: corev1.TolerationOpExists}}})
		p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}}}
		a.create(t, p)
		slow := a.running(t, "slow", "")
		if g := *b.away(ctx, t, string(slow.UID))[0].Spec.TerminationGracePeriodSeconds; g != 45 {
			t.Errorf("the provider grants %d s", g)
		}
		await.Empty(t, time.Minute, "that the period is shorter there is told", func(ctx context.Context) string {
			got, err := a.Client.CoreV1().Pods("lab").Get(ctx, "slow", metav1.GetOptions{})
			must(t, err)
			for _, c := range got.Status.Conditions {
				if strings.Contains(c.Message, "ends it 45 s after its deletion, not 90 s") {
					return ""
				}
			}
			return fmt.Sprint(got.Status.Conditions)
		})
		must(t, a.Client.CoreV1().Pods("lab").Delete(ctx, "slow", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](60)}))
		a.gone(t, "slow")
	})

	t.Run("a namespace that is no longer offloaded takes its pods back", func(t *testing.T) {
		_, err := a.Client.CoreV1().Namespaces().Patch(ctx, "lab", types.MergePatchType, []byte(`{"metadata":{"labels":{"rivulet.dev/offload":"off"}}}`), metav1.PatchOptions{})
		must(t, err)
		await.Empty(t, 2*time.Minute, "replacements wait for room at home, the twin is gone", func(ctx context.Context) string {
			why := ""
			for _, p := range a.pods(ctx, t, "app=web") {
				if p.Spec.NodeName != "" {
					return p.Name + " is on " + p.Spec.NodeName
				}
			}
			left, err := b.Client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: policy.OriginLabel})
			if err != nil || len(left.Items) == 0 {
				return message(err)
			}
			for _, c := range left.Items[0].Status.Conditions {
				if c.Status == corev1.ConditionTrue {
					why += "; " + c.Message
				}
			}
			return "twin " + left.Items[0].Name + why
		})
		_, err = a.Client.CoreV1().Namespaces().Patch(ctx, "lab", types.MergePatchType, []byte(`{"metadata":{"labels":{"rivulet.dev/offload":"remote"}}}`), metav1.PatchOptions{})
		must(t, err)
		a.create(t, bare("again", corev1.PodSpec{Tolerations: []corev1.Toleration{{Key: policy.VirtualTaint, Operator: corev1.TolerationOpExists}}}))
		a.running(t, "again", "")
	})

	t.Run("deleting the namespace leaves nothing behind", func(t *testing.T) {
		must(t, a.Client.CoreV1().Namespaces().Delete(ctx, "lab", metav1.DeleteOptions{}))
		await.Empty(t, time.Minute, "namespace and twin are gone", func(ctx context.Context) string {
			if _, err := a.Client.CoreV1().Namespaces().Get(ctx, "lab", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return fmt.Sprintf("at home: %v", err)
			}
			left, err := b.Client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: policy.OriginLabel})
			must(t, err)
			if len(left.Items) != 0 {
				return "twin " + left.Items[0].Name
			}
			return ""
		})
	})

	nodeGone := func(ctx context.Context) string {
		if _, err := a.Client.CoreV1().Nodes().Get(ctx, "b", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Sprint(err)
		}
		return ""
	}
	nodeThere := func(ctx context.Context) string {
		n, err := a.Client.CoreV1().Nodes().Get(ctx, "b", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		return nodeReady(n)
	}
	twins := func(want int) func(context.Context) string {
		return func(ctx context.Context) string {
			left, err := b.Client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: policy.OriginLabel})
			must(t, err)
			if len(left.Items) != want {
				return fmt.Sprintf("%d twins at b", len(left.Items))
			}
			return ""
		}
	}
	t.Run("a direction that is switched off takes node and twins, and comes back", func(t *testing.T) {
		a.offloadNamespace(t, "lab")
		a.create(t, web(1))
		await.Empty(t, time.Minute, "a twin", twins(1))
		b.fabric.setRoles(false, true) // b lends nothing to a, and tells it
		a.fabric.setRoles(true, false)
		await.Empty(t, time.Minute, "node gone", nodeGone)
		await.Empty(t, time.Minute, "twins gone", twins(0))
		b.fabric.setRoles(false, false)
		a.fabric.setRoles(false, false)
		await.Empty(t, time.Minute, "node back", nodeThere)
		await.Empty(t, time.Minute, "a twin again", twins(1))
	})

	t.Run("two consumers in one process", func(t *testing.T) { twoConsumers(t, a, b) })

	t.Run("unpeering removes the virtual node and what is there for it", func(t *testing.T) {
		a.fabric.unpeer()
		await.Empty(t, time.Minute, "node gone", nodeGone)
		b.fabric.unpeer()
		await.Empty(t, time.Minute, "twins gone", twins(0))
	})
}

func streams(t *testing.T, a *device, name string) {
	request := func(sub string, opts any) string {
		r := a.Client.CoreV1().RESTClient().Post().Resource("pods").Namespace("lab").Name(name).SubResource(sub)
		if o, ok := opts.(*corev1.PodExecOptions); ok {
			r = r.VersionedParams(o, scheme.ParameterCodec)
		}
		return r.URL().String()
	}
	t.Run("logs", func(t *testing.T) {
		await.Empty(t, time.Minute, "the API server reaches the virtual node", func(ctx context.Context) string {
			text, err := a.Client.CoreV1().Pods("lab").GetLogs(name, &corev1.PodLogOptions{TailLines: ptr.To[int64](3)}).DoRaw(ctx)
			if err != nil || string(text) != "log of "+name+"/web tail=3\n" {
				return fmt.Sprintf("%q %v", text, err)
			}
			return ""
		})
	})
	run := func(e remotecommand.Executor, input string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		var out bytes.Buffer
		err := e.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: strings.NewReader(input), Stdout: &out})
		return out.String(), err
	}
	opts := &corev1.PodExecOptions{Command: []string{"shout", "a b&c=d", "3"}, Stdin: true, Stdout: true}
	t.Run("exec by WebSocket", func(t *testing.T) {
		e, err := remotecommand.NewWebSocketExecutor(a.Config, "GET", request("exec", opts))
		must(t, err)
		out, err := run(e, "hello")
		var code exec.CodeExitError
		if out != "HELLO" || !errors.As(err, &code) || code.Code != 3 {
			t.Errorf("%q, %v", out, err)
		}
	})
	t.Run("exec by SPDY", func(t *testing.T) {
		e, err := remotecommand.NewSPDYExecutor(a.Config, "POST", mustURL(t, request("exec", opts)))
		must(t, err)
		out, err := run(e, "hello")
		var code exec.CodeExitError
		if out != "HELLO" || !errors.As(err, &code) || code.Code != 3 {
			t.Errorf("%q, %v", out, err)
		}
	})
	t.Run("port-forward", func(t *testing.T) {
		address, stop := a.forward(t, name, 8080, false)
		defer stop()
		conn, err := net.Dial("tcp", address)
		must(t, err)
		defer conn.Close()
		must(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
		_, err = io.WriteString(conn, "ping")
		must(t, err)
		answer := make([]byte, 4)
		if _, err := io.ReadFull(conn, answer); err != nil || string(answer) != "PING" {
			t.Errorf("%q, %v", answer, err)
		}
	})
}

func nodeReady(n *corev1.Node) string {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
			return ""
		}
	}
	return fmt.Sprintf("not ready: %+v", n.Status.Conditions)
}

// offloadNamespace makes a namespace whose pods may go away: when there is no room at home,
// or as said.
func (d *device) offloadNamespace(t *testing.T, name string, when ...string) {
	t.Helper()
	d.create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{policy.NamespaceLabel: append(when, string(policy.Burst))[0]}}})
	await.Empty(t, time.Minute, "namespace "+name+" is usable", func(ctx context.Context) string {
		if _, err := d.Client.CoreV1().ServiceAccounts(name).Get(ctx, "default", metav1.GetOptions{}); err != nil {
			return err.Error()
		}
		// The API server takes a moment to act on its own new policies.
		p := bare("probe", corev1.PodSpec{})
		p.Namespace = name
		made, err := d.Client.CoreV1().Pods(name).Create(ctx, p, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			return err.Error()
		}
		for _, tol := range made.Spec.Tolerations {
			if tol.Key == policy.VirtualTaint {
				return ""
			}
		}
		return "pods get no toleration"
	})
}

func (d *device) create(t *testing.T, obj any) {
	t.Helper()
	var err error
	switch o := obj.(type) {
	case *corev1.Namespace:
		_, err = d.Client.CoreV1().Namespaces().Create(t.Context(), o, metav1.CreateOptions{})
	case *corev1.Pod:
		_, err = d.Client.CoreV1().Pods("lab").Create(t.Context(), o, metav1.CreateOptions{})
	case *appsv1.Deployment:
		_, err = d.Client.AppsV1().Deployments("lab").Create(t.Context(), o, metav1.CreateOptions{})
	case *appsv1.StatefulSet:
		_, err = d.Client.AppsV1().StatefulSets("lab").Create(t.Context(), o, metav1.CreateOptions{})
	case *appsv1.DaemonSet:
		_, err = d.Client.AppsV1().DaemonSets("lab").Create(t.Context(), o, metav1.CreateOptions{})
	case *batchv1.Job:
		_, err = d.Client.BatchV1().Jobs("lab").Create(t.Context(), o, metav1.CreateOptions{})
	}
	must(t, err)
}

func (d *device) pods(ctx context.Context, t *testing.T, selector string) []corev1.Pod {
	t.Helper()
	list, err := d.Client.CoreV1().Pods("lab").List(ctx, metav1.ListOptions{LabelSelector: selector})
	must(t, err)
	return list.Items
}

// away lists what runs on d for a pod of somebody's home.
func (d *device) away(ctx context.Context, t *testing.T, uid string) []corev1.Pod {
	t.Helper()
	list, err := d.Client.CoreV1().Pods("").List(ctx, metav1.ListOptions{LabelSelector: policy.HomeUIDLabel + "=" + uid})
	must(t, err)
	return list.Items
}

func (d *device) gone(t *testing.T, pod string) {
	t.Helper()
	await.Empty(t, time.Minute, pod+" is gone from home", func(ctx context.Context) string {
		p, err := d.Client.CoreV1().Pods("lab").Get(ctx, pod, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return fmt.Sprintf("%v %s", err, p.Status.Phase)
		}
		return ""
	})
}

// running waits until a pod of that name, other than the given one, runs.
func (d *device) running(t *testing.T, name string, not types.UID) (pod *corev1.Pod) {
	t.Helper()
	await.Empty(t, time.Minute, name+" runs", func(ctx context.Context) string {
		p, err := d.Client.CoreV1().Pods("lab").Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if p.UID == not || p.Status.Phase != corev1.PodRunning || p.Status.PodIP == "" {
			return fmt.Sprintf("%s %s %s", p.UID, p.Status.Phase, p.Status.Message)
		}
		pod = p
		return ""
	})
	return pod
}

// runsOn waits for the pod to run on the node; one that was placed by what was true
// before may have to go first.
func (d *device) runsOn(t *testing.T, name, node string) {
	t.Helper()
	await.Empty(t, time.Minute, name+" runs on "+node, func(ctx context.Context) string {
		p, err := d.Client.CoreV1().Pods("lab").Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if p.DeletionTimestamp != nil || p.Status.Phase != corev1.PodRunning || p.Spec.NodeName != node {
			return fmt.Sprintf("%s on %q %s, deleted %v", p.Status.Phase, p.Spec.NodeName, p.Status.Message, p.DeletionTimestamp)
		}
		return ""
	})
}

func spec() corev1.PodSpec {
	return corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "web:1"}}}
}

func web(replicas int32) *appsv1.Deployment {
	labels := map[string]string{"app": "web"}
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.DeploymentSpec{Replicas: &replicas,
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec()}}}
}

func set() *appsv1.StatefulSet {
	labels, s := map[string]string{"app": "db"}, spec()
	s.SetHostnameAsFQDN = ptr.To(true)
	return &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "db"}, Spec: appsv1.StatefulSetSpec{Replicas: ptr.To[int32](1), ServiceName: "db",
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: s}}}
}

func job(name string, labels map[string]string) *batchv1.Job {
	s := spec()
	s.RestartPolicy = corev1.RestartPolicyNever
	return &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: batchv1.JobSpec{
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: s}}}
}

func bare(name string, s corev1.PodSpec) *corev1.Pod {
	s.Containers = spec().Containers
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: s}
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func mustURL(t *testing.T, s string) *url.URL {
	t.Helper()
	u, err := url.Parse(s)
	must(t, err)
	return u
}

// Cluster DNS answers tenants' pods after a restart, and asks how their home sees pods, before offload runs.
func TestUnderBeforeOffloadRuns(t *testing.T) {
	var o *Offload
	if under := o.Under("somebody"); len(under.Prefixes)+len(under.Relayed) > 0 {
		t.Errorf("%v", under)
	}
}
