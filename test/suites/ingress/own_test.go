package ingress

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/websocket"

	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
)

// store has pods at home (near) and on b (far), Ingresses without a class, and some whose
// endpoints are the device itself.
var store = `
apiVersion: v1
kind: Namespace
metadata: {name: near}
---
apiVersion: v1
kind: Namespace
metadata: {name: far, labels: {rivulet.dev/offload: remote}}
---
` + web("near", 1) + web("far", 1) + `
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: near, namespace: near}
spec: {rules: [{host: near.example, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}}]}
---
apiVersion: v1
kind: Secret
type: kubernetes.io/tls
metadata: {name: far-tls, namespace: far}
data: {tls.crt: "CERT", tls.key: "KEY"}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: far, namespace: far}
spec:
  tls: [{hosts: [far.example], secretName: far-tls}]
  rules: [{host: far.example, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {name: http}}}}]}}]
---
apiVersion: v1
kind: Service
metadata: {name: device, namespace: near}
spec: {ports: [{port: 80}]}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: device, namespace: near}
spec: {rules: [{host: device.example, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: device, port: {number: 80}}}}]}}]}
`

// deviceSlice leads Service device to an address of the device: what an author of Ingresses may write.
const deviceSlice = `
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: device, namespace: near, labels: {kubernetes.io/service-name: device}}
addressType: IPv4
ports: [{name: "", port: PORT}]
endpoints: [{addresses: ["ADDR"]}]
`

// The controller that is built in: without it an Ingress says so; with it the LAN reaches
// pods at home and away, by TLS and WebSocket, and nothing else of the device.
func TestTheOneThatIsBuiltIn(t *testing.T) {
	ctx := suite.Bounded(t, 6*time.Minute)
	a, b := suite.Devices["a"], suite.Devices["b"]
	withoutOthers(t, ctx)
	pool, cert, key := certificate(t, "far.example")
	apply(t, ctx, a, strings.NewReplacer("CERT", cert, "KEY", key).Replace(store))
	labtest.CleanUp(t, func(ctx context.Context) {
		if t.Failed() {
			for _, args := range [][]string{{"get", "ingress,ingressclass,pods", "-A", "-o", "wide"}, {"get", "events", "-A"}} {
				said, _ := a.Kubectl(ctx, args...)
				t.Log(said)
			}
		}
	})
	event := func(namespace, name, reason string, words ...string) {
		t.Helper()
		await.NoError(t, ctx, time.Minute, fmt.Sprintf("an event %s of Ingress %s", reason, name), func() error {
			out, err := a.Kubectl(ctx, "-n", namespace, "get", "events", "--field-selector", "involvedObject.name="+name+",reason="+reason, "-o", "jsonpath={.items[*].message}")
			for _, w := range words {
				if err == nil && !strings.Contains(out, w) {
					err = fmt.Errorf("%q lacks %q", out, w)
				}
			}
			return err
		})
	}
	event("near", "near", "NoIngressController", "ingress: true", "/etc/rivulet/config.yaml")
	if c, err := b.Dial(ctx, "tcp", lan["a"]+":80"); err == nil {
		c.Close()
		t.Error("port 80 is open though nobody asked for it")
	}

	configure(t, ctx, a, "ingress: true\nstatusPage: true\n")
	// b is a's neighbour on the LAN.
	neighbour := edge{device: b, address: lan["a"]}
	near, far := podsOf(t, ctx, a, "near", "a"), podsOf(t, ctx, a, "far", "b")
	neighbour.answers(t, ctx, "http://near.example/", near)
	neighbour.answers(t, ctx, "http://far.example/", far)
	neighbour.answersTLS(t, ctx, "https://far.example/", far, pool)
	neighbour.status(t, ctx, "http://nobody.example/", http.StatusNotFound)
	for _, name := range []string{"near", "far"} {
		await.NoError(t, ctx, time.Minute, "the address of Ingress "+name, func() error {
			out, err := a.Kubectl(ctx, "-n", name, "get", "ingress", name, "-o", "jsonpath={.status.loadBalancer.ingress[*].ip}")
			if err == nil && out != lan["a"] {
				err = fmt.Errorf("%q", out)
			}
			return err
		})
	}
	webSocket(t, ctx, neighbour, &tls.Config{RootCAs: pool, ServerName: "far.example", MinVersion: tls.VersionTLS12})

	// The status page has the names that no Ingress has, and its other port.
	for _, url := range []string{"http://" + lan["a"] + "/", "http://a.local/", "http://" + lan["a"] + ":7480/"} {
		await.NoError(t, ctx, time.Minute, url+" is the status page", func() error {
			out := labtest.On(t, ctx, b, "curl", "-sS", "--max-time", "5", "--connect-to", "a.local:80:"+lan["a"]+":80", url)
			if !strings.Contains(out.Out, "<h1>a</h1>") {
				return fmt.Errorf("%q", out.Out)
			}
			return nil
		})
	}

	// Ports of the device are nobody's pods, by any of its addresses.
	node := labtest.Kubectl(t, ctx, a, "get", "node", "a", "-o", `jsonpath={.status.addresses[?(@.type=="InternalIP")].address}`)
	bridge := strings.Fields(labtest.Must(t, ctx, a, "sh", "-c", "ip -o -4 addr show dev cni0 | awk '{print $4}' | cut -d/ -f1"))[0]
	refused := func(want int) {
		t.Helper()
		neighbour.becomes(t, ctx, "http://device.example/", want)
		neighbour.status(t, ctx, "http://device.example/", want)
	}
	for _, port := range []string{"10250", "6443", "80"} {
		// Those that may be pods are refused when they are to be connected to, the others before.
		for addr, want := range map[string]int{bridge: http.StatusBadGateway, "10.42.255.254": http.StatusBadGateway, node: http.StatusServiceUnavailable, lan["a"]: http.StatusServiceUnavailable} {
			apply(t, ctx, a, strings.NewReplacer("ADDR", addr, "PORT", port).Replace(deviceSlice))
			if want == http.StatusServiceUnavailable {
				event("near", "device", "EndpointNotAPod", "endpoint "+addr)
			}
			refused(want)
			labtest.Kubectl(t, ctx, a, "-n", "near", "delete", "endpointslice", "device")
			refused(http.StatusServiceUnavailable)
		}
	}

	// A pod that goes, and a certificate that changes.
	labtest.Kubectl(t, ctx, a, "-n", "far", "delete", "pod", far[0], "--wait")
	far = podsOf(t, ctx, a, "far", "b")
	neighbour.answers(t, ctx, "http://far.example/", far)
	pool, cert, key = certificate(t, "far.example")
	labtest.Kubectl(t, ctx, a, "-n", "far", "patch", "secret", "far-tls", "-p", fmt.Sprintf(`{"data":{"tls.crt":%q,"tls.key":%q}}`, cert, key))
	neighbour.answersTLS(t, ctx, "https://far.example/", far, pool)

	// A Service does not draw the port away, and a restart finds everything again.
	labtest.Kubectl(t, ctx, a, "-n", "near", "create", "service", "loadbalancer", "web80", "--tcp=80:8080")
	await.NoError(t, ctx, time.Minute, "the Service is told who has port 80", func() error {
		out, err := a.Kubectl(ctx, "-n", "near", "get", "events", "--field-selector", "involvedObject.name=web80,reason=PortInUse", "-o", "jsonpath={.items[*].message}")
		if err == nil && !strings.Contains(out, "80/TCP") {
			err = fmt.Errorf("%q", out)
		}
		return err
	})
	if err := a.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if err := a.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if err := a.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	neighbour.answersTLS(t, ctx, "https://far.example/", far, pool)
	neighbour.answers(t, ctx, "http://near.example/", near)

	configure(t, ctx, a, "statusPage: false\n")
	await.NoError(t, ctx, time.Minute, "the ports are closed", func() error {
		for _, port := range []string{":80", ":443"} {
			if c, err := b.Dial(ctx, "tcp", lan["a"]+port); err == nil {
				c.Close()
				return fmt.Errorf("%s is open", port)
			}
		}
		return nil
	})
	labtest.Kubectl(t, ctx, a, "delete", "namespace", "near", "far", "--wait=false")
}

