package tenancy

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/utils/ptr"

	"rivulet/fabric/peer"
	"rivulet/offload/policy"
	"rivulet/offload/replacement"
	"rivulet/test/harness/await"
)

const carol peer.ID = "carolccccccccccccccccccccccccccc"

// bare is a pod that no scheduler takes.
func bare(name string, change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{SchedulerName: "none", Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	if change != nil {
		change(p)
	}
	return p
}

func needs(request, limit string) (r corev1.ResourceRequirements) {
	if request != "" {
		r.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(request)}
	}
	if limit != "" {
		r.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(limit)}
	}
	return r
}

// Every pod of a consumer is bounded, whatever it says: system calls, capabilities,
// memory, the time it takes to end. What it must not have is refused, in any container.
func testPodsAreBounded(t *testing.T, p *provider) {
	ctx := t.Context()
	twin := p.twinOf(t, carol, "bounds")
	c, _ := p.consumer(t, carol, nil)
	pods := c.CoreV1().Pods(twin)
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	refused := func(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) }
	await.True(t, time.Minute, "the quota lets such a pod in", func() bool {
		_, err := pods.Create(ctx, bare("x", func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("1Gi")}
		}), dry)
		return err == nil
	})
	ns, err := p.admin.CoreV1().Namespaces().Get(ctx, twin, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	part, bound := p.partOf(carol), resource.MustParse(ns.Annotations[memoryAnnotation])
	if bound.Value() < part/2 || bound.Value() > part || part == 0 {
		t.Errorf("a pod may use %s, the part is %d", bound.String(), part)
	}

	for what, x := range map[string]struct {
		change          func(*corev1.Pod)
		pod, containers string // memory limits
		qos             corev1.PodQOSClass
	}{
		"nothing said": {nil, bound.String(), "0", corev1.PodQOSBurstable},
		"small limits": {func(p *corev1.Pod) { p.Spec.Containers[0].Resources = needs("8Mi", "16Mi") }, "0", "16Mi", corev1.PodQOSBurstable},
		"guaranteed": {func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources = needs("", "16Mi")
			p.Spec.Containers[0].Resources.Limits[corev1.ResourceCPU] = resource.MustParse("10m")
		}, "0", "16Mi", corev1.PodQOSGuaranteed},
		"one of two": {func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources = needs("8Mi", "16Mi")
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "d", Image: "i"})
		}, bound.String(), "16Mi", corev1.PodQOSBurstable},
		"more than there is": {func(p *corev1.Pod) { p.Spec.Containers[0].Resources = needs("8Mi", "1Ti") }, bound.String(), bound.String(), corev1.PodQOSBurstable},
		"more in all": {func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources = needs("8Mi", bound.String())
			p.Spec.InitContainers = []corev1.Container{{Name: "s", Image: "i", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways), Resources: needs("", "16Mi")}}
		}, bound.String(), bound.String(), corev1.PodQOSBurstable},
		"a pod's own": {func(p *corev1.Pod) { p.Spec.Resources = ptr.To(needs("16Mi", "1Ti")) }, bound.String(), "0", corev1.PodQOSBurstable},
	} {
		made, err := pods.Create(ctx, bare("x", x.change), dry)
		if err != nil {
			t.Errorf("memory, %s: %v", what, err)
			continue
		}
		whole := ptr.Deref(made.Spec.Resources, corev1.ResourceRequirements{}).Limits[corev1.ResourceMemory]
		one := made.Spec.Containers[0].Resources.Limits[corev1.ResourceMemory]
		if wantPod, wantOne := resource.MustParse(x.pod), resource.MustParse(x.containers); whole.Cmp(wantPod) != 0 || one.Cmp(wantOne) != 0 || made.Status.QOSClass != x.qos {
			t.Errorf("memory, %s: the pod has %s, its first container %s, %s; want %s, %s, %s", what, whole.String(), one.String(), made.Status.QOSClass, x.pod, x.containers, x.qos)
		}
	}

	made, err := pods.Create(ctx, bare("made", func(p *corev1.Pod) {
		p.Spec.TerminationGracePeriodSeconds = ptr.To[int64](30 * 365 * 86400)
		p.Spec.InitContainers = []corev1.Container{{Name: "i", Image: "i", SecurityContext: &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"CHOWN"}}}}}
	}), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	debugged := made.DeepCopy()
	debugged.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "e", Image: "i"}}}
	if debugged, err = pods.UpdateEphemeralContainers(ctx, "made", debugged, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if *made.Spec.TerminationGracePeriodSeconds != graceMost {
		t.Errorf("it may take %d s to end, want %d", *made.Spec.TerminationGracePeriodSeconds, graceMost)
	}
	if s := made.Spec.SecurityContext.SeccompProfile; s == nil || s.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("seccomp %v, want the runtime's", s)
	}
	for what, sc := range map[string]*corev1.SecurityContext{"container": made.Spec.Containers[0].SecurityContext,
		"init container": made.Spec.InitContainers[0].SecurityContext, "ephemeral container": debugged.Spec.EphemeralContainers[0].SecurityContext} {
		if sc == nil || sc.Capabilities == nil || !slices.Contains(sc.Capabilities.Drop, "NET_RAW") || !slices.Contains(sc.Capabilities.Drop, "MKNOD") {
			t.Errorf("%s: %v, want NET_RAW and MKNOD dropped", what, sc)
		}
	}

	first := func(change func(*corev1.Container)) func(*corev1.Pod) {
		return func(p *corev1.Pod) { change(&p.Spec.Containers[0]) }
	}
	security := func(s corev1.SecurityContext) func(*corev1.Pod) {
		return first(func(c *corev1.Container) { c.SecurityContext = &s })
	}
	projected := func(s corev1.VolumeProjection) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{s}}}}}
		}
	}
	unconfined := &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined}
	for what, change := range map[string]func(*corev1.Pod){
		"no seccomp":               security(corev1.SecurityContext{SeccompProfile: unconfined}),
		"no seccomp in the pod":    func(p *corev1.Pod) { p.Spec.SecurityContext = &corev1.PodSecurityContext{SeccompProfile: unconfined} },
		"a profile of this device": security(corev1.SecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeLocalhost, LocalhostProfile: ptr.To("x.json")}}),
		"a profile of AppArmor":    security(corev1.SecurityContext{AppArmorProfile: &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeLocalhost, LocalhostProfile: ptr.To("x")}}),
		"AppArmor by an annotation": func(p *corev1.Pod) {
			p.Annotations = map[string]string{"container.apparmor.security.beta.kubernetes.io/c": "localhost/x"}
		},
		"MKNOD":     security(corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"MKNOD"}}}),
		"NET_RAW":   security(corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"NET_RAW"}}}),
		"cap_mknod": security(corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"cap_mknod"}}}),
		"ALL":       security(corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"all"}}}),
		"procMount": security(corev1.SecurityContext{ProcMount: ptr.To(corev1.UnmaskedProcMount)}),
		"procMount with its users": func(p *corev1.Pod) {
			security(corev1.SecurityContext{ProcMount: ptr.To(corev1.UnmaskedProcMount)})(p)
			p.Spec.HostUsers = ptr.To(false)
		},
		"hostUsers": func(p *corev1.Pod) { p.Spec.HostUsers = ptr.To(false) },
		"resourceClaims": func(p *corev1.Pod) {
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "x", ResourceClaimName: ptr.To("x")}}
		},
		"podCertificate":     projected(corev1.VolumeProjection{PodCertificate: &corev1.PodCertificateProjection{SignerName: "example.com/x", KeyType: "ED25519", CredentialBundlePath: "x"}}),
		"clusterTrustBundle": projected(corev1.VolumeProjection{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{Name: ptr.To("x"), Path: "x"}}),
		"a probe of another host": first(func(c *corev1.Container) {
			c.ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Host: "127.0.0.1", Port: intstr.FromInt32(10250)}}}
		}),
		"a hook to another host": first(func(c *corev1.Container) {
			c.Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{Host: "127.0.0.1", Port: intstr.FromInt32(10250)}}}
		}),
		"held without being a record": func(p *corev1.Pod) { p.Finalizers = []string{replacement.Finalizer} },
	} {
		if _, err := pods.Create(ctx, bare("x", change), dry); !refused(err) {
			t.Errorf("%s: %v, want refused", what, err)
		}
	}
	for what, e := range map[string]corev1.EphemeralContainerCommon{
		"MKNOD":     {Name: "f", Image: "i", SecurityContext: &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"MKNOD"}}}},
		"procMount": {Name: "f", Image: "i", SecurityContext: &corev1.SecurityContext{ProcMount: ptr.To(corev1.UnmaskedProcMount)}},
		"image":     {Name: "f", Image: "10.0.0.1/x"},
	} {
		more := debugged.DeepCopy()
		more.Spec.EphemeralContainers = append(more.Spec.EphemeralContainers, corev1.EphemeralContainer{EphemeralContainerCommon: e})
		if _, err := pods.UpdateEphemeralContainers(ctx, "made", more, metav1.UpdateOptions{}); !refused(err) {
			t.Errorf("%s in an ephemeral container: %v, want refused", what, err)
		}
	}

	// What was let in is not changed into what would not have been.
	if _, err := pods.Create(ctx, bare("record", func(p *corev1.Pod) {
		p.Labels, p.Finalizers = map[string]string{policy.KeptLabel: "at-once"}, []string{replacement.Finalizer}
	}), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for what, x := range map[string][2]string{
		"a hold without its label":      {"made", `{"metadata":{"finalizers":["rivulet.dev/kept"]}}`},
		"the label off, the hold stays": {"record", `{"metadata":{"labels":{"rivulet.dev/kept":null}}}`},
		"a record with a deadline":      {"record", `{"spec":{"activeDeadlineSeconds":1}}`},
		"an image of the device's LAN":  {"made", `{"spec":{"containers":[{"name":"c","image":"192.168.1.1:5000/x"}]}}`},
	} {
		if _, err := pods.Patch(ctx, x[0], types.StrategicMergePatchType, []byte(x[1]), metav1.PatchOptions{}); !refused(err) {
			t.Errorf("%s: %v, want refused", what, err)
		}
	}
	if _, err := pods.Patch(ctx, "made", types.StrategicMergePatchType, []byte(`{"spec":{"containers":[{"name":"c","image":"example.org/x"}]}}`), metav1.PatchOptions{}); err != nil {
		t.Errorf("another image: %v", err)
	}
	if _, err := pods.Patch(ctx, "record", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Errorf("a record is let go: %v", err)
	}
	p.release(t, carol, "bounds")
}

