package tenancy

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"rivulet/fabric/peer"
	"rivulet/offload/offer"
	"rivulet/offload/policy"
	"rivulet/offload/replacement"
	"rivulet/test/harness/await"
)

// set is a ReplicaSet as a hand-written client makes it.
func set(name string, replicas int32, cpu string, change func(*corev1.PodSpec)) *appsv1.ReplicaSet {
	l := map[string]string{"app": name}
	spec := corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{}}}}}
	if cpu != "" {
		spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse(cpu)
	}
	if change != nil {
		change(&spec)
	}
	return &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{policy.OriginLabel: string(alice)}},
		Spec: appsv1.ReplicaSetSpec{Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: l},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: l}, Spec: spec}}}
}

// A client with the consumer's certificate writes what it likes into ReplicaSets;
// the API server makes no pod of it, and says why. Nor does it reach the rest of
// the cluster.
func testWhatTenantsMustNotHave(t *testing.T, p *provider) {
	ctx := t.Context()
	twin := p.twinOf(t, alice, "hostile")
	c, _ := p.consumer(t, alice, nil)
	if _, err := p.admin.SchedulingV1().PriorityClasses().Get(ctx, "system-node-critical", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	volume := func(v corev1.VolumeSource) func(*corev1.PodSpec) {
		return func(s *corev1.PodSpec) { s.Volumes = []corev1.Volume{{Name: "v", VolumeSource: v}} }
	}
	for name, try := range map[string]struct {
		change func(*corev1.PodSpec)
		want   string
	}{
		"privileged": {func(s *corev1.PodSpec) {
			s.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: ptr.To(true)}
		}, "PodSecurity"},
		"host-network": {func(s *corev1.PodSpec) { s.HostNetwork = true }, "PodSecurity"},
		"host-pid":     {func(s *corev1.PodSpec) { s.HostPID = true }, "PodSecurity"},
		"host-port": {func(s *corev1.PodSpec) {
			s.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 80}}
		}, "PodSecurity"},
		"capability": {func(s *corev1.PodSpec) {
			s.Containers[0].SecurityContext = &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"SYS_ADMIN"}}}
		}, "PodSecurity"},
		"host-path":  {volume(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}), "PodSecurity"},
		"nfs":        {volume(corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "192.0.2.1", Path: "/"}}), "volumes are lent"},
		"node-name":  {func(s *corev1.PodSpec) { s.NodeName = "n" }, "spec.nodeName"},
		"precedence": {func(s *corev1.PodSpec) { s.PriorityClassName = "system-node-critical" }, "precedence"},
		"token":      {func(s *corev1.PodSpec) { s.AutomountServiceAccountToken = ptr.To(true) }, "tokens and certificates of this cluster"},
		"greedy": {func(s *corev1.PodSpec) {
			s.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Ti")}
		}, "exceeded quota"},
	} {
		if _, err := c.AppsV1().ReplicaSets(twin).Create(ctx, set(name, 1, "", try.change), metav1.CreateOptions{}); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		said := ""
		await.True(t, time.Minute, name+" is refused", func() bool {
			s, err := c.AppsV1().ReplicaSets(twin).Get(ctx, name, metav1.GetOptions{})
			if err != nil || len(s.Status.Conditions) == 0 {
				return false
			}
			said = s.Status.Conditions[0].Message
			return s.Status.Replicas == 0
		})
		if !strings.Contains(said, try.want) {
			t.Errorf("%s: %q, want %q", name, said, try.want)
		}
	}
	// Pods made without a controller, and what would hold up a drain or the namespace.
	held := set("held", 1, "", nil)
	held.Spec.Template.Finalizers = []string{"example.com/held"}
	if _, err := c.AppsV1().ReplicaSets(twin).Create(ctx, held, metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	await.True(t, time.Minute, "a template with a finalizer makes no pod", func() bool {
		s, err := c.AppsV1().ReplicaSets(twin).Get(ctx, "held", metav1.GetOptions{})
		return err == nil && len(s.Status.Conditions) > 0 && strings.Contains(s.Status.Conditions[0].Message, "finalizers")
	})
	config, err := c.CoreV1().ConfigMaps(twin).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "plain"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for what, try := range map[string]func(*corev1.Pod){
		"privileged": func(p *corev1.Pod) {
			p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: ptr.To(true)}
		},
		"a node's name":     func(p *corev1.Pod) { p.Spec.NodeName = "n" },
		"a hold of its own": func(p *corev1.Pod) { p.Finalizers = []string{"example.com/held"} },
		"a Job's hold":      func(p *corev1.Pod) { p.Finalizers = []string{"batch.kubernetes.io/job-tracking"} },
		"a storm of its own": func(p *corev1.Pod) {
			p.Labels, p.Finalizers, p.Spec.ActiveDeadlineSeconds = map[string]string{policy.KeptLabel: "at-once"}, []string{replacement.Finalizer}, ptr.To[int64](1)
		},
	} {
		made := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "direct"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
		try(made)
		if _, err := c.CoreV1().Pods(twin).Create(ctx, made, metav1.CreateOptions{}); !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v, want refused", what, err)
		}
	}
	config.Finalizers = []string{"example.com/held"}
	if _, err := c.CoreV1().ConfigMaps(twin).Update(ctx, config, metav1.UpdateOptions{}); !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
		t.Errorf("a finalizer of its own: %v, want refused", err)
	}
	pods, err := c.CoreV1().Pods(twin).List(ctx, metav1.ListOptions{})
	if err != nil || len(pods.Items) != 0 {
		t.Errorf("%d pods were made, %v", len(pods.Items), err)
	}
	errs := map[string]error{}
	_, errs["token secret"] = c.CoreV1().Secrets(twin).Create(ctx, token(), metav1.CreateOptions{})
	_, errs["token request"] = c.CoreV1().RESTClient().Post().AbsPath("/api/v1/namespaces/" + twin + "/serviceaccounts/default/token").Body([]byte(`{}`)).DoRaw(ctx)
	_, errs["quota"] = c.CoreV1().ResourceQuotas(twin).Patch(ctx, quotaName, "application/merge-patch+json", []byte(`{"spec":{"hard":null}}`), metav1.PatchOptions{})
	errs["limits"] = c.CoreV1().LimitRanges(twin).Delete(ctx, quotaName, metav1.DeleteOptions{})
	errs["namespace"] = c.CoreV1().Namespaces().Delete(ctx, twin, metav1.DeleteOptions{})
	_, errs["namespace label"] = c.CoreV1().Namespaces().Patch(ctx, twin, "application/merge-patch+json", []byte(`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"privileged"}}}`), metav1.PatchOptions{})
	_, errs["node proxy"] = c.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes/n/proxy/pods").DoRaw(ctx)
	_, errs["service proxy"] = c.CoreV1().RESTClient().Get().AbsPath("/api/v1/namespaces/" + twin + "/services/s/proxy/").DoRaw(ctx)
	_, errs["bind"] = c.CoreV1().RESTClient().Post().AbsPath("/api/v1/namespaces/" + twin + "/pods/p/binding").Body([]byte(`{}`)).DoRaw(ctx)
	_, errs["daemon set"] = c.AppsV1().DaemonSets(twin).List(ctx, metav1.ListOptions{})
	_, errs["crds"] = c.CoreV1().RESTClient().Get().AbsPath("/apis/apiextensions.k8s.io/v1/customresourcedefinitions").DoRaw(ctx)
	for what, err := range errs {
		if !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v, want refused", what, err)
		}
	}
	if err := c.AppsV1().ReplicaSets(twin).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
}

