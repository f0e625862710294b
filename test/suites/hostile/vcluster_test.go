package hostile

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"rivulet/test/harness/await"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/mainjob"
)

// tenant is an administrator of a virtual cluster on the victim.
type tenant struct {
	t    *testing.T
	ctx  context.Context
	name string
}

func newTenant(t *testing.T, ctx context.Context, name string, args ...string) tenant {
	t.Helper()
	labtest.CleanUp(t, func(ctx context.Context) {
		if out, err := victim.Run(ctx, "rivulet", "vcluster", "delete", name, "--yes"); err != nil {
			t.Errorf("delete %s: %v: %s", name, err, out)
		}
	})
	labtest.Must(t, ctx, victim, append([]string{"rivulet", "vcluster", "create", name}, args...)...)
	v := tenant{t, ctx, name}
	labtest.Must(t, ctx, victim, "rivulet", "vcluster", "connect", name, "--kubeconfig", v.kubeconfig())
	return v
}

func (v tenant) kubeconfig() string { return "/tmp/" + v.name + ".yaml" }

func (v tenant) kubectl(args ...string) labtest.Result {
	v.t.Helper()
	return labtest.On(v.t, v.ctx, victim, append([]string{"rivulet", "kubectl", "--kubeconfig", v.kubeconfig()}, args...)...)
}

// apply makes objects, which its own API server has to take.
func (v tenant) apply(objects ...any) {
	v.t.Helper()
	raw, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": objects})
	if err != nil {
		v.t.Fatal(err)
	}
	labtest.Must(v.t, v.ctx, victim, "sh", "-c", `printf %s "$1" | rivulet kubectl --kubeconfig `+v.kubeconfig()+` create -f -`, "create", string(raw))
}

func (v tenant) get(out any, args ...string) error {
	r := v.kubectl(append(append([]string{"get"}, args...), "-o", "json")...)
	if r.Code != 0 {
		return fmt.Errorf("%s", r.ErrOut)
	}
	return json.Unmarshal([]byte(r.Out), out)
}

// running waits until a pod runs.
func (v tenant) running(name string) (p corev1.Pod) {
	v.t.Helper()
	await.NoError(v.t, v.ctx, time.Minute, "pod "+name+" of "+v.name+" runs", func() error {
		err := v.get(&p, "pod", name)
		if err == nil && (p.Status.Phase != corev1.PodRunning || p.Status.PodIP == "") {
			err = fmt.Errorf("%s %v", p.Status.Phase, p.Status.Conditions)
		}
		return err
	})
	return p
}

// twin is what namespace default of it is called at the host.
func (v tenant) twin() string {
	v.t.Helper()
	return strings.TrimPrefix(labtest.Must(v.t, v.ctx, victim, "sh", "-c", "rivulet kubectl get namespaces -o name | grep namespace/default-"+v.name+"-"), "namespace/")
}

// typed has a pod's type in it.
func typed(p *corev1.Pod) *corev1.Pod {
	p.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	return p
}

