package hostile

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/test/harness/await"
	"rivulet/test/harness/labtest"
)

// A peer dials pods of the device's owner: nothing, from whatever address of its prefix.
// What the owner opens is reached, by those it is opened to, as long as it is open:
// connections that stand stop with it.
func TestAPeerReachesWhatIsOpened(t *testing.T) {
	ctx := suite.Bounded(t, 5*time.Minute)
	p := consumer(t, ctx, "mallory", "10.77.0.64")
	vault := own(t, ctx, victim, "vault")
	labtest.Must(t, ctx, victim, "rivulet", "kubectl", "expose", "pod", "vault", "--port=80", "--target-port=8080")
	labtest.CleanUp(t, func(ctx context.Context) {
		labtest.Kubectl(t, ctx, victim, "delete", "service", "vault", "--ignore-not-found")
		labtest.Kubectl(t, ctx, victim, "label", "namespace", "default", "rivulet.dev/open-to-")
	})
	web := netip.AddrPortFrom(netip.MustParseAddr(vault.Status.PodIP), 8080)
	other := netip.AddrPortFrom(web.Addr(), 8081) // nobody listens: refused, if it is reached
	reached := func(addr netip.AddrPort) bool { return len(p.Reached(ctx, addr.String())) > 0 }
	until := func(what string, want bool) {
		t.Helper()
		await.NoError(t, ctx, 30*time.Second, what, func() error {
			if reached(web) != want {
				return fmt.Errorf("the pod is reached: %v", !want)
			}
			return nil
		})
	}

	var everywhere []netip.Addr
	for _, host := range []string{"10.42.0.5", "10.42.0.1", "10.42.255.1", p.TunnelAddress.String()} {
		everywhere = append(everywhere, p.Own(netip.MustParseAddr(host)))
	}
	for _, from := range p.ReachedFrom(ctx, web, everywhere...) { // or refused: silence is wanted
		t.Errorf("a pod of the owner is reached from %s", from)
	}

	labtest.Must(t, ctx, victim, "rivulet", "open", "default/vault", "--to", "b")
	if reached(web) {
		t.Error("what is open to b is reached by another")
	}
	labtest.Must(t, ctx, victim, "rivulet", "open", "default/vault", "--to", "all")
	until("the Service is open", true)
	if reached(other) {
		t.Error("a Service opens more than its ports")
	}
	stands, err := p.Dial(ctx, "tcp", web.String())
	if err != nil {
		t.Fatal(err)
	}
	defer stands.Close()
	if err := get(stands); err != nil {
		t.Fatalf("open, and nothing comes: %v", err)
	}
	labtest.Must(t, ctx, victim, "rivulet", "close", "default/vault")
	until("the Service is closed", false)
	if err := get(stands); err == nil {
		t.Error("closed, and a connection goes on")
	}

	labtest.Must(t, ctx, victim, "rivulet", "open", "default", "--to", p.ID)
	until("the namespace is open", true)
	if !reached(other) {
		t.Error("a namespace opens its pods")
	}
	labtest.Must(t, ctx, victim, "rivulet", "close", "default")
	until("the namespace is closed", false)
}

// get asks for a page over a connection that stands.
func get(c net.Conn) error {
	if err := c.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
		return err
	}
	if _, err := fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		return err
	}
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return err
	}
	return r.Body.Close()
}

// A tenant asks the cluster's DNS for what is not its consumer's: there are no such names. The resolver itself has its
// name for everybody.
func TestATenantsNames(t *testing.T) {
	ctx := suite.Bounded(t, 5*time.Minute)
	p := consumer(t, ctx, "mallory", "10.77.0.65")
	mine := own(t, ctx, victim, "mine")
	twin := p.Twin(ctx, "lab")
	run(t, ctx, p.Kubernetes(ctx), twin, pod("spy"))
	ask := func(where, who, name string) string {
		return inside(t, ctx, where, who, "/bin/busybox nslookup "+name+" 10.43.0.10 >/dev/null 2>&1 && echo found")
	}
	// One name that it may ask for: what follows shows nothing where its DNS is dead.
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "its-own"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
	if _, err := p.Kubernetes(ctx).CoreV1().Services(twin).Create(ctx, service, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await.NoError(t, ctx, 30*time.Second, "a name of its own", func() error {
		if name := "its-own." + twin + ".svc.cluster.local"; ask(twin, "spy", name) != "found" {
			return fmt.Errorf("a tenant does not find %s, its own", name)
		}
		return nil
	})
	labtest.Kubectl(t, ctx, victim, "expose", "pod", "mine", "--port", "8080")
	labtest.CleanUp(t, func(ctx context.Context) {
		labtest.On(t, ctx, victim, "rivulet", "kubectl", "delete", "service", "mine")
	})
	await.NoError(t, ctx, 30*time.Second, "the owner's own Service has a name", func() error {
		if ask("default", "mine", "mine.default.svc.cluster.local") != "found" {
			return errors.New("it has none")
		}
		return nil
	})
	address := netip.MustParseAddr(mine.Status.PodIP).As4()
	for _, name := range []string{"kubernetes.default.svc.cluster.local", "mine.default.svc.cluster.local", fmt.Sprintf("%d-%d-%d-%d.default.pod.cluster.local", address[0], address[1], address[2], address[3])} {
		if ask("default", "mine", name) != "found" {
			t.Errorf("the owner's own pod does not find %s", name)
		}
		if ask(twin, "spy", name) == "found" {
			t.Errorf("a tenant finds %s", name)
		}
	}
}