func token() *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "token", Annotations: map[string]string{corev1.ServiceAccountNameKey: "default"}},
		Type: corev1.SecretTypeServiceAccountToken}
}

// Objects beyond the bound are refused by the API server, large ones and storms by the proxy.
func testObjectsAreBounded(t *testing.T, p *provider) {
	ctx := t.Context()
	before := most["count/secrets"]
	twins := []string{p.twinOf(t, alice, "hoard"), p.twinOf(t, alice, "hoard2")}
	c, _ := p.consumer(t, alice, nil)
	most["count/secrets"] = 20
	defer func() { most["count/secrets"] = before; p.poke() }()
	p.poke()
	await.True(t, time.Minute, "the bound is in force", func() bool {
		for _, twin := range twins {
			q, err := p.admin.CoreV1().ResourceQuotas(twin).Get(ctx, quotaName, metav1.GetOptions{})
			n := corev1.ResourceList{}
			if err == nil {
				n = q.Status.Hard
			}
			if hard, set := n["count/secrets"]; !set || hard.Value() > 20 {
				return false
			}
		}
		return true
	})
	made := 0
	var refused error
	for i := range 60 {
		_, err := c.CoreV1().Secrets(twins[i%2]).Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("s", i)}}, metav1.CreateOptions{})
		if err == nil {
			made++
		} else {
			refused = err
		}
	}
	if !apierrors.IsForbidden(refused) || !strings.Contains(refused.Error(), "exceeded quota") || made > 40 {
		t.Errorf("%d of 60 objects made, %v; want some refused by quota", made, refused)
	}
	await.True(t, time.Minute, "no more fit", func() bool {
		for i, twin := range twins {
			if _, err := c.CoreV1().Secrets(twin).Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("more", i)}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err == nil {
				return false
			}
		}
		return true
	})

	huge := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "huge"}, Data: map[string]string{"x": strings.Repeat("x", maxBody)}}
	if _, err := c.CoreV1().ConfigMaps(twins[0]).Create(ctx, huge, metav1.CreateOptions{}); !apierrors.IsRequestEntityTooLargeError(err) {
		t.Errorf("3 MiB: %.200v, want too large", err)
	}
	for _, home := range twins {
		p.ask(t, alice, http.MethodDelete, "/v1/namespaces/"+strings.TrimSuffix(home, "-alice-aliceaaa"))
	}

	// Watches: what is beyond the bound is told to wait, and goes on when others end.
	watches := longBase + longPerTwin*len(p.twinsOf(bob))
	twin := p.twinOf(t, bob, "watcher")
	await.True(t, time.Minute, "the twin is counted", func() bool { return longBase+longPerTwin*len(p.twinsOf(bob)) > watches })
	watches += longPerTwin
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	open := func() int {
		r, _ := http.NewRequestWithContext(ctx, http.MethodGet, p.url+prefix+"/api/v1/namespaces/"+twin+"/configmaps?watch=true", nil)
		r.Header.Set(who, string(bob))
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode
	}
	await.True(t, time.Minute, "the rights in the new twin are in force", func() bool { return open() == http.StatusOK })
	for i := 1; i < watches; i++ {
		if code := open(); code != http.StatusOK {
			t.Fatalf("watch %d of %d: %d", i, watches, code)
		}
	}
	if code := open(); code != http.StatusTooManyRequests {
		t.Errorf("one watch too many: %d", code)
	}
	if a, _ := p.consumer(t, alice, nil); a != nil {
		if _, err := a.Discovery().ServerVersion(); err != nil {
			t.Errorf("another consumer suffers: %v", err)
		}
	}
	stop()
	await.True(t, time.Minute, "the watches are over", func() bool { return p.visitors.open(bob) == 0 })
}

