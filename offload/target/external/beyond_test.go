package external_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"rivulet/offload/consumer/volume"
	"rivulet/offload/target/external"
	"rivulet/offload/target/external/rewrite"
	"rivulet/test/harness/apiserver"
	"rivulet/test/harness/await"
)

// TestBeyondThePlainPod is what a campus does to pods, and what a home wants of them,
// beside running them: two homes in one namespace, streams, metrics, sidecars that are
// injected, bounds on containers, claims and Ingresses,
// credentials that are renewed. Three real API servers; only
// containers are not there.
func TestBeyondThePlainPod(t *testing.T) {
	servers := apiserver.StartAll(t, 3)
	ctx := t.Context()
	there := enrol(t, servers[2])
	apiserver.StartKubelet(t, there.Server, "campus-node")
	// Some consoles end the address in a slash.
	credential, err := external.ReadCredential(bytes.Replace(there.kubeconfig, []byte(there.Config.Host), []byte(there.Config.Host+"/"), 1), t.TempDir(), "", false)
	must(t, err)
	there.grant(t, external.Role(shared, "system:serviceaccount:default:"+account, external.NetworkNone))
	_, err = there.Client.CoreV1().ResourceQuotas(shared).Patch(ctx, "quota", types.MergePatchType, []byte(`{"spec":{"hard":{"requests.cpu":"4","pods":"20"}}}`), metav1.PatchOptions{})
	must(t, err)
	_, err = there.Client.CoreV1().LimitRanges(shared).Create(ctx, &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Name: "bounds"},
		Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{Type: corev1.LimitTypeContainer,
			Min: corev1.ResourceList{"cpu": resource.MustParse("5m")}, Max: corev1.ResourceList{"memory": resource.MustParse("256Mi")},
			// What is asked for by default would be the limit, and which of two LimitRanges is first, chance.
			DefaultRequest: corev1.ResourceList{"memory": resource.MustParse("16Mi")},
			Default:        corev1.ResourceList{"memory": resource.MustParse("64Mi")}}}}}, metav1.CreateOptions{})
	must(t, err)

	renewed := renewals(t, there)
	one := &home{Server: servers[0], test: t}
	two := &home{Server: servers[1], test: t, id: "zyxwvutsrqponmlkjihgfedcba765432"}
	settings := external.Settings{Name: "campus", Namespace: shared, Arch: "arm64", Network: external.NetworkNone,
		Limits: corev1.ResourceList{"cpu": resource.MustParse("8"), "memory": resource.MustParse("2Gi")}}
	for h, cpu := range map[*home]string{one: "100m", two: "200m"} {
		spec, err := external.Spec(external.Config{Settings: settings, Credential: credential, Cluster: h.cluster()})
		must(t, err)
		h.run(spec)
		h.offloaded(t, "lab")
		_, err = h.Client.CoreV1().ConfigMaps("lab").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings"}, Data: map[string]string{"who": h.cluster()}}, metav1.CreateOptions{})
		must(t, err)
		d := web()
		d.Spec.Template.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse(cpu)}
		_, err = h.Client.AppsV1().Deployments("lab").Create(ctx, d, metav1.CreateOptions{})
		must(t, err)
	}
	pod := one.away(t, "app=web")
	two.away(t, "app=web")

	t.Run("two homes", func(t *testing.T) { twoHomes(t, there, one, two) })
	t.Run("streams", func(t *testing.T) { streams(t, one, pod.Name) })
	t.Run("metrics", func(t *testing.T) { measured(t, one, there, pod) })
	t.Run("bounds of containers", func(t *testing.T) { bounds(t, one, there) })
	t.Run("claims and Ingresses", func(t *testing.T) { notTaken(t, one) })
	t.Run("sidecars", func(t *testing.T) { sidecars(t, one, there) })
	t.Run("credentials are renewed", renewed)
	t.Run("one home is purged", func(t *testing.T) {
		one.stop()
		before := there.of(t, two)
		homes, err := external.Homes(ctx, credential, shared)
		must(t, err)
		if !slices.Contains(homes, one.cluster()) || !slices.Contains(homes, two.cluster()) {
			t.Fatalf("homes %v", homes)
		}
		n, err := external.Purge(ctx, credential, shared, one.cluster())
		must(t, err)
		if left := there.of(t, one); n == 0 || left != "" {
			t.Errorf("%d objects were deleted, left is\n%s", n, left)
		}
		if after := there.of(t, two); after != before {
			t.Errorf("of the other home there was\n%sand is\n%s", before, after)
		}
	})
}