// publicImages may have registries with a public name, privateImages have not.
var (
	publicImages = []string{"web", "web:1", "library/web", "example.org/web", "registry.example.org:5000/a/b:1", "example.org/web@sha256:" + strings.Repeat("a", 64),
		"ghcr.io/a/b", "xn--bcher-kva.example/a", "1password.com/a", "a.b-c.d2/x", "local/x", "a_b/c"}
	privateImages = []string{
		"localhost/x", "localhost:5000/x", "LOCALHOST/x", "Localhost:80/x", "localhost./x", "registry:5000/x", "127.0.0.1/x", "127.0.0.1:6443/x", "127.1/x", "0.0.0.0/x", "0:80/x",
		"10.0.0.1/x", "172.16.0.1:1/x", "192.168.1.1:5000/x", "169.254.169.254/latest", "8.8.8.8/x", "2130706433:80/x", "0x7f000001:80/x", "0x7f.0.0.1/x", "127.0.0.0x1/x", "017700000001:1/x",
		"[::1]:5000/x", "[::1]/x", "[fe80::1%25eth0]/x", "[::ffff:10.0.0.1]:80/x", "::1/x", "fd00::1/x", "nas.local/x", "nas.local:5000/x", "router.lan/x", "x.home.arpa/x", "fritz.box.internal/x",
		"kubernetes.default.svc/x", "a.localdomain/x", "user@example.org/x", "https://example.org/x", "example.org:x/x", "a..org/x", "-a.org/x", "EXAMPLE.org/x",
		"sha256:" + strings.Repeat("a", 64),
	}
)