// running counts the consumer's pods over all twins.
func (p *provider) pods(t *testing.T, as peer.ID) (n int) {
	t.Helper()
	list, err := p.admin.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{LabelSelector: policy.OriginLabel + "=" + string(as)})
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range list.Items {
		if pod.DeletionTimestamp == nil && pod.Namespace != "lab-alice-aliceaaa" {
			n++
		}
	}
	return n
}

func (p *provider) clear(t *testing.T, c kubernetes.Interface, twins ...string) {
	t.Helper()
	for _, twin := range twins {
		if err := p.admin.CoreV1().Pods(twin).DeleteCollection(t.Context(), metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}, metav1.ListOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	_ = c
}

// What is offered holds for all twins together, to the last CPU, whichever of
// them asks; and it goes to where it is asked for.
func testOneQuotaOverAllTwins(t *testing.T, p *provider) {
	ctx := t.Context()
	c, _ := p.consumer(t, alice, nil)
	p.clear(t, c, "lab-alice-aliceaaa")
	for _, home := range []string{"lab", "hostile", "watcher"} { // of the tests before
		for _, as := range []peer.ID{alice, bob} {
			p.ask(t, as, http.MethodDelete, "/v1/namespaces/"+home)
		}
	}
	await.True(t, time.Minute, "former twins are gone", func() bool { return len(p.consumers()) <= 1 })
	one, two := p.twinOf(t, alice, "one"), p.twinOf(t, alice, "two")
	// The node has 4 CPUs and alice is alone now: 40 pods of a tenth fit, in whichever twin.
	for _, twin := range []string{one, two} {
		for i := range 3 {
			await.True(t, time.Minute, "alice's rights", func() bool {
				_, err := c.AppsV1().ReplicaSets(twin).Create(ctx, set(fmt.Sprint("s", i), 20, "100m", nil), metav1.CreateOptions{})
				return err == nil
			})
		}
	}
	over := surplus{allowed: 40}
	last := 0
	defer func() {
		if t.Failed() {
			quotas, _ := p.admin.CoreV1().ResourceQuotas("").List(ctx, metav1.ListOptions{})
			for _, q := range quotas.Items {
				t.Log(last, q.Namespace, q.Spec.Hard.Name("requests.cpu", resource.DecimalSI), q.Status.Used.Name("requests.cpu", resource.DecimalSI), q.Status.Used.Pods(), q.Status.Hard.Pods())
			}
		}
	}()
	await.True(t, time.Minute, "all that is lent is used", func() bool {
		last = p.pods(t, alice)
		over.see(t, last)
		return last == 40
	})
	for range 20 {
		over.see(t, p.pods(t, alice))
	}
	await.True(t, time.Minute, "what is too much is taken back", func() bool { return p.pods(t, alice) == 40 })
	// One twin's room goes to the other.
	for i := range 3 {
		if err := c.AppsV1().ReplicaSets(one).Delete(ctx, fmt.Sprint("s", i), metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}); err != nil {
			t.Fatal(err)
		}
	}
	await.True(t, time.Minute, "the other twin has it all", func() bool {
		list, err := c.CoreV1().Pods(two).List(ctx, metav1.ListOptions{})
		return err == nil && len(list.Items) == 40 && p.pods(t, alice) == 40
	})
}

