package external_test

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"rivulet/offload/policy"
	"rivulet/offload/target/external"
	"rivulet/offload/target/external/rewrite"
	"rivulet/test/harness/apiserver"
	"rivulet/test/harness/await"
)

// TestBurst is the whole story of a home and a campus that knows nothing of Rivulet,
// on two real API servers: only containers are not there.
func TestBurst(t *testing.T) {
	servers := apiserver.StartAll(t, 2)
	ctx := t.Context()
	there := enrol(t, servers[1])
	apiserver.StartKubelet(t, there.Server, "campus-node")
	h := &home{Server: servers[0], test: t}

	credential, err := external.ReadCredential(there.kubeconfig, t.TempDir(), "", false)
	must(t, err)
	settings := external.Settings{Name: "campus", Namespace: credential.Namespace, Arch: "arm64", Network: external.NetworkNone,
		Limits: corev1.ResourceList{"cpu": resource.MustParse("8"), "memory": resource.MustParse("1Gi")}}
	must(t, settings.Complete())

	t.Run("rights", func(t *testing.T) { rights(t, there, settings, credential) })

	spec, err := external.Spec(external.Config{Settings: settings, Credential: credential, Cluster: cluster})
	must(t, err)
	h.run(spec)
	await.Empty(t, 30*time.Second, "the virtual node has the room of limits and quota", func(ctx context.Context) string {
		n, err := h.Client.CoreV1().Nodes().Get(ctx, "burst-campus", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		room := n.Status.Allocatable
		if room.Cpu().Cmp(resource.MustParse("2")) != 0 || room.Memory().Cmp(resource.MustParse("1Gi")) != 0 || room.Pods().Value() != 6 {
			return fmt.Sprint(room)
		}
		if n.Labels[policy.After] != "true" || n.Labels[corev1.LabelArchStable] != "arm64" {
			return fmt.Sprint(n.Labels)
		}
		return ""
	})

	foreign := foreigners(t, there)
	h.offloaded(t, "lab")
	h.offloaded(t, "other")
	for _, ns := range []string{"lab", "other"} {
		_, err := h.Client.CoreV1().ConfigMaps(ns).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings"}, Data: map[string]string{"who": ns}}, metav1.CreateOptions{})
		must(t, err)
		_, err = h.Client.AppsV1().Deployments(ns).Create(ctx, web(), metav1.CreateOptions{})
		must(t, err)
	}
	var pod corev1.Pod
	for _, ns := range []string{"lab", "other"} {
		await.Empty(t, 60*time.Second, "the pod of "+ns+" runs at the campus", func(ctx context.Context) string {
			list, err := h.Client.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
			if err != nil || len(list.Items) != 1 {
				return fmt.Sprint(len(list.Items), err)
			}
			pod = list.Items[0]
			if pod.Spec.NodeName != "burst-campus" || pod.Status.Phase != corev1.PodRunning {
				return fmt.Sprintf("%s %s %s", pod.Spec.NodeName, pod.Status.Phase, pod.Status.Message)
			}
			return ""
		})
	}
	t.Run("what stands there", func(t *testing.T) { standing(t, there) })
	t.Run("logs", func(t *testing.T) {
		stream, err := h.Client.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{TailLines: ptr.To[int64](7)}).Stream(ctx)
		must(t, err)
		defer stream.Close()
		text, err := io.ReadAll(stream)
		must(t, err)
		if !strings.Contains(string(text), "7") || !strings.Contains(string(text), "web-") {
			t.Errorf("%q", text)
		}
	})
	t.Run("labels follow", func(t *testing.T) {
		_, err := h.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, []byte(`{"metadata":{"labels":{"tier":"gold"}}}`), metav1.PatchOptions{})
		must(t, err)
		await.Empty(t, 30*time.Second, "the label has another key there", func(ctx context.Context) string {
			list, err := there.Client.CoreV1().Pods(shared).List(ctx, metav1.ListOptions{LabelSelector: "away.rivulet.dev/tier=gold"})
			if err != nil || len(list.Items) != 1 || !strings.Contains(list.Items[0].Annotations["rivulet.dev/burst-labels"], `tier="gold"`) {
				return fmt.Sprint(list.Items, err)
			}
			return ""
		})
	})
	t.Run("a job is not run twice", func(t *testing.T) { jobOnce(t, h, there, func() { h.stop(); h.run(spec) }) })
	t.Run("quota", func(t *testing.T) { quota(t, h, there) })
	t.Run("a quota for pods without a deadline", func(t *testing.T) { scoped(t, h, there) })
	t.Run("what restricted forbids", func(t *testing.T) { forbidden(t, h) })
	t.Run("somebody else's object of our name", func(t *testing.T) { conflict(t, h, there) })
	t.Run("called home", func(t *testing.T) { calledHome(t, h, there) })
	t.Run("purge", func(t *testing.T) {
		h.stop()
		homes, err := external.Homes(ctx, credential, shared)
		must(t, err)
		if len(homes) != 1 || homes[0] != cluster {
			t.Fatalf("homes %v", homes)
		}
		n, err := external.Purge(ctx, credential, shared, cluster)
		must(t, err)
		if n == 0 {
			t.Error("there was nothing to purge")
		}
		left, err := there.Client.CoreV1().Pods(shared).List(ctx, metav1.ListOptions{LabelSelector: rewrite.HomeLabel + "=" + cluster})
		must(t, err)
		for _, p := range left.Items {
			if p.Name != "copy" {
				t.Errorf("left: %s", p.Name)
			}
		}
	})
	foreign(t)
}