// withoutOthers ends the controllers of other tests: they take Ingresses without class, too,
// and one class may be lent.
func withoutOthers(t *testing.T, ctx context.Context) {
	t.Helper()
	for _, d := range suite.All() {
		labtest.Kubectl(t, ctx, d, "delete", "namespace", "edge", "--ignore-not-found", "--wait")
		labtest.Kubectl(t, ctx, d, "delete", "ingressclass", "own", "lent", "--ignore-not-found")
	}
}

func configure(t *testing.T, ctx context.Context, d *lab.Device, text string) {
	t.Helper()
	labtest.Must(t, ctx, d, "sh", "-c", `umask 077; mkdir -p /etc/rivulet && printf %s "$1" > /etc/rivulet/config.yaml.new && mv /etc/rivulet/config.yaml.new /etc/rivulet/config.yaml`, "sh", text)
}

// podsOf waits for the one pod of a namespace, ready on a node.
func podsOf(t *testing.T, ctx context.Context, d *lab.Device, namespace, node string) (names []string) {
	t.Helper()
	await.NoError(t, ctx, 2*time.Minute, "the pod of "+namespace+" is ready on "+node, func() error {
		out, err := d.Kubectl(ctx, "-n", namespace, "get", "pods", "-o",
			`jsonpath={range .items[*]}{.metadata.name} {.spec.nodeName}{.metadata.deletionTimestamp} {.status.conditions[?(@.type=="Ready")].status}{"\n"}{end}`)
		f := strings.Fields(out)
		if err == nil && (len(f) != 3 || f[1] != node || f[2] != "True") {
			err = fmt.Errorf("%q", out)
		}
		if err == nil {
			names = f[:1]
		}
		return err
	})
	return names
}