// An administrator of a virtual cluster makes whatever its API server takes: pods that want the machine never run.
func TestATenantsPodsThatWantTheMachine(t *testing.T) {
	ctx := suite.Bounded(t, 5*time.Minute)
	v := newTenant(t, ctx, "mallory")
	bad := map[string]func(*corev1.PodSpec){
		"hostpath": func(s *corev1.PodSpec) {
			s.Volumes = []corev1.Volume{{Name: "root", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}}}
			s.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "root", MountPath: "/host"}}
		},
		"by-volume": func(s *corev1.PodSpec) {
			s.Volumes = []corev1.Volume{{Name: "root", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "root"}}}}
			s.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "root", MountPath: "/host"}}
		},
		"hostnetwork": func(s *corev1.PodSpec) { s.HostNetwork = true },
		"hostpid":     func(s *corev1.PodSpec) { s.HostPID = true },
		"hostipc":     func(s *corev1.PodSpec) { s.HostIPC = true },
		"hostport": func(s *corev1.PodSpec) {
			s.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 8080, HostPort: 31999}}
		},
		"privileged": func(s *corev1.PodSpec) {
			s.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: ptr.To(true)}
		},
		"capable": func(s *corev1.PodSpec) {
			s.Containers[0].SecurityContext = &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"SYS_ADMIN"}}}
		},
		"unconfined": func(s *corev1.PodSpec) {
			s.SecurityContext = &corev1.PodSecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined}}
		},
		"on-the-node": func(s *corev1.PodSpec) { s.NodeName = "a" }, // the victim's own node
		"critical":    func(s *corev1.PodSpec) { s.PriorityClassName = "system-node-critical" },
	}
	objects := []any{
		map[string]any{"apiVersion": "v1", "kind": "PersistentVolume", "metadata": map[string]any{"name": "root"}, "spec": map[string]any{
			"capacity": map[string]any{"storage": "1Mi"}, "accessModes": []string{"ReadWriteOnce"}, "storageClassName": "mine", "hostPath": map[string]any{"path": "/"}}},
		map[string]any{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": map[string]any{"name": "root"}, "spec": map[string]any{
			"accessModes": []string{"ReadWriteOnce"}, "storageClassName": "mine", "volumeName": "root", "resources": map[string]any{"requests": map[string]any{"storage": "1Mi"}}}},
	}
	for name, change := range bad {
		p := typed(pod(name))
		change(&p.Spec)
		objects = append(objects, p)
	}
	v.apply(objects...)
	v.apply(typed(pod("good"))) // the last one: the others had their chance
	v.running("good")
	held := func(p *corev1.Pod) bool { // by the host
		sc := p.Spec.Containers[0].SecurityContext
		return !p.Spec.HostNetwork && !p.Spec.HostPID && !p.Spec.HostIPC && p.Spec.PriorityClassName != "system-node-critical" &&
			(sc == nil || !ptr.Deref(sc.Privileged, false) && (sc.Capabilities == nil || len(sc.Capabilities.Add) == 0)) &&
			len(p.Spec.Containers[0].Ports) == 0 && len(p.Spec.Volumes) == 0 &&
			(p.Spec.SecurityContext == nil || p.Spec.SecurityContext.SeccompProfile == nil || p.Spec.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeUnconfined)
	}
	twin := v.twin()
	for name := range bad {
		if name == "on-the-node" || name == "critical" { // a pod as any, or none: below
			continue
		}
		await.NoError(t, ctx, 30*time.Second, name+" is refused with a reason", func() error {
			var p corev1.Pod
			if err := v.get(&p, "pod", name); err != nil {
				return err
			}
			if p.Status.Phase == corev1.PodRunning {
				t.Fatalf("%s runs", name)
			}
			reason := p.Status.Message
			for _, c := range p.Status.Conditions { // what its administrator can mend waits, refused by no target
				if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && name == "by-volume" {
					reason = c.Message
				}
			}
			if reason == "" {
				return fmt.Errorf("%s %v", p.Status.Phase, p.Status.Conditions)
			}
			t.Logf("%s: %s", name, reason)
			if strings.Contains(reason, "rivulet ") || strings.Contains(reason, "at home") {
				t.Errorf("%s: the cure is not its administrator's", name)
			}
			return nil
		})
	}
	var there corev1.PodList
	if err := json.Unmarshal([]byte(labtest.Kubectl(t, ctx, victim, "-n", twin, "get", "pods", "-o", "json")), &there); err != nil {
		t.Fatal(err)
	}
	for i := range there.Items {
		if p := &there.Items[i]; !held(p) {
			t.Errorf("the host has %s: %+v", p.Name, p.Spec)
		}
	}
}