// Images come from registries with a public name, however the name is written.
func testImagesOfTenants(t *testing.T, p *provider) {
	ctx := t.Context()
	twin := p.twinOf(t, carol, "images")
	c, _ := p.consumer(t, carol, nil)
	create := func(ctx context.Context, image string, volume bool) error {
		_, err := c.CoreV1().Pods(twin).Create(ctx, bare("x", func(p *corev1.Pod) {
			p.Spec.Containers[0].Image = image
			if volume {
				p.Spec.Containers[0].Image = "i"
				p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: image}}}}
			}
		}), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	await.True(t, time.Minute, "the rights are in force", func() bool { return create(ctx, "web", false) == nil })
	for _, image := range publicImages {
		if err := create(ctx, image, false); err != nil {
			t.Errorf("%s: %v", image, err)
		}
	}
	for _, image := range privateImages {
		for _, volume := range []bool{false, true} {
			if err := create(ctx, image, volume); !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
				t.Errorf("%s (volume: %v): %v, want refused", image, volume, err)
			}
		}
	}

	// Where this cluster has credentials nothing is fetched for others, in any spelling.
	denied := func(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) }
	withhold := func(hosts ...string) {
		p.keeps.Store(&hosts)
		p.WithheldChanged()
	}
	withhold("ghcr.io", "docker.io")
	await.True(t, time.Minute, "registries are withheld", func() bool { return denied(create(ctx, "ghcr.io/a/b", false)) })
	for _, image := range []string{"ghcr.io/a/b:1", "ghcr.io:443/a/b", "web", "library/web", "a_b/c", "docker.io/web", "index.docker.io/a/b", "registry-1.docker.io:443/a/b"} {
		for _, volume := range []bool{false, true} {
			if err := create(ctx, image, volume); !denied(err) {
				t.Errorf("%s (volume: %v), withheld: %v", image, volume, err)
			}
		}
	}
	if err := create(ctx, "quay.io/a/b", false); err != nil {
		t.Errorf("another registry: %v", err)
	}
	withhold("*")
	await.True(t, time.Minute, "all registries are withheld", func() bool { return denied(create(ctx, "quay.io/a/b", false)) })
	withhold()
	await.True(t, time.Minute, "none is withheld", func() bool {
		return create(ctx, "quay.io/a/b", false) == nil && create(ctx, "web", false) == nil
	})

	statusesOfTheLargestPod(t, p, c, twin)

	// What a registry's host answered stays here.
	const secret = `failed to pull and unpack image "example.org/x:1": failed to resolve reference: Head "https://example.org/v2/": dial tcp 192.168.1.1:443: connect: connection refused`
	made, err := c.CoreV1().Pods(twin).Create(ctx, bare("made", func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{{Name: "i", Image: "i"}}
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "d", Image: "i"})
	}), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	waits := func(name, reason, message string) corev1.ContainerStatus {
		return corev1.ContainerStatus{Name: name, Image: "i", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}}
	}
	made.Status.InitContainerStatuses = []corev1.ContainerStatus{waits("i", "ErrImagePull", secret)}
	made.Status.ContainerStatuses = []corev1.ContainerStatus{waits("c", "ImagePullBackOff", `Back-off pulling image "example.org/x:1": ErrImagePull: `+secret), waits("d", "ErrImagePull", "no match for platform in manifest: not found; "+secret)}
	if _, err := p.admin.CoreV1().Pods(twin).UpdateStatus(ctx, made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	for i, message := range []string{`Failed to pull image "example.org/x:1": ` + secret, `Back-off pulling image "example.org/x:1": ErrImagePull: ` + secret, `Failed to inspect image "example.org/x:1": ` + secret} {
		e := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("e", i)}, Reason: "Failed", Message: message, InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: "made", Namespace: twin}}
		if _, err := p.admin.CoreV1().Events(twin).Create(ctx, e, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	seen, err := c.CoreV1().Pods(twin).Get(ctx, "made", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	events, err := c.CoreV1().Events(twin).List(ctx, metav1.ListOptions{})
	if err != nil || len(events.Items) < 3 {
		t.Fatal(events, err)
	}
	if text := fmt.Sprint(seen.Status, events.Items); strings.Contains(text, "192.168") || strings.Contains(text, "refused") || strings.Contains(text, "https:") {
		t.Errorf("the consumer reads %s", text)
	}
	if m := seen.Status.ContainerStatuses[1].State.Waiting.Message; !strings.Contains(m, "no match for platform") {
		t.Errorf("the platform: %q", m)
	}
	if m := events.Items[0].Message; !strings.HasPrefix(m, `Failed to pull image "example.org/x:1": the image`) {
		t.Errorf("event %q", m)
	}

	// Neither is by which other names this cluster has the same image.
	const own, digest = "tenants.rivulet.invalid/0123456789abcdef0123456789abcdef/", "@sha256:2d4d3f5d2cf4ee9bd3a4c2d0e9b2b1a7d5b6c8e3f1a9b0c7d6e5f4a3b2c1d0e9"
	pinned, err := c.CoreV1().Pods(twin).Create(ctx, bare("named", func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{{Name: "i", Image: "i:1"}}
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "d", Image: "ghcr.io:443/a/b" + digest})
	}), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []struct{ container, image, id, wantImage, wantID string }{
		{"i", own + "docker.io/library/i:1", own + "docker.io/library/i" + digest, "", ""},
		{"i", "docker.io/library/i:latest", "sha256:2d4d", "", ""},
		{"i", "i:1", "", "", ""},
		{"i", "harbor.corp/owner/secret:7", "harbor.corp/owner/secret" + digest, "i:1", "i" + digest},
		{"i", own + "ghcr.io/another/secret:7", own + "ghcr.io/another/secret:7", "i:1", "i:1"},
		{"d", own + "ghcr.io__443/a/b" + digest, own + "ghcr.io__443/a/b" + digest, "", ""},
		{"d", "ghcr.io:443/a/bc:1", "docker.io/ghcr.io:443/a/x" + digest, "ghcr.io:443/a/b" + digest, "ghcr.io:443/a/b" + digest},
	} {
		pinned.Status = corev1.PodStatus{}
		if wrote := (corev1.ContainerStatus{Name: s.container, Image: s.image, ImageID: s.id}); s.container == "i" {
			pinned.Status.InitContainerStatuses = []corev1.ContainerStatus{wrote}
		} else {
			pinned.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c"}, wrote}
		}
		if pinned, err = p.admin.CoreV1().Pods(twin).UpdateStatus(ctx, pinned, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		all := append(pinned.Status.InitContainerStatuses, pinned.Status.ContainerStatuses...)
		got := all[len(all)-1]
		if got.Image != cmp.Or(s.wantImage, s.image) || got.ImageID != cmp.Or(s.wantID, s.id) {
			t.Errorf("the consumer reads %s %s of %s %s", got.Image, got.ImageID, s.image, s.id)
		}
	}
	p.release(t, carol, "images")
}