// away waits until the one pod of home that the selector finds runs there.
func (h *home) away(t *testing.T, selector string) *corev1.Pod {
	t.Helper()
	var pod *corev1.Pod
	await.Empty(t, 90*time.Second, selector+" runs at the campus", func(ctx context.Context) string {
		list, err := h.Client.CoreV1().Pods("lab").List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err != nil || len(list.Items) != 1 {
			return fmt.Sprint(len(list.Items), err)
		}
		pod = &list.Items[0]
		if pod.Spec.NodeName != "burst-campus" || pod.Status.Phase != corev1.PodRunning {
			return fmt.Sprintf("%s %s %s, offloaded here: %v", pod.Spec.NodeName, pod.Status.Phase, pod.Status.Message, h.offload.Reflects("lab", h.target))
		}
		return ""
	})
	return pod
}

// of is all that a home has there, a line for each object, sorted.
func (c *campus) of(t *testing.T, h *home) string {
	t.Helper()
	ctx, selector := t.Context(), metav1.ListOptions{LabelSelector: rewrite.HomeLabel + "=" + h.cluster()}
	var lines []string
	add := func(kind string, o *metav1.ObjectMeta) {
		lines = append(lines, fmt.Sprintf("%s %s %s\n", kind, o.Name, o.UID))
	}
	maps, err := c.Client.CoreV1().ConfigMaps(shared).List(ctx, selector)
	must(t, err)
	for i := range maps.Items {
		add("ConfigMap", &maps.Items[i].ObjectMeta)
	}
	secrets, err := c.Client.CoreV1().Secrets(shared).List(ctx, selector)
	must(t, err)
	for i := range secrets.Items {
		add("Secret", &secrets.Items[i].ObjectMeta)
	}
	sets, err := c.Client.AppsV1().ReplicaSets(shared).List(ctx, selector)
	must(t, err)
	for i := range sets.Items {
		add("ReplicaSet", &sets.Items[i].ObjectMeta)
	}
	pods, err := c.Client.CoreV1().Pods(shared).List(ctx, selector)
	must(t, err)
	for i := range pods.Items {
		add("Pod", &pods.Items[i].ObjectMeta)
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// twoHomes: the same names in both; neither sees, touches or counts the other's.
func twoHomes(t *testing.T, c *campus, one, two *home) {
	ctx := t.Context()
	for h, want := range map[*home]string{one: "3800m", two: "3900m"} { // of 4, less what the other has
		await.Empty(t, 60*time.Second, "a home's room is what the other leaves, its own not counted", func(ctx context.Context) string {
			n, err := h.Client.CoreV1().Nodes().Get(ctx, "burst-campus", metav1.GetOptions{})
			if err != nil || n.Status.Allocatable.Cpu().Cmp(resource.MustParse(want)) != 0 {
				return fmt.Sprint(n.Status.Allocatable.Cpu(), " not ", want, err)
			}
			return ""
		})
		if nodes := h.offload.Status().VirtualNodes; len(nodes) != 1 || nodes[0].Pods != 1 {
			t.Errorf("pods of one home are counted as %+v", nodes)
		}
	}
	for h, other := range map[*home]*home{one: two, two: one} {
		for line := range strings.SplitSeq(strings.TrimSpace(c.of(t, h)), "\n") {
			name := strings.Fields(line)[1]
			if (rewrite.Names{Cluster: other.cluster()}).Belongs("lab", name) {
				t.Errorf("%s is called like one of the other home", line)
			}
		}
		events, err := h.Client.CoreV1().Events("lab").List(ctx, metav1.ListOptions{})
		must(t, err)
		for _, e := range events.Items {
			for line := range strings.SplitSeq(strings.TrimSpace(c.of(t, other)), "\n") {
				if name := strings.Fields(line)[1]; strings.Contains(e.Message+e.InvolvedObject.Name, name) {
					t.Errorf("an event of the other home: %s", e.Message)
				}
			}
		}
	}
	before := c.of(t, two)
	_, err := one.Client.CoreV1().ConfigMaps("lab").Patch(ctx, "settings", types.MergePatchType, []byte(`{"data":{"more":"x"}}`), metav1.PatchOptions{})
	must(t, err)
	await.Empty(t, 30*time.Second, "a change at one home", func(ctx context.Context) string {
		m, err := c.Client.CoreV1().ConfigMaps(shared).Get(ctx, rewrite.Names{Cluster: one.cluster()}.Away("lab", "settings"), metav1.GetOptions{})
		if err != nil || m.Data["more"] != "x" {
			return fmt.Sprint(m.Data, err)
		}
		return ""
	})
	other, err := c.Client.CoreV1().ConfigMaps(shared).Get(ctx, rewrite.Names{Cluster: two.cluster()}.Away("lab", "settings"), metav1.GetOptions{})
	must(t, err)
	if now := c.of(t, two); now != before || other.Data["who"] != two.cluster() || other.Data["more"] != "" {
		t.Errorf("it changed the other's: %v\n%s", other.Data, now)
	}
}

// bounds: what a container says nothing of is the campus's to fill in, and what it may
// not have is refused in the campus's words.
func bounds(t *testing.T, h *home, c *campus) {
	pods, err := c.Client.CoreV1().Pods(shared).List(t.Context(), metav1.ListOptions{LabelSelector: rewrite.HomeLabel + "=" + h.cluster() + ",away.rivulet.dev/app=web"})
	must(t, err)
	if len(pods.Items) != 1 {
		t.Fatalf("%d pods", len(pods.Items))
	}
	if r := pods.Items[0].Spec.Containers[0].Resources; r.Limits.Memory().String() != "64Mi" || r.Requests.Memory().String() != "16Mi" || r.Requests.Cpu().String() != "100m" {
		t.Errorf("resources there: %+v", r)
	}
	h.create(t, "small", corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "work"}}})
	h.away(t, "name=small") // it asks for nothing; the least allowed is filled in, not 0
	big := corev1.ResourceRequirements{Limits: corev1.ResourceList{"memory": resource.MustParse("1Gi")}, Requests: corev1.ResourceList{"memory": resource.MustParse("16Mi")}}
	h.create(t, "big", corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "work", Resources: big}}})
	await.Empty(t, 60*time.Second, "what is too large waits, and says why", func(ctx context.Context) string {
		p, err := h.Client.CoreV1().Pods("lab").Get(ctx, "big", metav1.GetOptions{})
		if err != nil || p.Status.Phase != corev1.PodPending || !strings.Contains(p.Status.Message, "maximum memory usage per Container is 256Mi") {
			return fmt.Sprint(p.Status.Phase, p.Status.Message, err)
		}
		return ""
	})
	must(t, h.Client.CoreV1().Pods("lab").Delete(t.Context(), "big", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}))
}

