// Package nodes tests, on three devices of a lab with the real binary, a cluster of two devices and its peer: how a
// device joins, what its pods reach and who reaches them, what happens when a device is cut off or loses power, and how
// it leaves. The tests share the devices, and run in the order of this file.
package nodes

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"rivulet/appliance/health"
	"rivulet/fabric/peer"
	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/mainjob"
	"rivulet/test/harness/webhooks"
)

var suite = labtest.Suite{Prepare: labtest.PeeredWithImage}

func TestMain(m *testing.M) {
	suite.Main(m, "nodes", lab.Options{Devices: 3}, "/var/lib/rivulet/log/engine.log")
}

// a is the server, b the worker, c the peer.
func devices() (a, b, c *lab.Device) {
	return suite.Devices["a"], suite.Devices["b"], suite.Devices["c"]
}

func apply(t *testing.T, ctx context.Context, d *lab.Device, object string) {
	t.Helper()
	cmd, err := d.Command(ctx, "rivulet", "kubectl", "apply", "-f", "-")
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdin = strings.NewReader(object)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// token makes a token on the server.
func token(t *testing.T, ctx context.Context, on *lab.Device) string {
	t.Helper()
	code, err := on.Token(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return code
}

// web is a pod that answers, on a node, with further fields of its spec and of its container.
func web(name, node, spec, container string) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"labels":{"app":"web","name":%[1]q}},"spec":{"terminationGracePeriodSeconds":1,"nodeSelector":{"kubernetes.io/hostname":%q}%s,
 "containers":[{"name":"web","image":%q%s,"resources":{"requests":{"cpu":"10m","memory":"8Mi"}}}]}}`, name, node, spec, mainjob.Image, container)
}

const service = `{"apiVersion":"v1","kind":"Service","metadata":{"name":"web"},"spec":{"selector":{"app":"web"},"ports":[{"port":80,"targetPort":8080}]}}`

func running(t *testing.T, ctx context.Context, d *lab.Device, pods ...string) {
	t.Helper()
	for _, p := range pods {
		labtest.Kubectl(t, ctx, d, "wait", "--for=condition=Ready", "--timeout=60s", "pod/"+p)
	}
}

func address(t *testing.T, ctx context.Context, d *lab.Device, pod string) string {
	t.Helper()
	return labtest.Kubectl(t, ctx, d, "get", "pod", pod, "-o", "jsonpath={.status.podIP}")
}

// answers runs web get in a pod: who answered how often, and whom they saw.
func answers(ctx context.Context, d *lab.Device, pod string, args ...string) (string, error) {
	return d.Kubectl(ctx, append([]string{"exec", pod, "--", "web"}, args...)...)
}

// sees waits until the pod gets an answer of another one that has all of want, as the client's address that the other
// one sees.
func sees(t *testing.T, ctx context.Context, d *lab.Device, from, to string, want ...string) {
	t.Helper()
	await.NoError(t, ctx, 30*time.Second, from+" reaches "+to, func() error {
		at, err := d.Kubectl(ctx, "get", "pod", to, "-o", "jsonpath={.status.podIP}")
		if err != nil {
			return err
		}
		out, err := d.Kubectl(ctx, "exec", from, "--", "web", "show", "http://"+net.JoinHostPort(at, "8080")+"/")
		for _, w := range append(want, to) {
			if err == nil && !strings.Contains(out, w) {
				err = fmt.Errorf("%s does not have %s", out, w)
			}
		}
		return err
	})
}

// byName waits until the pod reaches the pods of both nodes by the name of their Service.
func byName(t *testing.T, ctx context.Context, d *lab.Device, from string) {
	t.Helper()
	await.NoError(t, ctx, 30*time.Second, from+" reaches both by name", func() error {
		out, err := answers(ctx, d, from, "get", "-n", "20", "http://web.default.svc.cluster.local/")
		if err == nil && (!strings.Contains(out, "on-a") || !strings.Contains(out, "on-b")) {
			err = errors.New(out)
		}
		return err
	})
}

// readyNode waits until the node is.
func readyNode(t *testing.T, ctx context.Context, on *lab.Device, node string) {
	t.Helper()
	labtest.Kubectl(t, ctx, on, "wait", "--for=condition=Ready", "--timeout=90s", "node/"+node)
}

// What is no token, or one for something else, or would cost the device its pods, changes nothing.
func TestJoinsThatAreRefused(t *testing.T) {
	ctx := suite.Bounded(t, 3*time.Minute)
	a, b, _ := devices()
	apply(t, ctx, b, web("own", "b", "", ""))
	running(t, ctx, b, "own")
	refused := func(why string, args ...string) {
		t.Helper()
		r := labtest.On(t, ctx, b, append([]string{"rivulet", "join"}, args...)...)
		if r.Code == 0 || !strings.Contains(r.ErrOut, why) {
			t.Errorf("join %v: exit code %d, %q, want %q", args, r.Code, r.ErrOut, why)
		}
	}
	good := token(t, ctx, a)
	refused("1 pods, 0 volume claims and 0 virtual clusters of this device's own would be lost", good)
	labtest.Kubectl(t, ctx, b, "delete", "pod", "own", "--now")
	refused("this is no invite", "nonsense")
	var invite struct{ Code string }
	if err := json.Unmarshal([]byte(labtest.Output(t, ctx, a, "rivulet", "invite", "-o", "json")), &invite); err != nil {
		t.Fatal(err)
	}
	refused("it is an invite for a peer", invite.Code)
	if r := labtest.On(t, ctx, b, "rivulet", "peer", "--invite", good); r.Code != 0 { // they are peers: it is not used up
		t.Errorf("%+v", r)
	}
	id := strings.Fields(strings.Split(labtest.Must(t, ctx, a, "rivulet", "token", "list"), "\n")[1])[0]
	labtest.Must(t, ctx, a, "rivulet", "token", "revoke", id)
	refused("the invite was revoked", good)
	if st := labtest.Status(t, ctx, b); st.Member != nil || !st.Ready {
		t.Errorf("b is %+v, ready %v", st.Member, st.Ready)
	}
	if err := b.WaitPeered(ctx, 2); err != nil {
		t.Error("refused tokens have cost peers:", err)
	}
}

// A token makes a device a node within seconds. It is shown as one, and is nobody's peer any more.
func TestADeviceJoins(t *testing.T) {
	ctx := suite.Bounded(t, 2*time.Minute)
	a, b, c := devices()
	code, begun := token(t, ctx, a), time.Now()
	labtest.Must(t, ctx, b, "rivulet", "join", code)
	readyNode(t, ctx, a, "b")
	t.Logf("ready after %s", time.Since(begun).Round(100*time.Millisecond))
	if r := labtest.On(t, ctx, c, "rivulet", "join", code); r.Code == 0 || !strings.Contains(r.ErrOut, "was used already") {
		t.Errorf("the same token again: %+v", r)
	}
	await.NoError(t, ctx, 0, "a has one peer and one worker, c one peer", func() error {
		atA, atC := labtest.Status(t, ctx, a), labtest.Status(t, ctx, c)
		if len(atA.Nodes) != 1 || atA.Nodes[0].Node != "b" || atA.Nodes[0].State != peer.Connected || len(atA.Peers) != 1 {
			return fmt.Errorf("a has nodes %+v, peers %+v", atA.Nodes, atA.Peers)
		}
		for _, p := range atC.Peers {
			if p.Name == "b" && !p.State.Apart() {
				return fmt.Errorf("c has %+v", p)
			}
		}
		return nil
	})
	out := labtest.Must(t, ctx, a, "rivulet", "nodes")
	if !strings.Contains(out, "server") || !strings.Contains(out, "worker") {
		t.Error(out)
	}
	if st := labtest.Status(t, ctx, b); st.Member == nil || st.Member.Cluster != "a" {
		t.Errorf("b belongs to %+v", st.Member)
	}
	if err := mainjob.ImportImage(ctx, []*lab.Device{b}); err != nil {
		t.Fatal(err)
	}
}

// Pods of both nodes reach each other with their own addresses, by name, and the API; logs, exec and figures work.
func TestPodsOfTwoNodes(t *testing.T) {
	ctx := suite.Bounded(t, 3*time.Minute)
	a, b, _ := devices()
	apply(t, ctx, a, service)
	apply(t, ctx, a, web("on-a", "a", "", ""))
	apply(t, ctx, a, web("on-b", "b", "", ""))
	running(t, ctx, a, "on-a", "on-b")
	atA, atB := address(t, ctx, a, "on-a"), address(t, ctx, a, "on-b")
	sees(t, ctx, a, "on-a", "on-b", atA)
	sees(t, ctx, a, "on-b", "on-a", atB)
	for _, from := range []string{"on-a", "on-b"} {
		byName(t, ctx, a, from)
		if out, err := answers(ctx, a, from, "api", "/version"); err != nil || !strings.Contains(out, "gitVersion") {
			t.Errorf("%s and the API: %v %s", from, err, out)
		}
	}
	if out := labtest.Kubectl(t, ctx, a, "logs", "on-b"); !strings.Contains(out, "serves") {
		t.Errorf("the log of a pod on the worker: %q", out)
	}
	await.NoError(t, ctx, time.Minute, "figures of both nodes", func() error {
		out, err := a.Kubectl(ctx, "top", "nodes", "--no-headers")
		if err == nil && !strings.Contains(out, "b ") {
			err = errors.New(out)
		}
		return err
	})
	if _, err := b.Kubectl(ctx, "get", "secrets", "-A"); err == nil {
		t.Error("a worker's supervisor reads Secrets")
	}
	if _, err := b.Kubectl(ctx, "delete", "pod", "on-a"); err == nil {
		t.Error("a worker's supervisor deletes pods")
	}
}

// Images that only the server has, and that are in no registry, run on the worker.
func TestImagesOfTheServer(t *testing.T) {
	ctx := suite.Bounded(t, 2*time.Minute)
	a, b, _ := devices()
	const name = "example.test/only-a:1"
	labtest.Must(t, ctx, a, "rivulet", "ctr", "-n", "k8s.io", "images", "tag", mainjob.Image, name)
	apply(t, ctx, a, strings.Replace(web("image-of-a", "b", "", ""), mainjob.Image, name, 1))
	running(t, ctx, a, "image-of-a")
	if out := labtest.Must(t, ctx, b, "rivulet", "ctr", "-n", "k8s.io", "images", "list", "-q", "name=="+name); out != name {
		t.Errorf("on the worker: %q", out)
	}
	labtest.Kubectl(t, ctx, a, "delete", "pod", "image-of-a", "--now")
}

// A peer's pods reach pods on the worker and are reached by them.
func TestAPeerAndTheWorker(t *testing.T) {
	ctx := suite.Bounded(t, 4*time.Minute)
	a, _, _ := devices()
	apply(t, ctx, a, `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"both","labels":{"rivulet.dev/offload":"burst"}}}`)
	in := func(object string) string { return inNamespace("both", object) }
	apply(t, ctx, a, in(strings.Replace(service, `"app":"web"`, `"name":"near"`, 1)))
	apply(t, ctx, a, in(web("near", "b", "", "")))
	apply(t, ctx, a, in(strings.Replace(web("far", "x", "", ""), `"kubernetes.io/hostname":"x"`, `"type":"virtual-kubelet"`, 1)))
	labtest.Kubectl(t, ctx, a, "wait", "-n", "both", "--for=condition=Ready", "--timeout=60s", "pod/near", "pod/far")
	if on := labtest.Kubectl(t, ctx, a, "get", "pods", "-n", "both", "-o", "jsonpath={.items[*].spec.nodeName}"); on != "c b" {
		t.Fatalf("far and near run on %s, want c b", on)
	}
	far := labtest.Kubectl(t, ctx, a, "get", "pod", "-n", "both", "far", "-o", "jsonpath={.status.podIP}")
	for from, url := range map[string]string{"near": "http://" + net.JoinHostPort(far, "8080") + "/", "far": "http://web.both.svc.cluster.local/"} {
		await.NoError(t, ctx, 30*time.Second, from+" reaches the other one", func() error {
			out, err := a.Kubectl(ctx, "exec", "-n", "both", from, "--", "web", "get", "-n", "3", url)
			if want := map[string]string{"near": "far", "far": "near"}[from]; err == nil && !strings.Contains(out, want) {
				err = errors.New(out)
			}
			return err
		})
	}
	near := labtest.Kubectl(t, ctx, a, "get", "pod", "-n", "both", "near", "-o", "jsonpath={.status.podIP}")
	if out, err := a.Kubectl(ctx, "exec", "-n", "both", "far", "--", "web", "show", "http://"+net.JoinHostPort(near, "8080")+"/"); err != nil || !strings.Contains(out, far) {
		t.Errorf("the pod on the worker does not see %s: %v %s", far, err, out)
	}
	labtest.Kubectl(t, ctx, a, "delete", "namespace", "both", "--wait=false")
}

// onlyAtC is an image of c's, in no registry.
const onlyAtC = "example.test/only-c:1"

// awayOn makes one pod of c at this cluster, on that node: the other one takes none meanwhile.
func awayOn(t *testing.T, ctx context.Context, node, name string) {
	t.Helper()
	a, _, c := devices()
	other := map[string]string{"a": "b", "b": "a"}[node]
	labtest.Kubectl(t, ctx, a, "cordon", other)
	defer labtest.Kubectl(t, ctx, a, "uncordon", other)
	pod := strings.Replace(web(name, "x", "", ""), mainjob.Image, onlyAtC, 1)
	apply(t, ctx, c, inNamespace("from-c", strings.Replace(pod, `"kubernetes.io/hostname":"x"`, `"type":"virtual-kubelet"`, 1)))
	labtest.Kubectl(t, ctx, c, "wait", "-n", "from-c", "--for=condition=Ready", "--timeout=60s", "pod/"+name)
	if on := labtest.Kubectl(t, ctx, a, "get", "pods", "-A", "-l", "rivulet.dev/origin,name="+name, "-o", "jsonpath={.items[*].spec.nodeName}"); on != node {
		t.Fatalf("%s runs on %q, want %s", name, on, node)
	}
}

func inNamespace(namespace, object string) string {
	return strings.Replace(object, `"metadata":{`, `"metadata":{"namespace":"`+namespace+`",`, 1)
}

// Pods of a peer run on the worker, too: with their Services, names, API server and images of home, and isolated from all
// that is not theirs, as on the server.
func TestPodsOfAPeerOnTheWorker(t *testing.T) {
	ctx := suite.Bounded(t, 5*time.Minute)
	a, b, c := devices()
	await.NoError(t, ctx, time.Minute, "the worker isolates", func() error {
		if out := labtest.Kubectl(t, ctx, a, "get", "node", "b", "-o", `jsonpath={.metadata.labels.rivulet\.dev/worker}`); out != "isolates" {
			return errors.New(out)
		}
		return nil
	})
	one, err := strconv.Atoi(labtest.Kubectl(t, ctx, a, "get", "node", "a", "-o", "jsonpath={.status.allocatable.pods}"))
	if err != nil {
		t.Fatal(err)
	}
	await.NoError(t, ctx, 30*time.Second, "the offer has both nodes", func() error {
		out := labtest.Kubectl(t, ctx, c, "get", "node", "a", "-o", "jsonpath={.status.allocatable.pods}")
		if n, err := strconv.Atoi(out); err != nil || n <= one {
			return fmt.Errorf("%s pods are lent, the server alone has room for %d", out, one)
		}
		return nil
	})
	apply(t, ctx, c, `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"from-c","labels":{"rivulet.dev/offload":"burst"}}}`)
	labtest.Must(t, ctx, c, "rivulet", "ctr", "-n", "k8s.io", "images", "tag", mainjob.Image, onlyAtC)
	apply(t, ctx, c, inNamespace("from-c", service))
	apply(t, ctx, c, inNamespace("from-c", web("stays", "c", "", "")))
	awayOn(t, ctx, "b", "on-worker")
	awayOn(t, ctx, "a", "on-server")
	labtest.Kubectl(t, ctx, c, "wait", "-n", "from-c", "--for=condition=Ready", "--timeout=60s", "pod/stays")
	all := []string{"stays", "on-worker", "on-server"}
	at := map[string]string{}
	for _, pod := range all {
		at[pod] = labtest.Kubectl(t, ctx, c, "get", "pod", "-n", "from-c", pod, "-o", "jsonpath={.status.podIP}")
	}
	for _, from := range all {
		await.NoError(t, ctx, 30*time.Second, from+" reaches all by name, and its API server", func() error {
			out, err := c.Kubectl(ctx, "exec", "-n", "from-c", from, "--", "web", "get", "-n", "40", "http://web/")
			for _, to := range all {
				if err == nil && !strings.Contains(out, to) {
					err = fmt.Errorf("no answer of %s: %s", to, out)
				}
			}
			if err == nil {
				out, err = c.Kubectl(ctx, "exec", "-n", "from-c", from, "--", "web", "api", "/version")
			}
			if err == nil && !strings.Contains(out, "gitVersion") {
				err = errors.New(out)
			}
			return err
		})
	}
	if out, err := c.Kubectl(ctx, "exec", "-n", "from-c", "stays", "--", "web", "show", "http://"+net.JoinHostPort(at["on-worker"], "8080")+"/"); err != nil || !strings.Contains(out, at["stays"]) {
		t.Errorf("the pod on the worker does not see %s: %v %s", at["stays"], err, out)
	}
	// What is not c's. A pod of this cluster gets an answer of each.
	lan := labtest.Status(t, ctx, b).Addresses[0].String()
	for what, url := range map[string]string{
		"a pod on the server": "http://" + net.JoinHostPort(address(t, ctx, a, "on-a"), "8080") + "/", "a pod on the worker": "http://" + net.JoinHostPort(address(t, ctx, a, "on-b"), "8080") + "/",
		"a Service": "http://" + labtest.Kubectl(t, ctx, a, "get", "service", "web", "-o", "jsonpath={.spec.clusterIP}") + "/", "a name": "http://web.default.svc.cluster.local/",
		"the server": "http://" + net.JoinHostPort(labtest.Status(t, ctx, a).NodeAddress, "6443") + "/", "the worker": "http://" + net.JoinHostPort(labtest.Status(t, ctx, b).NodeAddress, "10250") + "/",
		"the worker's LAN": "7442",
	} {
		command := []string{"web", "show", url}
		if url == "7442" {
			command = []string{"/bin/busybox", "nc", "-w", "2", lan, url, "-e", "/bin/busybox", "true"}
		}
		if out, err := a.Kubectl(ctx, append([]string{"exec", "on-b", "--"}, command...)...); err != nil {
			t.Errorf("on-b does not reach %s, %s: %v %s", what, url, err, out)
		}
		short, cancel := context.WithTimeout(ctx, 3*time.Second)
		out, err := c.Kubectl(short, append([]string{"exec", "-n", "from-c", "on-worker", "--"}, command...)...)
		// An address may be that of a pod at home, too, to which it leads from there.
		own := slices.ContainsFunc(all, func(pod string) bool { return strings.Contains(out, `"pod":"`+pod+`"`) })
		if err == nil && !own {
			t.Errorf("a pod of c on the worker reaches %s, %s: %s", what, url, out)
		}
		cancel()
	}
	here := labtest.Kubectl(t, ctx, a, "get", "pods", "-A", "-l", "rivulet.dev/origin,name=on-worker", "-o", "jsonpath={.items[*].status.podIP}")
	// The server's ingress reaches it.
	if conn, err := a.Dial(ctx, "tcp", net.JoinHostPort(here, "8080")); err != nil {
		t.Errorf("the server does not reach a pod of c on the worker: %v", err)
	} else {
		conn.Close()
	}
	for _, from := range []string{"on-a", "on-b"} {
		short, cancel := context.WithTimeout(ctx, 3*time.Second)
		if out, err := answers(short, a, from, "get", "-n", "1", "http://"+net.JoinHostPort(here, "8080")+"/"); err == nil {
			t.Errorf("%s reaches a pod of c: %s", from, out)
		}
		cancel()
	}
	labtest.Kubectl(t, ctx, c, "delete", "namespace", "from-c", "--wait=false")
}

// Pods of a virtual cluster run on the worker, too: they reach its API server, which is on the server, and that reaches
// them: a webhook on the worker decides on its objects.
func TestAVirtualClusterOnTheWorker(t *testing.T) {
	ctx := suite.Bounded(t, 4*time.Minute)
	a, b, _ := devices()
	labtest.Must(t, ctx, a, "rivulet", "vcluster", "create", "sam")
	labtest.CleanUp(t, func(ctx context.Context) {
		labtest.On(t, ctx, a, "rivulet", "vcluster", "delete", "sam", "--yes", "--force")
	})
	const file = "/root/sam.yaml"
	labtest.Must(t, ctx, a, "rivulet", "vcluster", "connect", "sam", "--kubeconfig", file)
	inside := func(args ...string) (string, error) {
		return a.Kubectl(ctx, append([]string{"--kubeconfig", file}, args...)...)
	}
	send := func(verb string, objects ...any) error {
		raw, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": objects})
		if err == nil {
			_, err = a.Run(ctx, "sh", "-c", `printf %s "$1" | rivulet kubectl --kubeconfig `+file+" "+verb+" -f -", "send", string(raw))
		}
		return err
	}
	labtest.Kubectl(t, ctx, a, "cordon", "a")
	labtest.CleanUp(t, func(ctx context.Context) { labtest.Kubectl(t, ctx, a, "uncordon", "a") })
	tls, err := webhooks.NewTLS()
	if err != nil {
		t.Fatal(err)
	}
	if err := send("apply", append(append(tls.Server(), webhooks.Service(true)), tls.Calls("")...)...); err != nil {
		t.Fatal(err)
	}
	if _, err := inside("wait", "--for=condition=Available", "--timeout=60s", "deployment/"+webhooks.Name); err != nil {
		pods, _ := inside("describe", "pods")
		labels := labtest.Must(t, ctx, b, "rivulet", "ctr", "-n", "k8s.io", "images", "list")
		t.Fatalf("%v\n%s\n%s\n%s", err, labels, pods, labtest.Kubectl(t, ctx, a, "describe", "pods", "-A", "-l", "rivulet.dev/origin,app="+webhooks.Name))
	}
	if on := labtest.Kubectl(t, ctx, a, "get", "pods", "-A", "-l", "rivulet.dev/origin,app="+webhooks.Name, "-o", "jsonpath={.items[*].spec.nodeName}"); on != "b" {
		t.Fatalf("its pod runs on %q, want b", on)
	}
	await.NoError(t, ctx, time.Minute, "a webhook on the worker refuses an object", func() error {
		if err := send("create --dry-run=server", webhooks.ConfigMap("good")); err != nil {
			return err
		}
		if err := send("create --dry-run=server", webhooks.ConfigMap("bad")); err == nil || !strings.Contains(err.Error(), "no bad ones") {
			return fmt.Errorf("a bad one: %v", err)
		}
		return nil
	})
	await.NoError(t, ctx, 30*time.Second, "the pod reaches its API server", func() error {
		out, err := inside("exec", "deployment/"+webhooks.Name, "--", "web", "api", "/version")
		if err == nil && !strings.Contains(out, "gitVersion") {
			err = errors.New(out)
		}
		return err
	})
}

// Nothing of the cluster's own is open to the LAN, on neither node.
func TestTheLANReachesNothing(t *testing.T) {
	ctx := suite.Bounded(t, time.Minute)
	a, b, c := devices()
	for _, d := range []*lab.Device{a, b} {
		lan := labtest.Status(t, ctx, d).Addresses[0].String()
		for _, port := range []string{"6443", "10250", "10249", "10256", "6444"} {
			short, cancel := context.WithTimeout(ctx, time.Second)
			if conn, err := c.Dial(short, "tcp", net.JoinHostPort(lan, port)); err == nil {
				conn.Close()
				t.Errorf("c reaches port %s of %s", port, d.Name)
			}
			cancel()
		}
	}
	// The dial works: the control port is open.
	conn, err := c.Dial(ctx, "tcp", net.JoinHostPort(labtest.Status(t, ctx, b).Addresses[0].String(), "7442"))
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
}

// Whoever has root on the worker gets certificates of the worker itself, and nothing else of k3s.
func TestAStolenWorkerGetsItsOwn(t *testing.T) {
	ctx := suite.Bounded(t, time.Minute)
	a, b, _ := devices()
	of := func(file string) string {
		raw, err := os.ReadFile(b.Path("/var/lib/rivulet/" + file))
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(raw))
	}
	_, code, _ := strings.Cut(of("k3s-join-token"), "::")
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	server, own := labtest.Status(t, ctx, a).NodeAddress, labtest.Status(t, ctx, b).NodeAddress
	client := http.Client{Transport: &http.Transport{DialContext: b.Dial, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer client.CloseIdleConnections()
	for _, try := range []struct {
		what, method, path, name, ip string
		want                         int
	}{
		{"its kubelet", http.MethodPost, "client-kubelet.crt", "b", own, http.StatusOK},
		{"its kubelet's server", http.MethodPost, "serving-kubelet.crt", "b", own, http.StatusOK},
		{"a new node", http.MethodPost, "client-kubelet.crt", "ghost", own, http.StatusForbidden},
		{"a virtual node", http.MethodPost, "client-kubelet.crt", "c", own, http.StatusForbidden},
		{"the API server's Service", http.MethodPost, "serving-kubelet.crt", "b", "10.43.0.1", http.StatusForbidden},
		{"the server's address", http.MethodPost, "serving-kubelet.crt", "b", server, http.StatusForbidden},
		{"a private key of the server", http.MethodGet, "client-k3s-controller.crt", "b", own, http.StatusForbidden},
		{"the cluster's keys", http.MethodGet, "server-bootstrap", "b", own, http.StatusForbidden},
	} {
		r, err := http.NewRequestWithContext(ctx, try.method, "https://"+net.JoinHostPort(server, "6443")+"/v1-k3s/"+try.path, bytes.NewReader(csr))
		if err != nil {
			t.Fatal(err)
		}
		for name, value := range map[string]string{"Authorization": "Bearer " + code, "k3s-Node-Name": try.name, "k3s-Node-Password": of("k3s-node/password"), "k3s-Node-IP": try.ip} {
			r.Header.Set(name, value)
		}
		answer, err := client.Do(r)
		if err != nil {
			t.Fatalf("%s: %v", try.what, err)
		}
		if answer.Body.Close(); answer.StatusCode != try.want {
			t.Errorf("%s: %s, want %d", try.what, answer.Status, try.want)
		}
	}
	if out := labtest.Kubectl(t, ctx, a, "get", "secrets", "-n", "kube-system", "-o", "name"); strings.Contains(out, "ghost") || strings.Contains(out, "/c.node-password") {
		t.Errorf("others have registered: %s", out)
	}
}

// A Service of type LoadBalancer is reached at the addresses of both devices, but for ports that a program of the worker
// uses.
func TestAServiceForTheLAN(t *testing.T) {
	ctx := suite.Bounded(t, 3*time.Minute)
	a, b, c := devices()
	apply(t, ctx, a, strings.NewReplacer(`"name":"web"`, `"name":"lan"`, `"spec":{`, `"spec":{"type":"LoadBalancer",`, `"port":80`, `"port":8081`).Replace(service))
	addresses := func(want ...string) {
		t.Helper()
		await.NoError(t, ctx, time.Minute, fmt.Sprintf("its addresses are %v", want), func() error {
			out, err := a.Kubectl(ctx, "get", "service", "lan", "-o", "jsonpath={.status.loadBalancer.ingress[*].ip}")
			if err == nil && out != strings.Join(want, " ") {
				err = errors.New(out)
			}
			return err
		})
	}
	atA, atB := labtest.Status(t, ctx, a).Addresses[0].String(), labtest.Status(t, ctx, b).Addresses[0].String()
	addresses(atA, atB)
	for _, at := range []string{atA, atB} {
		await.NoError(t, ctx, 30*time.Second, "c reaches it at "+at, func() error {
			conn, err := c.Dial(ctx, "tcp", net.JoinHostPort(at, "8081"))
			if err == nil {
				conn.Close()
			}
			return err
		})
	}
	listener, err := b.Command(ctx, "busybox", "nc", "-l", "-p", "8081")
	if err != nil {
		t.Fatal(err)
	}
	if err := listener.Start(); err != nil {
		t.Fatal(err)
	}
	addresses(atA)
	if err := listener.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = listener.Wait()
	labtest.Kubectl(t, ctx, a, "delete", "service", "lan")
}

// Volumes of the default class are on the disk of the pod's node, and keep their content.
func TestAVolumeOnTheWorker(t *testing.T) {
	ctx := suite.Bounded(t, 2*time.Minute)
	a, b, _ := devices()
	apply(t, ctx, a, `{"apiVersion":"v1","kind":"PersistentVolumeClaim","metadata":{"name":"data"},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Mi"}}}}`)
	pod := web("keeper", "b", `,"volumes":[{"name":"data","persistentVolumeClaim":{"claimName":"data"}}]`, `,"volumeMounts":[{"name":"data","mountPath":"/data"}]`)
	apply(t, ctx, a, pod)
	running(t, ctx, a, "keeper")
	labtest.Kubectl(t, ctx, a, "exec", "keeper", "--", "/bin/busybox", "sh", "-c", "echo kept > /data/file")
	if out := labtest.Must(t, ctx, b, "sh", "-c", "cat /var/lib/rivulet/storage/*/file"); out != "kept" {
		t.Errorf("on the worker's disk: %q", out)
	}
	labtest.Kubectl(t, ctx, a, "delete", "pod", "keeper", "--now")
	apply(t, ctx, a, pod)
	running(t, ctx, a, "keeper")
	if out := labtest.Kubectl(t, ctx, a, "exec", "keeper", "--", "/bin/busybox", "cat", "/data/file"); out != "kept" {
		t.Errorf("after another pod: %q", out)
	}
	labtest.Kubectl(t, ctx, a, "delete", "pod", "keeper", "--now")
	labtest.Kubectl(t, ctx, a, "delete", "pvc", "data")
	await.NoError(t, ctx, 30*time.Second, "the worker's disk is free again", func() error {
		if out := labtest.Must(t, ctx, b, "sh", "-c", "find /var/lib/rivulet/storage -name file"); out != "" {
			return errors.New(out)
		}
		return nil
	})
}

// A pod keeper, its claim, what it writes, and what is equal on every copy.
const (
	dataClaim   = `{"apiVersion":"v1","kind":"PersistentVolumeClaim","metadata":{"name":"data"},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"64Mi"}}}}`
	dataVolume  = `,"volumes":[{"name":"data","persistentVolumeClaim":{"claimName":"data"}}]`
	dataMount   = `,"volumeMounts":[{"name":"data","mountPath":"/data"}]`
	writeData   = "/bin/busybox head -c 20000000 /dev/urandom > /data/big && /bin/busybox mkdir -m 750 /data/d && /bin/busybox ln -s ../big /data/d/link && sync"
	compareData = "cd /data && /bin/busybox sha256sum big d/link && /bin/busybox stat -c '%n %u:%g %a %s' big d"
)

// keeper starts one on a node of the cluster, or on any peer if node is empty.
func keeper(t *testing.T, ctx context.Context, d *lab.Device, namespace, node string) {
	t.Helper()
	object := inNamespace(namespace, web("keeper", node, dataVolume, dataMount))
	if node == "" {
		object = strings.Replace(object, `"kubernetes.io/hostname":""`, `"type":"virtual-kubelet"`, 1)
	}
	apply(t, ctx, d, object)
	labtest.Kubectl(t, ctx, d, "wait", "-n", namespace, "--for=condition=Ready", "--timeout=60s", "pod/keeper")
}

// inKeeper runs a script in it.
func inKeeper(t *testing.T, ctx context.Context, d *lab.Device, namespace, script string) string {
	t.Helper()
	return labtest.Kubectl(t, ctx, d, "exec", "-n", namespace, "keeper", "--", "/bin/busybox", "sh", "-c", script)
}

// dataOn waits until one device alone has what a keeper wrote.
func dataOn(t *testing.T, ctx context.Context, on *lab.Device) {
	t.Helper()
	await.NoError(t, ctx, time.Minute, "the data are on "+on.Name+" alone", func() error {
		for _, d := range suite.Devices {
			out, err := d.Run(ctx, "find", "/var/lib/rivulet/storage", "-name", "big")
			if err != nil || strings.Count(out, "big") != map[bool]int{true: 1}[d == on] {
				return fmt.Errorf("%s has %q, %v", d.Name, out, err)
			}
		}
		return nil
	})
}

// movesOverACut begins a move while a device is cut off, which is not noticed yet: it waits for the device, and ends well.
func movesOverACut(t *testing.T, ctx context.Context, cut string, d *lab.Device, claim, to string) {
	t.Helper()
	if err := suite.Lab.Cut(cut, ""); err != nil {
		t.Fatal(err)
	}
	move, err := d.Command(ctx, "rivulet", "move", "volume", claim, to, "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	out, err := move.StdoutPipe()
	if err == nil {
		err = move.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	waited, last := false, ""
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if last = lines.Text(); !waited && strings.Contains(last, `"trouble":`) {
			waited = true
			t.Log(last)
			if err := suite.Lab.Heal(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := move.Wait(); err != nil || !waited {
		t.Fatalf("%v, it waited for %s: %v; %s", err, cut, waited, last)
	}
}

// Data on the worker go to a peer, where the next pod finds them, and come home to the server. Until then they are on the
// worker, whatever is refused, and while it is cut off.
func TestAVolumeOfTheWorkerMoves(t *testing.T) {
	ctx := suite.Bounded(t, 5*time.Minute)
	a, b, c := devices()
	apply(t, ctx, a, `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"moves","labels":{"rivulet.dev/offload":"burst"}}}`)
	apply(t, ctx, a, inNamespace("moves", dataClaim))
	keeper(t, ctx, a, "moves", "b")
	inKeeper(t, ctx, a, "moves", writeData)
	before := inKeeper(t, ctx, a, "moves", compareData)
	dataOn(t, ctx, b)
	for to, why := range map[string]string{"c": "in use by keeper; stop what uses it", "b": "on b already"} {
		if r := labtest.On(t, ctx, a, "rivulet", "move", "volume", "moves/data", to); r.Code != 1 || !strings.Contains(r.ErrOut, why) {
			t.Errorf("to %s: exit code %d, %q, want %q", to, r.Code, r.ErrOut, why)
		}
	}
	dataOn(t, ctx, b)
	labtest.Kubectl(t, ctx, a, "delete", "-n", "moves", "pod/keeper", "--now")
	for _, x := range []struct {
		node string
		has  *lab.Device
		move func()
	}{
		{"", c, func() { movesOverACut(t, ctx, "b", a, "moves/data", "c") }},
		{"a", a, func() { labtest.Must(t, ctx, a, "rivulet", "move", "volume", "moves/data", "home", "--evict") }},
	} {
		x.move()
		dataOn(t, ctx, x.has)
		keeper(t, ctx, a, "moves", x.node)
		if after := inKeeper(t, ctx, a, "moves", compareData); after != before {
			t.Errorf("on %s:\n%s\nwas\n%s", x.has.Name, after, before)
		}
	}
	labtest.Kubectl(t, ctx, a, "delete", "namespace", "moves")
}

// A peer's data on the worker go home to the peer, and come back to the server.
func TestAPeersVolumeOnTheWorkerMoves(t *testing.T) {
	ctx := suite.Bounded(t, 4*time.Minute)
	a, b, c := devices()
	apply(t, ctx, c, `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"borrows","labels":{"rivulet.dev/offload":"burst"}}}`)
	apply(t, ctx, c, inNamespace("borrows", dataClaim))
	labtest.Kubectl(t, ctx, a, "cordon", "a")
	keeper(t, ctx, c, "borrows", "")
	labtest.Kubectl(t, ctx, a, "uncordon", "a")
	inKeeper(t, ctx, c, "borrows", writeData)
	before := inKeeper(t, ctx, c, "borrows", compareData)
	dataOn(t, ctx, b)
	for _, x := range []struct {
		to, node string
		has      *lab.Device
	}{{"home", "c", c}, {"a", "", a}} {
		labtest.Must(t, ctx, c, "rivulet", "move", "volume", "borrows/data", x.to, "--evict")
		dataOn(t, ctx, x.has)
		keeper(t, ctx, c, "borrows", x.node)
		if after := inKeeper(t, ctx, c, "borrows", compareData); after != before {
			t.Errorf("%s:\n%s\nwas\n%s", x.to, after, before)
		}
	}
	labtest.Kubectl(t, ctx, c, "delete", "namespace", "borrows")
}

// Policies hold on the worker.
func TestPoliciesOnTheWorker(t *testing.T) {
	ctx := suite.Bounded(t, 2*time.Minute)
	a, _, _ := devices()
	url := "http://" + net.JoinHostPort(address(t, ctx, a, "on-b"), "8080") + "/"
	sees(t, ctx, a, "on-a", "on-b")
	apply(t, ctx, a, `{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"closed"},"spec":{"podSelector":{"matchLabels":{"name":"on-b"}},"policyTypes":["Ingress"]}}`)
	await.NoError(t, ctx, 30*time.Second, "a pod on the worker is closed", func() error {
		short, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		if out, err := answers(short, a, "on-a", "get", "-n", "1", url); err == nil {
			return errors.New(out)
		}
		return nil
	})
	labtest.Kubectl(t, ctx, a, "delete", "networkpolicy", "closed")
	sees(t, ctx, a, "on-a", "on-b")
}

// Without its server a worker's pods go on, and find each other by name; the worker says what is wrong.
func TestTheServerIsOff(t *testing.T) {
	ctx := suite.Bounded(t, 3*time.Minute)
	a, b, _ := devices()
	apply(t, ctx, a, strings.Replace(strings.Replace(service, `"name":"web"`, `"name":"near"`, 1), `"app":"web"`, `"name":"on-b"`, 1))
	slice := func() error {
		out, err := a.Kubectl(ctx, "get", "endpointslices", "-n", "kube-system", "kube-dns-b", "-o", "jsonpath={.endpoints[0].hints.forNodes[0].name}")
		if err == nil && out != "b" {
			err = errors.New(out)
		}
		return err
	}
	await.NoError(t, ctx, 30*time.Second, "the worker's DNS serves its pods", slice)
	id := strings.Fields(labtest.Must(t, ctx, b, "rivulet", "crictl", "ps", "-q", "--name", "web"))[0]
	byName := func() error {
		_, err := b.Run(ctx, "rivulet", "crictl", "exec", id, "web", "show", "http://near.default.svc.cluster.local/")
		return err
	}
	await.NoError(t, ctx, 30*time.Second, "a pod on the worker reaches itself by name", byName)
	if err := a.Kill(ctx, "power"); err != nil {
		t.Fatal(err)
	}
	await.NoError(t, ctx, time.Minute, "the worker says so", func() error {
		if out := labtest.On(t, ctx, b, "rivulet", "status").Out; !strings.Contains(out, "the server of a does not answer") || !strings.Contains(out, "NODE    server of a") {
			return errors.New(out)
		}
		return nil
	})
	await.NoError(t, ctx, 10*time.Second, "names are answered without the server", byName)
	if err := a.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if err := a.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	await.NoError(t, ctx, time.Minute, "the worker's DNS is still known", slice)
	readyNode(t, ctx, a, "b")
}

// Restarts of either supervisor, a power cut of the worker and one of the server leave a cluster of two nodes.
func TestRestartsAndPowerCuts(t *testing.T) {
	ctx := suite.Bounded(t, 8*time.Minute)
	a, b, _ := devices()
	both := func() {
		t.Helper()
		readyNode(t, ctx, a, "a")
		readyNode(t, ctx, a, "b")
		running(t, ctx, a, "on-a", "on-b")
		sees(t, ctx, a, "on-a", "on-b")
		sees(t, ctx, a, "on-b", "on-a")
		byName(t, ctx, a, "on-b")
	}
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"the worker's supervisor starts again", func() error { return errors.Join(b.Stop(ctx), b.Start(ctx)) }},
		{"the server's supervisor starts again", func() error { return errors.Join(a.Stop(ctx), a.Start(ctx)) }},
		{"the worker's supervisor is killed", func() error { return errors.Join(b.Kill(ctx, "supervisor"), b.Start(ctx)) }},
		{"the worker loses power", func() error { return errors.Join(b.Kill(ctx, "power"), b.Start(ctx)) }},
		{"the server loses power", func() error { return errors.Join(a.Kill(ctx, "power"), a.Start(ctx)) }},
	} {
		t.Run(step.what, func(t *testing.T) {
			if err := step.do(); err != nil {
				t.Fatal(err)
			}
			for _, d := range []*lab.Device{a, b} {
				if err := d.WaitReady(ctx); err != nil {
					t.Fatal(err)
				}
			}
			both()
		})
	}
}

// A worker that is removed gets nothing of the cluster any more, and its pods are replaced on the others. It says so,
// and becomes a cluster of its own when it is told to.
func TestAWorkerIsRemoved(t *testing.T) {
	ctx := suite.Bounded(t, 4*time.Minute)
	a, b, _ := devices()
	apply(t, ctx, a, fmt.Sprintf(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"moves"},"spec":{"replicas":2,"selector":{"matchLabels":{"app":"moves"}},"template":{"metadata":{"labels":{"app":"moves"}},
 "spec":{"terminationGracePeriodSeconds":1,"topologySpreadConstraints":[{"maxSkew":1,"topologyKey":"kubernetes.io/hostname","whenUnsatisfiable":"ScheduleAnyway","labelSelector":{"matchLabels":{"app":"moves"}}}],
 "containers":[{"name":"web","image":%q,"resources":{"requests":{"cpu":"10m","memory":"8Mi"}}}]}}}}`, mainjob.Image))
	labtest.Kubectl(t, ctx, a, "rollout", "status", "deployment/moves", "--timeout=60s")
	apply(t, ctx, a, `{"apiVersion":"v1","kind":"PersistentVolume","metadata":{"name":"left","annotations":{"pv.kubernetes.io/provisioned-by":"rivulet.dev/local-path"},"finalizers":["rivulet.dev/local-path"]},
 "spec":{"capacity":{"storage":"1Mi"},"accessModes":["ReadWriteOnce"],"storageClassName":"none","local":{"path":"/var/lib/rivulet/storage/none"},
 "nodeAffinity":{"required":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"kubernetes.io/hostname","operator":"In","values":["b"]}]}]}}}}`)
	labtest.Must(t, ctx, a, "rivulet", "nodes", "remove", "b", "--yes")
	labtest.Kubectl(t, ctx, a, "rollout", "status", "deployment/moves", "--timeout=60s")
	await.NoError(t, ctx, 30*time.Second, "the volumes and the password of b are gone", func() error {
		out, err := a.Kubectl(ctx, "get", "pv/left", "--ignore-not-found", "-o", "name")
		if err == nil && out == "" {
			out, err = a.Kubectl(ctx, "get", "secret/b.node-password.k3s", "-n", "kube-system", "--ignore-not-found", "-o", "name")
		}
		if err == nil && out != "" {
			err = errors.New(out)
		}
		return err
	})
	await.NoError(t, ctx, 30*time.Second, "the cluster has one node, whose pods are all", func() error {
		out, err := a.Kubectl(ctx, "get", "nodes,secrets", "-A", "-l", "rivulet.dev/worker", "-o", "name")
		if err == nil && out != "" {
			err = errors.New(out)
		}
		return err
	})
	if out := labtest.Kubectl(t, ctx, a, "get", "pods", "-l", "app=moves", "-o", "jsonpath={.items[*].spec.nodeName}"); out != "a a" {
		t.Errorf("the pods are on %q", out)
	}
	await.NoError(t, ctx, time.Minute, "b says that it was removed, and runs nothing", func() error {
		if r := labtest.On(t, ctx, b, "rivulet", "status", "-o", "json"); !strings.Contains(r.Out, `"removed":true`) {
			return errors.New(r.Out + r.ErrOut)
		}
		if out := labtest.On(t, ctx, b, "pgrep", "-f", "containerd-shim|rivulet-engine").Out; out != "" {
			return fmt.Errorf("processes %q", out)
		}
		return nil
	})
	labtest.Must(t, ctx, b, "rivulet", "leave", "--yes")
	await.NoError(t, ctx, 2*time.Minute, "b is a cluster of its own", func() error {
		r := labtest.On(t, ctx, b, "rivulet", "status", "-o", "json")
		if !strings.Contains(r.Out, `"ready": true`) && !strings.Contains(r.Out, `"ready":true`) || strings.Contains(r.Out, `"member"`) {
			return errors.New(r.ErrOut)
		}
		return nil
	})
	if err := b.WaitPeered(ctx, 2); err != nil {
		t.Error("b and its neighbours are no peers:", err)
	}
}

// A token in the configuration makes a device a node at its first start, and never where pods would be lost.
func TestADeviceJoinsByItsConfiguration(t *testing.T) {
	ctx := suite.Bounded(t, 5*time.Minute)
	a, b, _ := devices()
	apply(t, ctx, b, web("own", "b", "", ""))
	labtest.Must(t, ctx, b, "sh", "-c", "mkdir -p /etc/rivulet && umask 077 && echo 'join: "+token(t, ctx, a)+"' > /etc/rivulet/config.yaml && rivulet config reload")
	await.NoError(t, ctx, 30*time.Second, "b says why it does not join", func() error {
		if out := labtest.On(t, ctx, b, "rivulet", "status").Out; !strings.Contains(out, "this device has 1 pods, 0 volume claims and 0 virtual clusters of its own") {
			return errors.New(out)
		}
		return nil
	})
	labtest.Must(t, ctx, b, "rivulet", "reset", "--yes")
	if err := b.Start(ctx); err != nil {
		t.Fatal(err)
	}
	await.NoError(t, ctx, 2*time.Minute, "b has joined by itself", func() error {
		out, err := a.Kubectl(ctx, "get", "nodes", "-l", "rivulet.dev/worker", "-o", "name")
		if err == nil && strings.TrimSpace(out) != "node/b" {
			err = fmt.Errorf("the workers are %q", out)
		}
		return err
	})
	readyNode(t, ctx, a, "b")
	st := labtest.Status(t, ctx, b)
	if st.Member == nil || st.Member.Cluster != "a" || slices.ContainsFunc(st.Health, func(p health.Problem) bool { return p.Code == health.JoinFailed.Code }) {
		t.Errorf("b belongs to %+v, with problems %+v", st.Member, st.Health)
	}
}

// A server that is lost is restored from its backup on another device, and its worker finds it there: its pods have not
// ended meanwhile. The last test: a stays off, and c is a's cluster.
func TestALostServerOnAnotherDevice(t *testing.T) {
	ctx := suite.Bounded(t, 5*time.Minute)
	a, b, c := devices()
	if err := mainjob.ImportImage(ctx, []*lab.Device{b}); err != nil {
		t.Fatal(err)
	}
	apply(t, ctx, a, web("stays", "b", "", ""))
	running(t, ctx, a, "stays")
	before := labtest.Must(t, ctx, b, "rivulet", "crictl", "ps", "-q", "--name", "^web$")
	const file = "/var/lib/a.backup"
	labtest.Must(t, ctx, a, "rivulet", "backup", file)
	raw, err := os.ReadFile(a.Path(file))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(a.Kill(ctx, "power"), c.Stop(ctx), os.WriteFile(c.Path(file), raw, 0o600)); err != nil {
		t.Fatal(err)
	}
	labtest.Must(t, ctx, c, "rivulet", "restore", "--yes", file)
	if err := c.Start(ctx); err != nil {
		t.Fatal(err)
	}
	await.NoError(t, ctx, 0, "the worker is Ready on the new server", func() error {
		out, err := c.Kubectl(ctx, "get", "node", "b", "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
		if nodes := labtest.Status(t, ctx, b).Nodes; err == nil && (strings.TrimSpace(out) != "True" || len(nodes) != 1 || nodes[0].State != peer.Connected) {
			err = fmt.Errorf("%q, %+v", out, nodes)
		}
		return err
	})
	if out := labtest.Kubectl(t, ctx, c, "logs", "stays"); !strings.Contains(out, "serves") {
		t.Errorf("the log of the pod: %q", out)
	}
	if after := labtest.Must(t, ctx, b, "rivulet", "crictl", "ps", "-q", "--name", "^web$"); after != before {
		t.Errorf("the container was %s and is %s", before, after)
	}
}