// webSocket speaks to the away pod over one.
func webSocket(t *testing.T, ctx context.Context, e edge, cfg *tls.Config) {
	t.Helper()
	raw, err := e.device.Dial(ctx, "tcp", net.JoinHostPort(e.address, "443"))
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	settings, err := websocket.NewConfig("wss://far.example/ws", "https://far.example/")
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	c, err := websocket.NewClient(settings, tls.Client(raw, cfg))
	if err != nil {
		t.Fatal(err)
	}
	for _, said := range []string{"one", "two"} {
		var got string
		if err := websocket.Message.Send(c, said); err != nil {
			t.Fatal(err)
		}
		if err := websocket.Message.Receive(c, &got); err != nil || got != said {
			t.Fatalf("%q came back as %q, %v", said, got, err)
		}
	}
}

// lentShop runs on b, which opens it on its own LAN address with the class that is built in.
var lentShop = `
apiVersion: v1
kind: Namespace
metadata: {name: lent, labels: {rivulet.dev/offload: remote}}
---
` + web("lent", 1) + `
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: lent, namespace: lent, annotations: {rivulet.dev/reflect: "on"}}
spec:
  ingressClassName: elsewhere
  rules: [{host: lent.example, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {name: http}}}}]}}]
---
apiVersion: v1
kind: Service
metadata: {name: thief, namespace: lent}
spec: {ports: [{port: 80}]}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: thief, namespace: lent, annotations: {rivulet.dev/reflect: "on"}}
spec:
  ingressClassName: elsewhere
  rules: [{host: thief.example, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: thief, port: {number: 80}}}}]}}]
`

// thiefSlice is an address of b's own pods, where Kubernetes alone writes endpoints: a policy refuses it to consumers, and
// the controller serves none but the consumer's pods all the same.
const thiefSlice = `
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: stolen, namespace: TWIN, labels: {kubernetes.io/service-name: rivulet-ingress-web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: ["ADDR"]}]
`

// A provider lends the class that is built in: the consumer's pods are opened on its LAN,
// the provider's own are not, and what is not lent any more is closed.
func TestTheOneThatIsBuiltInIsLent(t *testing.T) {
	ctx := suite.Bounded(t, 6*time.Minute)
	a, b := suite.Devices["a"], suite.Devices["b"]
	withoutOthers(t, ctx)
	configure(t, ctx, b, "ingress: true\n")
	labtest.CleanUp(t, func(ctx context.Context) {
		if t.Failed() {
			for _, d := range []*lab.Device{a, b} {
				said, _ := d.Kubectl(ctx, "get", "ingress,ingressclass,endpointslices", "-A")
				t.Log(said)
				said, _ = d.Kubectl(ctx, "get", "events", "-A")
				t.Log(said)
			}
		}
	})
	apply(t, ctx, b, "apiVersion: v1\nkind: Namespace\nmetadata: {name: private}\n---\n"+web("private", 1))
	podsOf(t, ctx, b, "private", "b")
	secret := labtest.Kubectl(t, ctx, b, "-n", "private", "get", "pods", "-o", "jsonpath={.items[0].status.podIP}")
	apply(t, ctx, a, lentShop)
	pods := podsOf(t, ctx, a, "lent", "b")
	await.NoError(t, ctx, time.Minute, "the class of b is lent", func() error {
		_, err := b.Kubectl(ctx, "label", "ingressclass", "rivulet", "rivulet.dev/lent=")
		return err
	})
	neighbour := edge{device: a, address: lan["b"]}
	neighbour.becomes(t, ctx, "http://thief.example/", http.StatusServiceUnavailable)
	neighbour.answers(t, ctx, "http://lent.example/", pods)
	await.NoError(t, ctx, time.Minute, "home sees b's address", func() error {
		out, err := a.Kubectl(ctx, "-n", "lent", "get", "ingress", "lent", "-o", "jsonpath={.status.loadBalancer.ingress[*].ip}")
		if err == nil && out != lan["b"] {
			err = fmt.Errorf("%q", out)
		}
		return err
	})

	twin := labtest.Twin(t, ctx, b, "lent")
	apply(t, ctx, b, strings.NewReplacer("TWIN", twin, "ADDR", secret).Replace(thiefSlice))
	await.NoError(t, ctx, time.Minute, "b's controller has seen the address of its own pod", func() error {
		out, err := b.Kubectl(ctx, "-n", twin, "get", "events", "--field-selector", "reason=EndpointNotAPod", "-o", "jsonpath={.items[*].message}")
		if err == nil && !strings.Contains(out, secret) {
			err = fmt.Errorf("%q", out)
		}
		return err
	})
	neighbour.answers(t, ctx, "http://lent.example/", pods)
	neighbour.status(t, ctx, "http://thief.example/", http.StatusServiceUnavailable)

	labtest.Kubectl(t, ctx, b, "label", "ingressclass", "rivulet", "rivulet.dev/lent-")
	neighbour.becomes(t, ctx, "http://lent.example/", http.StatusNotFound)
	configure(t, ctx, b, "")
	labtest.Kubectl(t, ctx, a, "delete", "namespace", "lent", "--wait=false")
	labtest.Kubectl(t, ctx, b, "delete", "namespace", "private", "--wait=false")
}