// A share that shrinks lets no new pod in, and past the grace time the newest go;
// another consumer's part frees itself the same way.
func testSmallerShare(t *testing.T, p *provider) {
	ctx := t.Context()
	// 40 pods of the test before. Half of the CPUs: 20 go, and none comes back.
	oldest := map[string]bool{}
	list, err := p.admin.CoreV1().Pods("two-alice-aliceaaa").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var times []time.Time
	for _, pod := range list.Items {
		times = append(times, pod.CreationTimestamp.Time)
	}
	p.share.Store(&offer.Shares{Peers: offer.Share{CPU: 50}})
	p.ShareChanged()
	await.True(t, time.Minute, "the surplus is taken back, and none comes back", func() bool { return p.pods(t, alice) == 20 && p.inForce(ctx, t) })
	list, err = p.admin.CoreV1().Pods("two-alice-aliceaaa").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	newestLeft := time.Time{}
	for _, pod := range list.Items {
		if pod.DeletionTimestamp == nil && pod.CreationTimestamp.After(newestLeft) {
			newestLeft = pod.CreationTimestamp.Time
		}
		oldest[pod.Name] = true
	}
	younger := 0
	for _, at := range times {
		if at.After(newestLeft) {
			younger++
		}
	}
	if younger > 20 {
		t.Errorf("%d pods were younger than the youngest that is left", younger)
	}

	// Bob comes: half of 2 CPUs is his for the asking.
	b, _ := p.consumer(t, bob, nil)
	twin := p.twinOf(t, bob, "new")
	await.True(t, time.Minute, "bob's rights", func() bool { // the API server's own caches lag a moment
		_, err := b.AppsV1().ReplicaSets(twin).Create(ctx, bobs(set("s", 30, "100m", nil)), metav1.CreateOptions{})
		return err == nil
	})
	over := surplus{allowed: 20}
	await.True(t, time.Minute, "both have the same", func() bool {
		a, b := p.pods(t, alice), p.pods(t, bob)
		over.see(t, a+b)
		return a >= 9 && a <= 11 && b >= 9 && b <= 11
	})
	p.share.Store(&offer.Shares{})
	p.ShareChanged()
}