// create makes a pod that has its name as label "name".
func (h *home) create(t *testing.T, name string, spec corev1.PodSpec) {
	t.Helper()
	_, err := h.Client.CoreV1().Pods("lab").Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"name": name}}, Spec: spec}, metav1.CreateOptions{})
	must(t, err)
}

// notTaken: claims and Ingresses do not follow, and it is said why.
func notTaken(t *testing.T, h *home) {
	ctx := t.Context()
	_, err := h.Client.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "folders"},
		Provisioner: volume.Provisioner, VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)}, metav1.CreateOptions{})
	must(t, err)
	_, err = h.Client.CoreV1().PersistentVolumeClaims("lab").Create(ctx, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data"},
		Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: ptr.To("folders"), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{"storage": resource.MustParse("1Mi")}}}}, metav1.CreateOptions{})
	must(t, err)
	h.create(t, "db", corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "work"}},
		Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}})
	prefix := networkingv1.PathTypePrefix
	_, err = h.Client.NetworkingV1().Ingresses("lab").Create(ctx, &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Name: "shop", Annotations: map[string]string{"rivulet.dev/reflect": "on"}},
		Spec: networkingv1.IngressSpec{Rules: []networkingv1.IngressRule{{IngressRuleValue: networkingv1.IngressRuleValue{HTTP: &networkingv1.HTTPIngressRuleValue{
			Paths: []networkingv1.HTTPIngressPath{{Path: "/", PathType: &prefix, Backend: networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{Name: "web", Port: networkingv1.ServiceBackendPort{Number: 80}}}}}}}}}}}, metav1.CreateOptions{})
	must(t, err)
	for about, want := range map[string]string{"data": "burst-campus takes no volumes: ", "shop": "burst-campus takes no Ingresses: "} {
		await.Empty(t, 60*time.Second, "an event on "+about+" says "+want, func(ctx context.Context) string {
			list, err := h.Client.CoreV1().Events("lab").List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + about})
			if err != nil {
				return err.Error()
			}
			var said []string
			for _, e := range list.Items {
				if strings.Contains(e.Message, want) {
					return ""
				}
				said = append(said, e.Message)
			}
			return fmt.Sprint(said)
		})
	}
	p, err := h.Client.CoreV1().Pods("lab").Get(ctx, "db", metav1.GetOptions{})
	must(t, err)
	if p.Status.Phase != corev1.PodPending {
		t.Errorf("it is %s", p.Status.Phase)
	}
	must(t, h.Client.CoreV1().Pods("lab").Delete(ctx, "db", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}))
}
