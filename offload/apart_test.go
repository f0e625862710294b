package offload

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/fabric/changes"
	"rivulet/fabric/rpc"
	"rivulet/offload/consumer"
	"rivulet/offload/consumer/stream"
	"rivulet/offload/homeapi"
	"rivulet/offload/provider"
	"rivulet/offload/provider/tenancy"
	peertarget "rivulet/offload/target/peer"
	"rivulet/test/harness/apiserver"
	"rivulet/test/harness/await"
)

// twoConsumers is the part of the story in which a hosts the consumer of b beside its own:
// of b only the provider is left, by itself. Each serves its own home, and what asks a for
// an API server is led to that of its home. A Deployment web of a runs at b, and goes on.
func twoConsumers(t *testing.T, a, b *device) {
	ctx := t.Context()
	onlyPod := func(d *device, node, prefix string) (pod corev1.Pod) {
		t.Helper()
		await.Empty(t, time.Minute, "a pod of "+d.name+" runs at "+node, func(ctx context.Context) string {
			pods := d.pods(ctx, t, "app=web")
			if len(pods) != 1 || pods[0].Spec.NodeName != node || pods[0].Status.Phase != corev1.PodRunning || !strings.HasPrefix(pods[0].Status.PodIP, prefix) {
				return fmt.Sprintf("%d pods, %s", len(pods), states(pods))
			}
			pod = pods[0]
			return ""
		})
		return pod
	}
	onlyPod(a, "b", "10.77.") // before there is room at home
	apiserver.StartKubelet(t, a.Server, "a-node")
	b.stop()
	running, stop := context.WithCancel(context.Background())
	var all sync.WaitGroup
	end := func() { stop(); all.Wait() }
	defer end()
	log := slog.New(slog.NewTextHandler(testWriter{t, b.warnings}, nil)).With("cluster", "b apart")
	b.fabric.newRoutes()
	lent, err := provider.New(provider.Config{Peers: b.fabric, Config: tenancy.Config{Local: b.Config, PeerID: rpc.PeerID, Log: log}})
	must(t, err)
	tenant, err := consumer.New(consumer.Config{Home: b.Config, ID: string(b.identity.ID), Host: "a", NodeIP: netip.MustParseAddr("127.0.0.1"),
		Authority: stream.EngineAuthority(b.TLSDir), Router: a.offload.router, Log: log})
	must(t, err)
	peers := &peertarget.Source{Fabric: b.fabric, PodCIDR: podCIDR, Control: control, Consumer: tenant, Moved: new(changes.Signal)}
	consuming, leave := context.WithCancel(running)
	defer leave()
	left := make(chan struct{})
	all.Go(func() { _ = lent.Run(running) })
	all.Go(func() { peers.Run(running) })
	all.Go(func() { defer close(left); _ = tenant.Run(consuming) })

	b.nodeIs(t, "a")
	b.offloadNamespace(t, "lab", "remote")
	b.create(t, web(1))
	ofA, ofB := onlyPod(a, "b", "10.77."), onlyPod(b, "a", "10.88.")
	if n := len(a.away(ctx, t, string(ofB.UID))); n != 1 {
		t.Errorf("%d pods at a for that of b", n)
	}
	for d, pod := range map[*device]corev1.Pod{a: ofA, b: ofB} {
		await.Empty(t, time.Minute, "each home has the logs of its pod", func(ctx context.Context) string {
			text, err := d.Client.CoreV1().Pods("lab").GetLogs(pod.Name, &corev1.PodLogOptions{}).DoRaw(ctx)
			if err != nil || !strings.HasPrefix(string(text), "log of "+pod.Name+"/web") {
				return fmt.Sprintf("%q %v", text, err)
			}
			return ""
		})
	}

	roots := map[*device]*x509.CertPool{}
	for _, d := range []*device{a, b} {
		root, err := d.Client.CoreV1().ConfigMaps("lab").Get(ctx, homeapi.RootCA, metav1.GetOptions{})
		must(t, err)
		roots[d] = x509.NewCertPool()
		roots[d].AppendCertsFromPEM([]byte(root.Data["ca.crt"]))
	}
	// home is the cluster whose API server answers a pod with the address, "" if none does.
	home := func(from string) string {
		t.Helper()
		answers := make([]string, 2)
		var asking sync.WaitGroup
		for i, d := range []*device{a, b} {
			asking.Go(func() {
				c := tls.Client(a.fabric.comes(t, from), &tls.Config{RootCAs: roots[d], ServerName: homeapi.Host})
				defer c.Close()
				if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
					t.Error(err)
				} else if c.Handshake() == nil {
					answers[i] = d.name
				}
			})
		}
		asking.Wait()
		return strings.Join(answers, "")
	}
	gets := func(from, want string) {
		t.Helper()
		await.Empty(t, time.Minute, from+" gets to the API server of "+want, func(context.Context) string {
			if got := home(from); got != want {
				return fmt.Sprintf("it gets to that of %q", got)
			}
			return ""
		})
	}
	gets(ofA.Status.PodIP, "a")
	gets(ofB.Status.PodIP, "b")
	// nobody is led anywhere, and a's pod beside them is led home.
	nobody := func(from ...string) {
		t.Helper()
		var asking sync.WaitGroup
		for _, stranger := range from {
			asking.Go(func() {
				if got := home(stranger); got != "" {
					t.Errorf("%s gets to the API server of %q", stranger, got)
				}
			})
		}
		if got := home(ofA.Status.PodIP); got != "a" {
			t.Errorf("a pod of a gets to the API server of %q", got)
		}
		asking.Wait()
	}
	nobody("10.77.0.250", "10.88.0.250")
	await.Empty(t, time.Minute, "nobody has a problem", func(context.Context) string {
		if all := fmt.Sprint(a.offload.Problems(), tenant.Problems(), lent.Problems()); all != "map[] map[] map[]" {
			return all
		}
		return ""
	})

	// One consumer ends, and the other does not notice.
	leave()
	<-left
	nobody(ofB.Status.PodIP)
	end()
	b.start()
	if again := onlyPod(b, "a", "10.88."); again.UID != ofB.UID {
		t.Error("b's pod was replaced when its consumer moved back")
	}
	must(t, b.Client.CoreV1().Namespaces().Delete(ctx, "lab", metav1.DeleteOptions{}))
	await.Empty(t, time.Minute, "nothing of b is left at a", func(ctx context.Context) string {
		if n := len(a.away(ctx, t, string(ofB.UID))); n != 0 {
			return fmt.Sprintf("%d pods", n)
		}
		return ""
	})
}

func states(pods []corev1.Pod) (out []string) {
	for _, p := range pods {
		out = append(out, fmt.Sprint(p.Name, " on ", p.Spec.NodeName, ": ", p.Status.Phase, " ", p.Status.PodIP, " ", p.Status.Message))
	}
	return out
}