// rights: what is missing is told, and the Role that is printed is enough.
func rights(t *testing.T, c *campus, s external.Settings, credential external.Credential) {
	report, err := external.Examine(t.Context(), s, credential, cluster)
	must(t, err)
	if report.Fit() || report.User != "system:serviceaccount:default:student" {
		t.Fatalf("%+v", report)
	}
	text := fmt.Sprint(report.Missing)
	for _, want := range []string{"create replicasets.apps", "watch secrets", "create pods/exec"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not told: %s", want, text)
		}
	}
	if strings.Contains(text, "services") {
		t.Errorf("without a network no Services are needed: %s", text)
	}
	c.grant(t, report.Role)
	await.Empty(t, 20*time.Second, "with that Role nothing is missing", func(ctx context.Context) string {
		report, err = external.Examine(ctx, s, credential, cluster)
		if err != nil || len(report.Missing) > 0 {
			return fmt.Sprint(report.Missing, err)
		}
		return ""
	})
	if report.Security != "restricted" {
		t.Errorf("Pod Security %q; the namespace's label may not be read, but the API server warns", report.Security)
	}
	if report.Ends.IsZero() {
		t.Error("when the token ends is not told")
	}
}

// foreigners put things there that look like ours; the function that is returned
// checks that nobody touched them.
func foreigners(t *testing.T, c *campus) func(*testing.T) {
	t.Helper()
	ctx := t.Context()
	names := rewrite.Names{Cluster: cluster}
	taken, err := c.Client.CoreV1().ConfigMaps(shared).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: names.Away("lab", "taken")}, Data: map[string]string{"whose": "ours"}}, metav1.CreateOptions{})
	must(t, err)
	copied, err := c.Client.CoreV1().ConfigMaps(shared).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "copy",
		Labels:      map[string]string{rewrite.HomeLabel: cluster, rewrite.SpaceLabel: names.Space("lab")},
		Annotations: map[string]string{rewrite.NamespaceAnnotation: "lab", rewrite.NameAnnotation: "settings"}}}, metav1.CreateOptions{})
	must(t, err)
	return func(t *testing.T) {
		for _, before := range []*corev1.ConfigMap{taken, copied} {
			now, err := c.Client.CoreV1().ConfigMaps(shared).Get(ctx, before.Name, metav1.GetOptions{})
			if err != nil || now.ResourceVersion != before.ResourceVersion {
				t.Errorf("somebody else's %s was touched: %v", before.Name, err)
			}
		}
	}
}