// surplus watches that no more pods run than allowed. Kubernetes counts a quota anew
// from a cache of pods that may be behind the pods it has just let in, so that a few
// more than a quota allows can get in now and then. They are to be few, and to be taken
// back when the grace time is over.
type surplus struct {
	allowed int
	since   time.Time // the zero time while there is none
}

func (s *surplus) see(t *testing.T, pods int) {
	t.Helper()
	const patience = 10 * time.Second // for a busy machine, beyond the grace time
	switch {
	case pods <= s.allowed:
		s.since = time.Time{}
	case pods > s.allowed+s.allowed/4:
		t.Fatalf("%d pods run where %d may: the quotas are not in force", pods, s.allowed)
	case s.since.IsZero():
		s.since = time.Now()
	case time.Since(s.since) > grace+patience:
		t.Fatalf("%d pods have run for %s where %d may", pods, time.Since(s.since).Round(time.Second), s.allowed)
	}
}

// inForce reports whether the API server has taken up every quota as it is now: until
// then it lets pods in as before.
func (p *provider) inForce(ctx context.Context, t *testing.T) bool {
	t.Helper()
	all, err := p.admin.CoreV1().ResourceQuotas("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return false
	}
	for _, q := range all.Items {
		if !apiequality.Semantic.DeepEqual(q.Spec.Hard, q.Status.Hard) {
			return false
		}
	}
	return len(all.Items) > 0
}

func bobs(s *appsv1.ReplicaSet) *appsv1.ReplicaSet {
	s.Labels[policy.OriginLabel] = string(bob)
	return s
}

// With the pin go the open watches and streams, at once.
func testRevocation(t *testing.T, p *provider) {
	twin := p.twinOf(t, alice, "one")
	ended := make(chan error, 2)
	for _, path := range []string{prefix + "/api/v1/namespaces/" + twin + "/configmaps?watch=true", "/v1/offer"} {
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, p.url+path, nil)
		r.Header.Set(who, string(alice))
		response, err := http.DefaultClient.Do(r)
		if err != nil || response.StatusCode != http.StatusOK {
			t.Fatal(response, err)
		}
		go func() {
			defer response.Body.Close()
			buffer := make([]byte, 1024)
			for {
				if _, err := response.Body.Read(buffer); err != nil {
					ended <- err
					return
				}
			}
		}()
	}
	await.True(t, time.Minute, "both are open", func() bool { return p.visitors.open(alice) == 2 })
	p.Only(map[peer.ID]bool{bob: true, alice: true})
	if n := p.visitors.open(alice); n != 2 {
		t.Errorf("%d open, want both: alice is a peer", n)
	}
	p.Only(map[peer.ID]bool{bob: true})
	for range 2 {
		select {
		case <-ended:
		case <-time.After(30 * time.Second):
			t.Fatal("still open after the pin is gone")
		}
	}
}