// release gives a twin back. testReleasedTwins waits until it is gone: Kubernetes begins only after 5 s.
func (p *provider) release(t *testing.T, as peer.ID, home string) {
	t.Helper()
	if code, body := p.ask(t, as, http.MethodDelete, "/v1/namespaces/"+home); code != http.StatusAccepted {
		t.Errorf("twin %s is given back: %d %v", home, code, body)
	}
	p.released = append(p.released, [2]string{string(as), home})
}

func testReleasedTwins(t *testing.T, p *provider) {
	if len(p.released) == 0 {
		t.Fatal("none was given back")
	}
	for _, twin := range p.released {
		await.True(t, time.Minute, "twin "+twin[1]+" is gone", func() bool {
			code, _ := p.ask(t, peer.ID(twin[0]), http.MethodDelete, "/v1/namespaces/"+twin[1])
			return code == http.StatusNotFound
		})
	}
}

// Nothing that a consumer wrote outlives what was granted by more than a minute: grace
// periods, hooks, finalizers, claims in use, controllers that make their pods again.
func testTwinsThatGoAreEmptied(t *testing.T, p *provider) {
	ctx := t.Context()
	const years = 30 * 365 * 86400
	twin := p.twinOf(t, carol, "stubborn")
	c, _ := p.consumer(t, carol, nil)
	pods := c.CoreV1().Pods(twin)
	await.True(t, time.Minute, "the rights are in force", func() bool {
		_, err := pods.List(ctx, metav1.ListOptions{})
		return err == nil
	})
	// On a node whose kubelet never reports an end: as a process that does not end.
	stuck := func(name string, change func(*corev1.Pod)) {
		t.Helper()
		await.True(t, time.Minute, name+" is let in", func() bool {
			_, err := pods.Create(ctx, bare(name, change), metav1.CreateOptions{})
			return err == nil
		})
		if err := p.admin.CoreV1().Pods(twin).Bind(ctx, &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: name}, Target: corev1.ObjectReference{Kind: "Node", Name: "ghost"}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	stuck("deleted", nil)
	if err := pods.Delete(ctx, "deleted", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](years)}); !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
		t.Errorf("deleted with a grace period of years: %v, want refused", err)
	}
	if err := p.admin.CoreV1().Pods(twin).Delete(ctx, "deleted", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](years)}); err != nil {
		t.Fatal(err)
	}
	await.True(t, time.Minute, "a deletion with a grace period of years ends in minutes", func() bool {
		got, err := pods.Get(ctx, "deleted", metav1.GetOptions{})
		return err == nil && got.DeletionGracePeriodSeconds != nil && *got.DeletionGracePeriodSeconds == graceMost
	})

	stuck("hangs", func(p *corev1.Pod) {
		p.Spec.TerminationGracePeriodSeconds = ptr.To[int64](years)
		p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"sleep", "infinity"}}}}
	})
	stuck("record", func(p *corev1.Pod) {
		p.Labels, p.Finalizers = map[string]string{policy.KeptLabel: "after-end"}, []string{replacement.Finalizer}
	})
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: ptr.To(ownClass),
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}}}}
	if _, err := c.CoreV1().PersistentVolumeClaims(twin).Create(ctx, claim, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	stuck("user", func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
	})
	again := set("again", 3, "", nil)
	again.Finalizers = []string{"orphan"}
	if _, err := c.AppsV1().ReplicaSets(twin).Create(ctx, again, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// What an earlier version let in, or this cluster's own tools did.
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "held", Finalizers: []string{"example.com/held"}}}
	if _, err := p.admin.CoreV1().ConfigMaps(twin).Create(ctx, config, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.admin.CoreV1().Pods(twin).Patch(ctx, "hangs", types.MergePatchType, []byte(`{"metadata":{"finalizers":["rivulet.dev/kept","example.com/held"]}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}

	began := time.Now()
	p.Only(map[peer.ID]bool{alice: true, bob: true})
	if _, err := p.Evict(ctx, carol); err != nil {
		t.Fatal(err)
	}
	everything := metadata.NewForConfigOrDie(p.server.Config)
	left := func(ctx context.Context) (out []string) {
		for _, kind := range writable() {
			list, err := everything.Resource(kind).Namespace(twin).List(ctx, metav1.ListOptions{})
			if err != nil {
				return []string{err.Error()}
			}
			for _, o := range list.Items {
				out = append(out, kind.Resource+"/"+o.Name)
			}
		}
		return out
	}
	defer func() {
		if t.Failed() {
			t.Log(left(context.WithoutCancel(ctx)))
		}
	}()
	await.True(t, time.Minute, "the twin is empty", func() bool {
		return len(slices.DeleteFunc(left(ctx), func(s string) bool { return s == "configmaps/kube-root-ca.crt" })) == 0
	})
	if took, most := time.Since(began), time.Minute-DefaultForceAfter+forceAfter; took > most {
		t.Errorf("it took %s, want less than %s", took, most)
	}
	await.True(t, time.Minute, "the twin is gone", func() bool {
		_, err := p.admin.CoreV1().Namespaces().Get(ctx, twin, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	t.Log("empty after", time.Since(began).Round(time.Second))
}

// statusesOfTheLargestPod: a pod with as many containers as there may be, whose images have the longest names, has its status
// written, in whichever form its runtime tells the names. It gets no more containers.
func statusesOfTheLargestPod(t *testing.T, p *provider, c kubernetes.Interface, twin string) {
	ctx := t.Context()
	image := func(i int) string { return fmt.Sprintf("%0*d/x", policy.MostImage-2, i) }
	made, err := c.CoreV1().Pods(twin).Create(ctx, bare("largest", func(p *corev1.Pod) {
		p.Spec.Containers = nil
		for i := range policy.MostContainers - 1 {
			list := &p.Spec.Containers
			if i%3 == 0 {
				list = &p.Spec.InitContainers
			}
			*list = append(*list, corev1.Container{Name: fmt.Sprintf("%063d", i), Image: image(i)})
		}
	}), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	debug := func(i int) {
		made.Spec.EphemeralContainers = append(made.Spec.EphemeralContainers, corev1.EphemeralContainer{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: fmt.Sprintf("%063d", i), Image: image(i)}})
		var after *corev1.Pod
		if after, err = c.CoreV1().Pods(twin).UpdateEphemeralContainers(ctx, made.Name, made, metav1.UpdateOptions{}); err == nil {
			made = after
		}
	}
	if debug(policy.MostContainers - 1); err != nil {
		t.Fatal(err)
	}
	if debug(policy.MostContainers); err == nil || !strings.Contains(err.Error(), "64 containers at most") {
		t.Errorf("another container: %v", err)
	}
	for what, name := range map[string]func(string) string{
		"in full": func(image string) string { return "docker.io/library/" + image + ":1" },
		"as others": func(image string) string {
			return "tenants.rivulet.invalid/0123456789abcdef/docker.io/library/" + image
		},
		"hidden": func(image string) string { return "docker.io/library/" + image[:len(image)-1] + "y" },
	} {
		fill := func(name func(string) string) (out corev1.PodStatus) {
			status := func(c, image string) corev1.ContainerStatus {
				return corev1.ContainerStatus{Name: c, Image: name(image), ImageID: name(image) + "@sha256:" + strings.Repeat("0", 64),
					State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}}
			}
			for _, c := range made.Spec.Containers {
				out.ContainerStatuses = append(out.ContainerStatuses, status(c.Name, c.Image))
			}
			for _, c := range made.Spec.InitContainers {
				out.InitContainerStatuses = append(out.InitContainerStatuses, status(c.Name, c.Image))
			}
			for _, c := range made.Spec.EphemeralContainers[:1] {
				out.EphemeralContainerStatuses = append(out.EphemeralContainerStatuses, status(c.Name, c.Image))
			}
			return out
		}
		live, err := p.admin.CoreV1().Pods(twin).Get(ctx, made.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		live.Status = fill(name)
		if live, err = p.admin.CoreV1().Pods(twin).UpdateStatus(ctx, live, metav1.UpdateOptions{}); err != nil {
			t.Errorf("names %s: %v", what, err)
		} else if what == "hidden" && live.Status.ContainerStatuses[0].Image != made.Spec.Containers[0].Image {
			t.Errorf("a name is not hidden: %s", live.Status.ContainerStatuses[0].Image)
		}
	}
}