// standing: names, labels and the rules of the namespace.
func standing(t *testing.T, c *campus) {
	names := rewrite.Names{Cluster: cluster}
	pods, err := c.Client.CoreV1().Pods(shared).List(t.Context(), metav1.ListOptions{LabelSelector: rewrite.HomeLabel + "=" + cluster})
	must(t, err)
	if len(pods.Items) != 2 {
		t.Fatalf("%d pods", len(pods.Items))
	}
	for _, p := range pods.Items {
		ns := p.Annotations[rewrite.NamespaceAnnotation]
		if p.Labels["app"] != "" || p.Labels["away.rivulet.dev/app"] != "web" {
			t.Errorf("others' selectors can catch it: %v", p.Labels)
		}
		main := p.Spec.Containers[0]
		if main.SecurityContext == nil || main.SecurityContext.AllowPrivilegeEscalation == nil || *main.SecurityContext.AllowPrivilegeEscalation {
			t.Errorf("not prepared for restricted: %+v", main.SecurityContext)
		}
		if q := main.Resources.Requests.Memory(); q.String() != "16Mi" {
			t.Errorf("the namespace's default of memory is %s", q)
		}
		if got := main.EnvFrom[0].ConfigMapRef.Name; got != names.Away(ns, "settings") {
			t.Errorf("refers to %s", got)
		}
		m, err := c.Client.CoreV1().ConfigMaps(shared).Get(t.Context(), main.EnvFrom[0].ConfigMapRef.Name, metav1.GetOptions{})
		if err != nil || m.Data["who"] != ns {
			t.Errorf("%v %v", m, err)
		}
	}
}

// jobOnce: what has finished stays finished, across a restart at home.
func jobOnce(t *testing.T, h *home, c *campus, restart func()) {
	ctx := t.Context()
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "once"}, Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{apiserver.EndsLabel: "0"}},
		Spec:       corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "main", Image: "work"}}}}}}
	// The stand-in for a kubelet goes by a label, whose key is another there.
	job.Spec.Template.Annotations = map[string]string{apiserver.EndsLabel: "0"}
	_, err := h.Client.BatchV1().Jobs("lab").Create(ctx, job, metav1.CreateOptions{})
	must(t, err)
	await.Empty(t, 60*time.Second, "the job is complete at home", func(ctx context.Context) string {
		j, err := h.Client.BatchV1().Jobs("lab").Get(ctx, "once", metav1.GetOptions{})
		if err != nil || j.Status.Succeeded != 1 {
			return fmt.Sprint(err, j.Status)
		}
		return ""
	})
	uids := func() string {
		var out []string
		pods, err := c.Client.CoreV1().Pods(shared).List(ctx, metav1.ListOptions{LabelSelector: rewrite.HomeLabel + "=" + cluster})
		must(t, err)
		for _, p := range pods.Items {
			out = append(out, p.Name+" "+string(p.UID))
		}
		return strings.Join(out, "\n")
	}
	before := uids()
	restart()
	await.Empty(t, 60*time.Second, "after a restart everything is known again", func(ctx context.Context) string {
		for _, n := range h.offload.Status().VirtualNodes {
			if n.Ready && n.Pods == 2 { // the Job's has finished
				return ""
			}
		}
		return fmt.Sprint(h.offload.Status().VirtualNodes)
	})
	// Something that is done after the restart shows that all that was there has been looked at.
	_, err = h.Client.CoreV1().ConfigMaps("lab").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "after", Annotations: map[string]string{"rivulet.dev/reflect": "on"}}}, metav1.CreateOptions{})
	must(t, err)
	await.Empty(t, 60*time.Second, "reflection goes on", func(ctx context.Context) string {
		_, err := c.Client.CoreV1().ConfigMaps(shared).Get(ctx, (rewrite.Names{Cluster: cluster}).Away("lab", "after"), metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		return ""
	})
	if after := uids(); after != before {
		t.Errorf("pods before the restart\n%s\nafter\n%s", before, after)
	}
}

