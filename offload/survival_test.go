package offload

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"rivulet/offload/policy"
	"rivulet/test/harness/apiserver"
	"rivulet/test/harness/await"
)

// TestSurvival is what goes on while somebody is away: pods of every kind on a
// provider with two nodes, through a short cut, restarts on both sides, and a home that is gone
// while at the provider a node dies, pods are evicted and Jobs finish. The provider gives
// a dead node up after 25 s and its pods after two more, by its engine's own settings.
func TestSurvival(t *testing.T) {
	a, b := world(t, "--kube-controller-manager-arg=node-monitor-grace-period=25s", "--kube-controller-manager-arg=node-monitor-period=1s",
		"--kube-apiserver-arg=default-not-ready-toleration-seconds=2", "--kube-apiserver-arg=default-unreachable-toleration-seconds=2")
	first := apiserver.StartKubelet(t, b.Server, "b-1")
	ctx := t.Context()
	a.offloadNamespace(t, "lab")
	a.ready(t, true)

	const replicas = 50
	a.create(t, web(replicas/2))
	a.create(t, set())
	a.create(t, daemonSet())
	a.create(t, job("long", map[string]string{"app": "long"}))
	a.create(t, job("ends", map[string]string{"app": "ends"}))
	retry := job("retry", map[string]string{"app": "retry"})
	retry.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyOnFailure
	a.create(t, retry)
	a.create(t, job("done", map[string]string{"app": "done", apiserver.EndsLabel: "0"}))
	a.create(t, bare("alone", corev1.PodSpec{Tolerations: []corev1.Toleration{{Key: policy.VirtualTaint, Operator: corev1.TolerationOpExists}}}))
	cron := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: "cron"}, Spec: batchv1.CronJobSpec{Schedule: "0 0 1 1 *",
		JobTemplate: batchv1.JobTemplateSpec{Spec: job("", map[string]string{"app": "cron"}).Spec}}}
	_, err := a.Client.BatchV1().CronJobs("lab").Create(ctx, cron, metav1.CreateOptions{})
	must(t, err)
	run := job("cron-1", nil) // what the controller makes of it when its time comes
	run.Spec = cron.Spec.JobTemplate.Spec
	a.create(t, run)

	// By name at home; what has ended is "done".
	var was map[string]life
	allRun := func(pods int) {
		t.Helper()
		await.Empty(t, 2*time.Minute, fmt.Sprintf("%d run on b", pods), func(ctx context.Context) string {
			was = a.lives(ctx, t)
			ran, ended := 0, 0
			for name, l := range was {
				switch {
				case strings.HasPrefix(name, "done-") && l.phase == corev1.PodSucceeded:
					ended++
				case !strings.HasPrefix(name, "done-") && l.phase == corev1.PodRunning && l.container != "":
					ran++
				}
			}
			if ran != pods || ended != 1 {
				return fmt.Sprintf("%d run, %d ended: %v", ran, ended, was)
			}
			return ""
		})
	}
	allRun(replicas/2 + 7)
	// The second half goes to the second node.
	apiserver.StartKubelet(t, b.Server, "b-2")
	_, err = b.Client.CoreV1().Nodes().Patch(ctx, "b-1", types.MergePatchType, []byte(`{"spec":{"unschedulable":true}}`), metav1.PatchOptions{})
	must(t, err)
	_, err = a.Client.AppsV1().Deployments("lab").Patch(ctx, "web", types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas), metav1.PatchOptions{})
	must(t, err)
	allRun(replicas + 7)
	same := func(what string) {
		t.Helper()
		await.Empty(t, time.Minute, what+": the same pods in the same containers", func(ctx context.Context) string {
			return a.compare(ctx, t, was, nil)
		})
	}
	gone := watchDeletions(t, a, b)
	untouched := func(t *testing.T, what string, f func()) {
		t.Helper()
		before := len(gone())
		f()
		same(what)
		if names := gone()[before:]; len(names) > 0 {
			t.Errorf("%s: pods were deleted: %v", what, names)
		}
	}

	t.Run("a cut of 10 s changes nothing, for no kind of workload", func(t *testing.T) {
		untouched(t, "after the cut", func() {
			a.fabric.setCut(true)
			time.Sleep(10 * time.Second) // the length of the cut is what is tested
			a.fabric.setCut(false)
			a.ready(t, true)
		})
	})
	t.Run("restarts of either supervisor delete, restart and double nothing", func(t *testing.T) {
		works := func(round string) { // what is asked of home after the restart arrives at b
			_, err := a.Client.CoreV1().Pods("lab").Patch(ctx, "alone", types.MergePatchType, []byte(`{"metadata":{"labels":{"round":"`+round+`"}}}`), metav1.PatchOptions{})
			must(t, err)
			await.Empty(t, time.Minute, "the link works: "+round, func(ctx context.Context) string {
				if away := b.away(ctx, t, string(was["alone"].uid)); len(away) != 1 || away[0].Labels["round"] != round {
					return fmt.Sprintf("%d pods", len(away))
				}
				return ""
			})
		}
		untouched(t, "the consumer's", func() { a.stop(); a.start(); works("one") })
		untouched(t, "the provider's", func() { b.stop(); b.start(); works("two") })
		untouched(t, "both", func() { a.stop(); b.stop(); b.start(); a.start(); works("three") })
		if away := b.awayAll(ctx, t); len(away) != len(was) {
			t.Errorf("%d away pods for %d at home", len(away), len(was))
		}
	})

	t.Run("the virtual node's object is deleted by somebody, and is back before its pods are missed", func(t *testing.T) {
		untouched(t, "with a new object", func() {
			n, err := a.Client.CoreV1().Nodes().Get(ctx, "b", metav1.GetOptions{})
			must(t, err)
			must(t, a.Client.CoreV1().Nodes().Delete(ctx, "b", metav1.DeleteOptions{}))
			await.Empty(t, time.Minute, "there is another", func(ctx context.Context) string {
				now, err := a.Client.CoreV1().Nodes().Get(ctx, "b", metav1.GetOptions{})
				if err != nil || now.UID == n.UID {
					return fmt.Sprint("the old one, ", err)
				}
				return nodeReady(now)
			})
		})
	})
	t.Run("pods that were made before the label are taken up", func(t *testing.T) {
		ns := "early"
		must(t, second(a.Client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{})))
		await.Empty(t, time.Minute, "pods wait for a node", func(ctx context.Context) string {
			for _, p := range []*corev1.Pod{bare("any", corev1.PodSpec{}), bare("host", corev1.PodSpec{HostPID: true})} {
				if _, err := a.Client.CoreV1().Pods(ns).Create(ctx, p, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
					return err.Error()
				}
			}
			return ""
		})
		on := func(name string) (string, string) {
			p, err := a.Client.CoreV1().Pods(ns).Get(ctx, name, metav1.GetOptions{})
			must(t, err)
			return p.Spec.NodeName, string(p.UID)
		}
		_, uid := on("any")
		must(t, second(a.Client.CoreV1().Namespaces().Patch(ctx, ns, types.MergePatchType, []byte(`{"metadata":{"labels":{"rivulet.dev/offload":"burst"}}}`), metav1.PatchOptions{})))
		await.Empty(t, time.Minute, "the same pod goes to b", func(context.Context) string {
			node, is := on("any")
			if node != "b" || is != uid {
				return fmt.Sprintf("on %q", node)
			}
			return ""
		})
		if node, _ := on("host"); node != "" {
			t.Errorf("one that cannot run away is on %s", node)
		}
		must(t, a.Client.CoreV1().Pods(ns).Delete(ctx, "any", metav1.DeleteOptions{}))
		// remote: where it may run is more than tolerations; its controller makes another.
		must(t, second(a.Client.CoreV1().Namespaces().Patch(ctx, ns, types.MergePatchType, []byte(`{"metadata":{"labels":{"rivulet.dev/offload":"off"}}}`), metav1.PatchOptions{})))
		d := web(1)
		d.Name = "late"
		await.Empty(t, time.Minute, "a pod of a Deployment waits, unlabelled", func(ctx context.Context) string {
			if _, err := a.Client.AppsV1().Deployments(ns).Create(ctx, d, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
				return err.Error()
			}
			list, err := a.Client.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
			must(t, err)
			if len(list.Items) != 1 {
				return fmt.Sprint(len(list.Items))
			}
			return ""
		})
		must(t, second(a.Client.CoreV1().Namespaces().Patch(ctx, ns, types.MergePatchType, []byte(`{"metadata":{"labels":{"rivulet.dev/offload":"remote","rivulet.dev/offload-to":"b"}}}`), metav1.PatchOptions{})))
		await.Empty(t, time.Minute, "another runs on b", func(ctx context.Context) string {
			list, err := a.Client.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
			must(t, err)
			if len(list.Items) != 1 || list.Items[0].Spec.NodeName != "b" || list.Items[0].Spec.Affinity == nil {
				return fmt.Sprint(len(list.Items))
			}
			return ""
		})
		must(t, a.Client.CoreV1().Namespaces().Delete(ctx, ns, metav1.DeleteOptions{}))
		await.Empty(t, time.Minute, "its twin is gone", func(ctx context.Context) string {
			_, err := b.Client.CoreV1().Namespaces().Get(ctx, a.twin(ns), metav1.GetOptions{})
			if !apierrors.IsNotFound(err) {
				return fmt.Sprint(err)
			}
			return ""
		})
	})

	t.Run("home is gone, and the provider goes on", func(t *testing.T) {
		a.stop()
		lost := map[types.UID]bool{} // at home, of those that ran on the node that dies
		var evicted corev1.Pod
		for _, p := range b.awayAll(ctx, t) {
			uid := types.UID(p.Labels[policy.HomeUIDLabel])
			switch app := p.Labels["app"]; {
			case app == "ends":
				_, err := b.Client.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.MergePatchType, []byte(`{"metadata":{"labels":{"`+apiserver.EndsLabel+`":"0"}}}`), metav1.PatchOptions{})
				must(t, err)
			case app == "done":
			case p.Spec.NodeName == "b-1":
				lost[uid] = true
			case app == "web" && evicted.Name == "":
				evicted = p
			}
		}
		must(t, b.Client.CoreV1().Pods(evicted.Namespace).EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: evicted.Namespace, Name: evicted.Name}}))
		await.Empty(t, time.Minute, "the Job ends while nobody looks", func(ctx context.Context) string {
			for _, p := range b.awayAll(ctx, t) {
				if p.Labels["app"] == "ends" && p.Status.Phase != corev1.PodSucceeded {
					return string(p.Status.Phase)
				}
			}
			return ""
		})
		first.Stop()
		await.Empty(t, 2*time.Minute, "b's controllers give the node up", func(ctx context.Context) string {
			for _, p := range b.awayAll(ctx, t) {
				if p.Spec.NodeName == "b-1" && p.DeletionTimestamp == nil && p.Labels["app"] != "done" && p.Labels["app"] != "ends" {
					return p.Name
				}
			}
			return ""
		})
		// A Job's pod on it may run on, for all that anybody knows. Now b's owner says that the node is
		// off, in Kubernetes' own words; a deletion by force would not do (the Job waits for a phase).
		_, err := b.Client.CoreV1().Nodes().Patch(ctx, "b-1", types.StrategicMergePatchType,
			[]byte(`{"spec":{"taints":[{"key":"node.kubernetes.io/out-of-service","value":"off","effect":"NoExecute"}]}}`), metav1.PatchOptions{})
		must(t, err)
		a.start()
		await.Empty(t, 75*time.Second, "home knows what happened", func(context.Context) string {
			wrong := a.compare(ctx, t, was, func(name string, then life) (life, bool) {
				app, _, _ := strings.Cut(name, "-")
				switch {
				case app == "ends":
					then.phase = corev1.PodSucceeded
				case lost[then.uid] && (app == "long" || app == "cron"): // restartPolicy Never: its owner decides
					then.phase = corev1.PodFailed
				case lost[then.uid] || then.uid == types.UID(evicted.Labels[policy.HomeUIDLabel]):
					then.restarts, then.container = 1, "another"
				}
				return then, true
			})
			for _, p := range b.awayAll(ctx, t) {
				if wrong != "" && p.DeletionTimestamp != nil {
					wrong += fmt.Sprintf("\n%s at b is going from %s since %s, %s", p.Name, p.Spec.NodeName, p.DeletionTimestamp, p.Status.Phase)
				}
			}
			return wrong
		})
		if j, err := a.Client.BatchV1().Jobs("lab").Get(ctx, "ends", metav1.GetOptions{}); err != nil || j.Status.Succeeded != 1 || j.Status.Failed != 0 {
			t.Errorf("the Job that ended: %+v %v", j.Status, err)
		}
	})

	t.Run("what has finished is never run again", func(t *testing.T) {
		before := map[types.UID]bool{}
		for _, p := range b.awayAll(ctx, t) {
			before[p.UID] = true
		}
		jobs, err := b.Client.BatchV1().Jobs(a.twin("lab")).List(ctx, metav1.ListOptions{})
		must(t, err)
		for _, j := range jobs.Items { // as an owner of b might, who tidies up
			if j.Status.Succeeded == 1 {
				must(t, b.Client.BatchV1().Jobs(j.Namespace).Delete(ctx, j.Name, metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationForeground)}))
			}
		}
		a.stop()
		a.start()
		a.ready(t, true)
		a.create(t, bare("later", corev1.PodSpec{Tolerations: []corev1.Toleration{{Key: policy.VirtualTaint, Operator: corev1.TolerationOpExists}}}))
		a.running(t, "later", "") // by then everything older was looked at
		for _, p := range b.awayAll(ctx, t) {
			if app := p.Labels["app"]; (app == "done" || app == "ends") && !before[p.UID] {
				t.Errorf("%s runs again: %s", p.Name, p.Status.Phase)
			}
		}
		for name, l := range a.lives(ctx, t) {
			if (strings.HasPrefix(name, "done-") || strings.HasPrefix(name, "ends-")) && l.phase != corev1.PodSucceeded {
				t.Errorf("%s is %s", name, l.phase)
			}
		}
	})
}