// Whatever address an administrator of a virtual cluster writes into nodes, pods and endpoints: its API server gets no
// answer from the device, its LAN, or another virtual cluster.
func TestATenantsAddressesLeadNowhere(t *testing.T) {
	ctx := suite.Bounded(t, 5*time.Minute)
	mine := own(t, ctx, victim, "mine")
	other := newTenant(t, ctx, "victor")
	other.apply(typed(pod("web")))
	theirs := other.running("web")
	v := newTenant(t, ctx, "mallory")
	v.apply(typed(pod("good")))
	v.running("good")
	node := labtest.Kubectl(t, ctx, victim, "get", "nodes", "a", "-o", `jsonpath={.status.addresses[?(@.type=="InternalIP")].address}`)
	api := labtest.Kubectl(t, ctx, victim, "get", "service", "kubernetes", "-o", "jsonpath={.spec.clusterIP}")
	targets := []struct {
		what, addr string
		port       int
		tls        bool
	}{
		{"the host's API", node, 6443, true}, {"its kubelet", node, 10250, true}, {"its control port", victimAddr, 7442, true}, {"its Service", api, 443, true},
		{"another virtual cluster", node, 17000, true}, {"a pod of the owner", mine.Status.PodIP, 8080, false},
		{"a pod of another", theirs.Status.PodIP, 8080, false}, {"the neighbour", honestAddr, 7442, true}, {"metadata of a cloud", "169.254.169.254", 80, false},
	}
	var objects []any
	for i, to := range targets {
		name := fmt.Sprint("x", i)
		objects = append(objects,
			&corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
				Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: to.addr}},
				DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: int32(to.port)}}}},
			map[string]any{"apiVersion": "v1", "kind": "Service", "metadata": map[string]any{"name": name}, "spec": map[string]any{"ports": []any{map[string]any{"port": to.port}}}})
		if strings.HasPrefix(to.addr, "169.254.") {
			continue // no slice may have it
		}
		objects = append(objects, map[string]any{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": map[string]any{"name": name, "labels": map[string]any{"kubernetes.io/service-name": name}},
			"addressType": "IPv4", "ports": []any{map[string]any{"port": to.port}}, "endpoints": []any{map[string]any{"addresses": []string{to.addr}}}})
	}
	v.apply(objects...)
	for i, to := range targets {
		name, scheme := fmt.Sprint("x", i), ""
		if to.tls {
			scheme = "https:"
		}
		patch := fmt.Sprintf(`{"status":{"podIP":%q,"podIPs":[{"ip":%q}]}}`, to.addr, to.addr)
		if r := v.kubectl("patch", "pod", "good", "--subresource", "status", "--type", "merge", "-p", patch); r.Code != 0 {
			t.Errorf("%s: %s", to.what, r.ErrOut)
		}
		for _, path := range []string{
			fmt.Sprintf("/api/v1/namespaces/default/pods/%sgood:%d/proxy/version", scheme, to.port), // first: its status is mended soon
			fmt.Sprintf("/api/v1/nodes/%s%s:%d/proxy/version", scheme, name, to.port),
			fmt.Sprintf("/api/v1/nodes/%s/proxy/pods", name),
			fmt.Sprintf("/api/v1/namespaces/default/services/%s%s:%d/proxy/version", scheme, name, to.port),
		} {
			r := v.kubectl("get", "--raw", path, "--request-timeout", "5s")
			// Its own pod answers once its status is mended, and its own kubelet at the host's address, which its loopback has.
			own := strings.Contains(r.Out, `"pod":"good"`) || strings.Contains(r.Out, `"name":"good"`) && !strings.Contains(r.Out, `"name":"mine"`)
			if r.Code == 0 && !own {
				t.Errorf("%s answers at %s: %.200s", to.what, path, r.Out)
			}
			for _, text := range []string{"Unauthorized", "Forbidden", "certificate"} { // of who would be there
				if strings.Contains(r.ErrOut, text) {
					t.Errorf("%s, at %s: %s", to.what, path, r.ErrOut)
				}
			}
		}
	}

	// Names that lead elsewhere lead its pods nowhere either.
	labtest.Kubectl(t, ctx, victim, "expose", "pod", "mine", "--port", "8080")
	labtest.CleanUp(t, func(ctx context.Context) {
		labtest.On(t, ctx, victim, "rivulet", "kubectl", "delete", "service", "mine")
	})
	for name, alias := range map[string]string{"own": "mine.default.svc.cluster.local", "api": "kubernetes.default.svc.cluster.local", "web": "web." + other.twin() + ".svc.cluster.local"} {
		v.apply(map[string]any{"apiVersion": "v1", "kind": "Service", "metadata": map[string]any{"name": "to-" + name}, "spec": map[string]any{"type": "ExternalName", "externalName": alias}})
	}
	for _, url := range []string{"http://to-own:8080/", "http://to-web:8080/", "http://mine.default.svc.cluster.local:8080/", "http://" + mine.Status.PodIP + ":8080/"} {
		if r := v.kubectl("exec", "good", "--", "/bin/web", "get", url); r.Code == 0 {
			t.Errorf("a pod gets an answer from %s: %s", url, r.Out)
		}
	}
}