// quota: what does not fit waits with the campus's words, and runs when there is room.
func quota(t *testing.T, h *home, c *campus) {
	ctx := t.Context()
	set := func(hard string) {
		t.Helper()
		_, err := c.Client.CoreV1().ResourceQuotas(shared).Patch(ctx, "quota", types.MergePatchType, []byte(`{"spec":{"hard":{"requests.cpu":"`+hard+`"}}}`), metav1.PatchOptions{})
		must(t, err)
	}
	// Home believes in 2 CPUs until it hears otherwise; an object that is counted only there takes them.
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "large"}, Spec: corev1.PodSpec{NodeName: "burst-campus", Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		Containers: []corev1.Container{{Name: "main", Image: "work", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("3")}}}}}}
	_, err := h.Client.CoreV1().Pods("lab").Create(ctx, p, metav1.CreateOptions{})
	must(t, err)
	phase := func(ctx context.Context) (corev1.PodPhase, string) {
		p, err := h.Client.CoreV1().Pods("lab").Get(ctx, "large", metav1.GetOptions{})
		if err != nil {
			return "", err.Error()
		}
		return p.Status.Phase, p.Status.Message
	}
	await.Empty(t, 60*time.Second, "the pod waits, and says for what", func(ctx context.Context) string {
		if got, message := phase(ctx); got != corev1.PodPending || !strings.Contains(message, "exceeded quota") {
			return fmt.Sprint(got, message)
		}
		return ""
	})
	set("5")
	await.Empty(t, 60*time.Second, "with a larger quota it runs", func(ctx context.Context) string {
		if got, message := phase(ctx); got != corev1.PodRunning {
			return fmt.Sprint(got, message)
		}
		return ""
	})
	await.Empty(t, 60*time.Second, "and the node's room is the new quota's", func(ctx context.Context) string {
		n, err := h.Client.CoreV1().Nodes().Get(ctx, "burst-campus", metav1.GetOptions{})
		if err != nil || n.Status.Allocatable.Cpu().Value() != 5 {
			return fmt.Sprint(n.Status.Allocatable, err)
		}
		return ""
	})
}

// scoped: a campus that takes no further pods without a deadline takes those with one, whatever restarts them.
func scoped(t *testing.T, h *home, c *campus) {
	ctx := t.Context()
	_, err := c.Client.CoreV1().ResourceQuotas(shared).Create(ctx, &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "endless"}, Spec: corev1.ResourceQuotaSpec{
		Scopes: []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeNotTerminating}, Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}}}, metav1.CreateOptions{})
	must(t, err)
	await.Empty(t, 30*time.Second, "the quota is in force", func(ctx context.Context) string {
		q, err := c.Client.CoreV1().ResourceQuotas(shared).Get(ctx, "endless", metav1.GetOptions{})
		if err != nil || q.Status.Hard.Pods().String() != "0" || q.Status.Used.Pods().IsZero() {
			return fmt.Sprint(q.Status, err)
		}
		return ""
	})
	for _, policy := range []corev1.RestartPolicy{corev1.RestartPolicyNever, corev1.RestartPolicyOnFailure} {
		name := "ends-" + strings.ToLower(string(policy))
		job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{
			Spec: corev1.PodSpec{RestartPolicy: policy, ActiveDeadlineSeconds: ptr.To[int64](3600), Containers: []corev1.Container{{Name: "main", Image: "work"}}}}}}
		_, err := h.Client.BatchV1().Jobs("lab").Create(ctx, job, metav1.CreateOptions{})
		must(t, err)
		await.Empty(t, 60*time.Second, "a pod with a deadline and "+string(policy)+" runs", func(ctx context.Context) string {
			list, err := h.Client.CoreV1().Pods("lab").List(ctx, metav1.ListOptions{LabelSelector: batchv1.JobNameLabel + "=" + name})
			if err != nil || len(list.Items) != 1 || list.Items[0].Status.Phase != corev1.PodRunning {
				return fmt.Sprint(err, list.Items)
			}
			return ""
		})
		must(t, h.Client.BatchV1().Jobs("lab").Delete(ctx, name, metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}))
	}
	must(t, c.Client.CoreV1().ResourceQuotas(shared).Delete(ctx, "endless", metav1.DeleteOptions{}))
}