func second[T any](_ T, err error) error { return err }

// life is what of a pod must not change by itself.
type life struct {
	uid       types.UID
	phase     corev1.PodPhase
	container string
	restarts  int32
	started   string
}

// lives are home's pods by name.
func (d *device) lives(ctx context.Context, t *testing.T) map[string]life {
	out := map[string]life{}
	for _, p := range d.pods(ctx, t, "") {
		l := life{uid: p.UID, phase: p.Status.Phase}
		if p.Status.StartTime != nil {
			l.started = p.Status.StartTime.String()
		}
		if len(p.Status.ContainerStatuses) == 1 {
			l.container, l.restarts = p.Status.ContainerStatuses[0].ContainerID, p.Status.ContainerStatuses[0].RestartCount
		}
		if p.DeletionTimestamp != nil {
			l.phase = "Terminating"
		}
		out[p.Name] = l
	}
	return out
}

// compare says what of the pods is not as it was, or as expect changes that.
func (d *device) compare(ctx context.Context, t *testing.T, was map[string]life, expect func(string, life) (life, bool)) string {
	is := d.lives(ctx, t)
	for name, want := range was {
		if expect != nil {
			want, _ = expect(name, want)
		}
		got := is[name]
		if want.container == "another" && got.container != was[name].container && got.container != "" {
			got.container = "another"
		}
		if got != want {
			return fmt.Sprintf("%s is %+v, want %+v", name, got, want)
		}
	}
	if expect == nil && len(is) != len(was) {
		return fmt.Sprintf("%d pods, there were %d", len(is), len(was))
	}
	return ""
}

