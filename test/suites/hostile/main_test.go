// Package hostile attacks devices that run the real binary: a is the victim, b an
// honest neighbour and consumer of it. The attackers are machines on the same LAN with
// protocol code of their own (test/suites/hostile/attacker).
//
// How to add an attack: a file for the topic, a test for the claim (docs/design/security.md
// names it), consumer or attacker.New for each attacker with an address of its own
// (10.77.0.60 and up, one test at a time), and victim, honest for what the others see
// meanwhile. A test leaves the devices peered with each other and with nobody else.
package hostile

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/mainjob"
	"rivulet/test/suites/hostile/attacker"
)

var suite = labtest.Suite{Prepare: func(ctx context.Context, s *labtest.Suite) error {
	victim, honest = s.Devices["a"], s.Devices["b"]
	return labtest.PeeredWithImage(ctx, s)
}}

var victim, honest *lab.Device

// victimAddr is the victim's on the LAN.
const victimAddr, honestAddr = "10.77.0.11", "10.77.0.12"

func TestMain(m *testing.M) { suite.Main(m, "hostile", lab.Options{Devices: 2}) }

// consumer is an attacker that the victim has taken as a peer, with a tunnel. The
// victim is rid of it when the test ends.
func consumer(t *testing.T, ctx context.Context, name, addr string) *attacker.Peer {
	t.Helper()
	a := attacker.New(t, suite.Lab, name, addr)
	p := a.Peer(ctx, victimAddr, attacker.Options{})
	rid(t, ctx, a)
	await.NoError(t, ctx, time.Minute, name+" has a tunnel", func() error {
		r, err := p.Do(ctx, "GET", "/v1/ping", nil, nil)
		if err == nil && r.Status > 299 {
			err = fmt.Errorf("%v", r)
		}
		return err
	})
	return p
}

// rid has the victim end the peering, whatever the attacker does, when the test ends.
func rid(t *testing.T, ctx context.Context, a *attacker.Attacker) {
	labtest.CleanUp(t, func(ctx context.Context) {
		if out, err := victim.Run(ctx, "rivulet", "unpeer", a.ID, "--force", "--forget", "--yes"); err != nil {
			t.Errorf("unpeer %s: %v: %s", a.Name, err, out)
		}
		await.NoError(t, ctx, time.Minute, "the twins of "+a.Name+" are gone", func() error {
			out, err := victim.Kubectl(ctx, "get", "namespaces", "-l", "rivulet.dev/origin="+a.ID, "-o", "name")
			if err == nil && out != "" {
				err = fmt.Errorf("%s", out)
			}
			return err
		})
	})
}

// pod is one of the demo's application (a web server on 8080, and busybox).
func pod(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}}, Spec: corev1.PodSpec{
		TerminationGracePeriodSeconds: ptr.To[int64](1), AutomountServiceAccountToken: ptr.To(false), EnableServiceLinks: ptr.To(false),
		Containers: []corev1.Container{{Name: "web", Image: mainjob.Image, Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("8Mi")}}}},
	}}
}

// run makes a pod with a client and returns it once it runs.
func run(t *testing.T, ctx context.Context, c kubernetes.Interface, namespace string, p *corev1.Pod) *corev1.Pod {
	t.Helper()
	await.NoError(t, ctx, time.Minute, "pod "+p.Name+" is made", func() error {
		_, err := c.CoreV1().Pods(namespace).Create(ctx, p, metav1.CreateOptions{})
		return err
	})
	var got *corev1.Pod
	await.NoError(t, ctx, time.Minute, "pod "+p.Name+" runs", func() (err error) {
		if got, err = c.CoreV1().Pods(namespace).Get(ctx, p.Name, metav1.GetOptions{}); err == nil && (got.Status.Phase != corev1.PodRunning || got.Status.PodIP == "") {
			err = fmt.Errorf("%s %s %v", got.Status.Phase, got.Status.PodIP, got.Status.ContainerStatuses)
		}
		return err
	})
	return got
}

// own runs a pod of a device's owner, in its default namespace, until the test ends.
func own(t *testing.T, ctx context.Context, d *lab.Device, name string) *corev1.Pod {
	t.Helper()
	p := pod(name)
	p.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	raw, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	labtest.Must(t, ctx, d, "sh", "-c", `printf %s "$1" | rivulet kubectl apply -f -`, "apply", string(raw))
	t.Cleanup(func() { removed(t, ctx, d, name) })
	got := &corev1.Pod{}
	await.NoError(t, ctx, time.Minute, "pod "+name+" runs", func() error {
		out, err := d.Kubectl(ctx, "get", "pod", name, "-o", "json")
		if err == nil {
			err = json.Unmarshal([]byte(out), got)
		}
		if err == nil && (got.Status.Phase != corev1.PodRunning || got.Status.PodIP == "") {
			err = fmt.Errorf("%s", got.Status.Phase)
		}
		return err
	})
	return got
}

// removed deletes a pod of a device's owner. The engine may be starting anew: it does where
// settings of registries come or go.
func removed(t *testing.T, ctx context.Context, d *lab.Device, name string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
	defer cancel()
	await.NoError(t, ctx, 2*time.Minute, "pod "+name+" is deleted", func() error {
		out, err := d.Kubectl(ctx, "delete", "pod", name, "--now", "--ignore-not-found")
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return err
	})
}

// inside runs a shell line in a pod of the victim's cluster, as its owner can, and
// returns what it prints.
func inside(t *testing.T, ctx context.Context, namespace, pod, line string) string {
	t.Helper()
	r := labtest.On(t, ctx, victim, "rivulet", "kubectl", "exec", "-n", namespace, pod, "--", "/bin/busybox", "sh", "-c", line)
	return strings.TrimSpace(r.Out)
}

// shut fails the test where a TCP connection from a pod of the victim's cluster to one of the addresses comes about, and
// where one to the control, which the pod may reach, does not: all at once, each within two seconds, the control three
// times in that time.
func shut(t *testing.T, ctx context.Context, namespace, pod string, control netip.AddrPort, addrs ...netip.AddrPort) {
	t.Helper()
	connect := func(to netip.AddrPort, word string) string {
		return fmt.Sprintf("{ /bin/busybox nc -w 2 %s %d </dev/null >/dev/null 2>&1 && echo %s; }", to.Addr(), to.Port(), word)
	}
	var line strings.Builder
	for _, to := range addrs {
		line.WriteString(connect(to, to.String()) + " & ")
	}
	for range 3 {
		line.WriteString(connect(control, "control") + "; /bin/busybox sleep 1; ")
	}
	line.WriteString("wait")
	said := strings.Fields(inside(t, ctx, namespace, pod, line.String()))
	if n := len(slices.DeleteFunc(slices.Clone(said), func(word string) bool { return word != "control" })); n != 3 {
		t.Errorf("not judged: pod %s reaches %s, which it may, %d times of 3", pod, control, n)
	}
	for _, word := range said {
		if word != "control" {
			t.Errorf("pod %s reaches %s", pod, word)
		}
	}
}

func at(p *corev1.Pod, port uint16) netip.AddrPort { return address(p.Status.PodIP, port) }

func address(ip string, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(ip), port)
}