// forbidden: what cannot be made to fit is told with each field.
func forbidden(t *testing.T, h *home) {
	ctx := t.Context()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "rooted"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "work",
		SecurityContext: &corev1.SecurityContext{RunAsUser: ptr.To[int64](0), Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"NET_ADMIN"}}}}}}}
	_, err := h.Client.CoreV1().Pods("lab").Create(ctx, p, metav1.CreateOptions{})
	must(t, err)
	await.Empty(t, 60*time.Second, "the pod says what is in the way", func(ctx context.Context) string {
		p, err := h.Client.CoreV1().Pods("lab").Get(ctx, "rooted", metav1.GetOptions{})
		if err != nil || !strings.Contains(p.Status.Message, "containers[0].securityContext.runAsUser") || !strings.Contains(p.Status.Message, "NET_ADMIN") {
			return fmt.Sprint(err, p.Status.Message)
		}
		return ""
	})
}

// conflict: somebody there has an object of a name that we need.
func conflict(t *testing.T, h *home, c *campus) {
	_, err := h.Client.CoreV1().ConfigMaps("lab").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "taken", Annotations: map[string]string{"rivulet.dev/reflect": "on"}}}, metav1.CreateOptions{})
	must(t, err)
	await.Empty(t, 60*time.Second, "an event at home says so", func(ctx context.Context) string {
		list, err := h.Client.CoreV1().Events("lab").List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=taken"})
		if err != nil {
			return err.Error()
		}
		for _, e := range list.Items {
			if strings.Contains(e.Message, "which Rivulet did not make") {
				return ""
			}
		}
		return fmt.Sprint(len(list.Items), " events")
	})
}

// calledHome: a namespace that is not offloaded any more leaves nothing there; the
// other one stays.
func calledHome(t *testing.T, h *home, c *campus) {
	ctx := t.Context()
	_, err := h.Client.CoreV1().Namespaces().Patch(ctx, "lab", types.MergePatchType, []byte(`{"metadata":{"labels":{"rivulet.dev/offload":"off"}}}`), metav1.PatchOptions{})
	must(t, err)
	must(t, h.Client.AppsV1().Deployments("lab").Delete(ctx, "web", metav1.DeleteOptions{}))
	names := rewrite.Names{Cluster: cluster}
	await.Empty(t, 120*time.Second, "nothing of lab is left at the campus", func(ctx context.Context) string {
		for _, o := range leftovers(ctx, t, c, names.Space("lab")) {
			if o != "copy" {
				return o
			}
		}
		return ""
	})
	if len(leftovers(ctx, t, c, names.Space("other"))) == 0 {
		t.Error("the other namespace's objects went, too")
	}
}

func leftovers(ctx context.Context, t *testing.T, c *campus, space string) []string {
	t.Helper()
	selector := metav1.ListOptions{LabelSelector: rewrite.SpaceLabel + "=" + space}
	var out []string
	maps, err := c.Client.CoreV1().ConfigMaps(shared).List(ctx, selector)
	must(t, err)
	for _, m := range maps.Items {
		out = append(out, m.Name)
	}
	secrets, err := c.Client.CoreV1().Secrets(shared).List(ctx, selector)
	must(t, err)
	for _, m := range secrets.Items {
		out = append(out, m.Name)
	}
	sets, err := c.Client.AppsV1().ReplicaSets(shared).List(ctx, selector)
	must(t, err)
	for _, m := range sets.Items {
		out = append(out, m.Name)
	}
	pods, err := c.Client.CoreV1().Pods(shared).List(ctx, selector)
	must(t, err)
	for _, m := range pods.Items {
		out = append(out, m.Name)
	}
	return out
}

func web() *appsv1.Deployment {
	labels := map[string]string{"app": "web"}
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "web",
			EnvFrom: []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}}}}}}}}}}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