// awayAll lists what runs on d for others.
func (d *device) awayAll(ctx context.Context, t *testing.T) []corev1.Pod {
	t.Helper()
	list, err := d.Client.CoreV1().Pods("").List(ctx, metav1.ListOptions{LabelSelector: policy.HomeUIDLabel})
	must(t, err)
	return list.Items
}

// watchDeletions returns a function that lists the pods that were deleted at either API so far.
func watchDeletions(t *testing.T, devices ...*device) func() []string {
	var mu sync.Mutex
	var gone []string
	for _, d := range devices {
		pods := informers.NewSharedInformerFactory(d.Client, 0).Core().V1().Pods().Informer()
		_, err := pods.AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: func(obj any) {
			key, _ := cache.DeletionHandlingMetaNamespaceKeyFunc(obj)
			mu.Lock()
			defer mu.Unlock()
			gone = append(gone, d.name+" "+key)
		}})
		must(t, err)
		go pods.RunWithContext(t.Context())
		if !cache.WaitForCacheSync(t.Context().Done(), pods.HasSynced) {
			t.Fatal("no list of pods")
		}
	}
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return append([]string(nil), gone...)
	}
}

// daemonSet is one whose owner wants it on virtual nodes too, and says so by name.
func daemonSet() *appsv1.DaemonSet {
	labels := map[string]string{"app": "each"}
	s := spec()
	s.Tolerations = []corev1.Toleration{{Key: policy.VirtualTaint, Operator: corev1.TolerationOpExists}}
	return &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "each"}, Spec: appsv1.DaemonSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: s}}}
}