// What an administrator of a virtual cluster has been given holds nowhere else.
func TestATenantsCredentialsHoldNowhereElse(t *testing.T) {
	ctx := suite.Bounded(t, 4*time.Minute)
	v, other := newTenant(t, ctx, "mallory"), newTenant(t, ctx, "victor")
	token := strings.TrimSpace(v.kubectl("create", "token", "default").Out)
	if token == "" {
		t.Fatal("no token")
	}
	for what, c := range map[string]struct {
		server string
		in     bool
	}{
		"its own": {labtest.Must(t, ctx, victim, "sed", "-n", "s/ *server: //p", v.kubeconfig()), true},
		"another": {labtest.Must(t, ctx, victim, "sed", "-n", "s/ *server: //p", other.kubeconfig()), false},
		"host's":  {"https://127.0.0.1:6443", false},
	} {
		certificate := labtest.On(t, ctx, victim, "rivulet", "kubectl", "--kubeconfig", v.kubeconfig(), "--server", c.server, "--insecure-skip-tls-verify", "auth", "can-i", "get", "secrets", "-A")
		if (certificate.Code == 0) != c.in {
			t.Errorf("its certificate at %s API: %d %s%s", what, certificate.Code, certificate.Out, certificate.ErrOut)
		}
		bearer := labtest.On(t, ctx, victim, "rivulet", "kubectl", "--kubeconfig", "/dev/null", "--token", token, "--server", c.server, "--insecure-skip-tls-verify", "auth", "whoami")
		if (bearer.Code == 0) != c.in {
			t.Errorf("a token of its account at %s API: %d %s%s", what, bearer.Code, bearer.Out, bearer.ErrOut)
		}
	}
}

// Objects without end: its own API server refuses them in the end, and neither the device nor another virtual cluster is slower for it.
func TestATenantsObjectsWithoutEnd(t *testing.T) {
	ctx := suite.Bounded(t, 6*time.Minute)
	other := newTenant(t, ctx, "victor")
	v := newTenant(t, ctx, "mallory", "--datastore", "16Mi", "--quota", "pods=10")
	v.apply(typed(pod("good")))
	v.running("good")
	// All that fits into names, labels and annotations goes to the host with a pod, or is refused by it.
	big := typed(pod(strings.Repeat("n", 63)))
	big.Annotations = map[string]string{"big": strings.Repeat("x", 30<<10)}
	for i := range 300 {
		big.Labels[fmt.Sprintf("%s%d.example.org/%s", strings.Repeat("l", 50), i, strings.Repeat("l", 60))] = strings.Repeat("v", 63)
	}
	v.apply(big, map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{"name": "many"}, "spec": map[string]any{
		"replicas": 400, "selector": map[string]any{"matchLabels": map[string]any{"app": "many"}},
		"template": map[string]any{"metadata": map[string]any{"labels": map[string]any{"app": "many"}}, "spec": map[string]any{"containers": []any{map[string]any{
			"name": "web", "image": mainjob.Image, "resources": map[string]any{"requests": map[string]any{"cpu": "1m", "memory": "1Mi"}}}}}}}})
	full := labtest.On(t, ctx, victim, "sh", "-c", `head -c 900000 /dev/urandom | base64 -w 0 | head -c 900000 > /tmp/big && for i in $(seq 40); do
		rivulet kubectl --kubeconfig `+v.kubeconfig()+` create configmap big-$i --from-file=/tmp/big || exit 1; done`)
	if full.Code == 0 || !strings.Contains(full.ErrOut, "the datastore of virtual cluster mallory is full") {
		t.Errorf("%d: %s", full.Code, full.ErrOut)
	}
	began := time.Now()
	labtest.Kubectl(t, ctx, victim, "get", "nodes")
	if r := other.kubectl("get", "namespaces"); r.Code != 0 {
		t.Errorf("another virtual cluster: %s", r.ErrOut)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("the host and another virtual cluster answer after %s", took)
	}
	if n := len(strings.Fields(labtest.Kubectl(t, ctx, victim, "-n", v.twin(), "get", "pods", "-o", "name"))); n > 10 {
		t.Errorf("the host has %d pods of it, 10 are allowed", n)
	}
	// What is full can be emptied.
	if r := v.kubectl("delete", "configmaps", "--all", "--wait=false"); r.Code != 0 {
		t.Errorf("%s", r.ErrOut)
	}
	await.NoError(t, ctx, 90*time.Second, "there is room again", func() error {
		if r := v.kubectl("create", "configmap", "small"); r.Code != 0 {
			return fmt.Errorf("%s", r.ErrOut)
		}
		return nil
	})
}
