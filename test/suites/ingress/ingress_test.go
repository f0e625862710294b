package ingress

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/mainjob"
)

// controller is Traefik with a class of its own, as its users install it.
const controller = `
apiVersion: v1
kind: Namespace
metadata: {name: edge}
---
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {name: CLASS}
spec: {controller: traefik.io/ingress-controller}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: traefik, namespace: edge}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: traefik}
rules:
- {apiGroups: [""], resources: [services, secrets, nodes, configmaps, namespaces], verbs: [get, list, watch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [get, list, watch]}
- {apiGroups: [networking.k8s.io], resources: [ingresses, ingressclasses], verbs: [get, list, watch]}
- {apiGroups: [networking.k8s.io], resources: [ingresses/status], verbs: [update]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: traefik}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: traefik}
subjects: [{kind: ServiceAccount, name: traefik, namespace: edge}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: traefik, namespace: edge}
spec:
  selector: {matchLabels: {app: traefik}}
  template:
    metadata: {labels: {app: traefik}}
    spec:
      serviceAccountName: traefik
      containers:
      - name: traefik
        image: rivulet.dev/ingress:1
        env: [{name: INGRESS_CLASS, value: CLASS}, {name: ADDRESS, value: LAN}]
        readinessProbe: {tcpSocket: {port: 8000}, periodSeconds: 1}
`

// web is a Deployment of the web application, with a Service.
func web(namespace string, replicas int) string {
	return strings.NewReplacer("NAMESPACE", namespace, "REPLICAS", strconv.Itoa(replicas)).Replace(`apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: NAMESPACE}
spec:
  replicas: REPLICAS
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: web, image: "` + mainjob.Image + `", ports: [{name: http, containerPort: 8080}], readinessProbe: {httpGet: {path: /ready, port: http}, periodSeconds: 1}}]
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: NAMESPACE}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: http}]}
---
`)
}

// shop runs on b, and has an Ingress for each controller and one for both.
var shop = `
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {rivulet.dev/offload: remote}}
---
` + web("shop", 2) + `apiVersion: v1
kind: Secret
type: kubernetes.io/tls
metadata: {name: shop-tls, namespace: shop}
data: {tls.crt: "CERT", tls.key: "KEY"}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: both, namespace: shop, annotations: {rivulet.dev/reflect: "on", rivulet.dev/ingress-class: lent, example.com/of-home: "x"}}
spec:
  ingressClassName: own
  tls: [{hosts: [both.example], secretName: shop-tls}]
  rules: [{host: both.example, http: {paths: [{path: /shop, pathType: Prefix, backend: {service: {name: web, port: {name: http}}}}]}}]
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: here, namespace: shop}
spec:
  ingressClassName: own
  rules: [{host: here.example, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}}]
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: there, namespace: shop, annotations: {rivulet.dev/reflect: "on", rivulet.dev/ingress-class: lent}}
spec:
  ingressClassName: elsewhere
  rules: [{host: there.example, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}}]
`

// lan are the devices' addresses, which the controllers announce.
var lan = map[string]string{"a": "10.77.0.11", "b": "10.77.0.12"}

// A Deployment of a runs on b. Home's controller passes requests on to the away pods, by
// TLS with home's Secret, too; b's does so for what is opted in, once b lends its class,
// and what it says of addresses is seen at home.
func TestIngressOfWhatRunsAway(t *testing.T) {
	ctx := suite.Bounded(t, 6*time.Minute)
	a, b := suite.Devices["a"], suite.Devices["b"]
	for d, class := range map[*lab.Device]string{a: "own", b: "lent"} {
		apply(t, ctx, d, strings.NewReplacer("CLASS", class, "LAN", lan[d.Name]).Replace(controller))
	}
	pool, cert, key := certificate(t, "both.example")
	apply(t, ctx, a, strings.NewReplacer("CERT", cert, "KEY", key).Replace(shop))
	pods := awayPods(t, ctx, a, 2)
	home, there := controllerOf(t, ctx, a), controllerOf(t, ctx, b)

	labtest.CleanUp(t, func(ctx context.Context) {
		if t.Failed() {
			for _, d := range []*lab.Device{a, b} {
				said, _ := d.Kubectl(ctx, "-n", "edge", "logs", "deploy/traefik", "--tail=30")
				t.Logf("the controller of %s: %s", d.Name, said)
				said, _ = d.Kubectl(ctx, "get", "ingress,ingressclass,endpointslices", "-A")
				t.Logf("%s", said)
			}
		}
	})
	home.answers(t, ctx, "http://here.example:8000/", pods)
	home.answers(t, ctx, "http://both.example:8000/shop/cart", pods)
	home.answersTLS(t, ctx, "https://both.example:8443/shop", pods, pool)
	home.status(t, ctx, "http://here.example:8000/", http.StatusOK)
	home.status(t, ctx, "http://both.example:8000/elsewhere", http.StatusNotFound)
	home.status(t, ctx, "http://there.example:8000/", http.StatusNotFound) // nobody serves its class here

	// b lends nothing yet: home is told so, and b's controller knows of nothing.
	await.NoError(t, ctx, time.Minute, "home is told that b lends no class", func() error {
		out, err := a.Kubectl(ctx, "-n", "shop", "get", "events", "--field-selector=reason=ReflectionFailed", "-o", "jsonpath={range .items[*]}{.involvedObject.name}: {.message}{\"\\n\"}{end}")
		if err == nil && (!strings.Contains(out, "both: ") || !strings.Contains(out, "rivulet.dev/lent")) {
			err = fmt.Errorf("%q", out)
		}
		return err
	})
	there.status(t, ctx, "http://there.example:8000/", http.StatusNotFound)
	labtest.Kubectl(t, ctx, b, "label", "ingressclass", "lent", "rivulet.dev/lent=edge")
	there.answers(t, ctx, "http://there.example:8000/", pods)
	there.answers(t, ctx, "http://both.example:8000/shop/cart", pods)
	there.answersTLS(t, ctx, "https://both.example:8443/shop", pods, pool)
	there.status(t, ctx, "http://here.example:8000/", http.StatusNotFound) // it was not opted in

	twin := labtest.Kubectl(t, ctx, b, "-n", labtest.Twin(t, ctx, b, "shop"), "get", "ingress", "-o", "jsonpath={range .items[*]}{.metadata.name} {.spec.ingressClassName} {.metadata.annotations}{\"\\n\"}{end}")
	if lines := strings.Fields(twin); !slices.Equal(lines, []string{"both", "lent", "there", "lent"}) {
		t.Errorf("in the twin: %q", twin)
	}
	for name, want := range map[string]string{"here": lan["a"], "both": lan["a"], "there": lan["b"]} {
		await.NoError(t, ctx, time.Minute, "the address of Ingress "+name+" is "+want, func() error {
			out, err := a.Kubectl(ctx, "-n", "shop", "get", "ingress", name, "-o", "jsonpath={.status.loadBalancer.ingress[*].ip}")
			if err == nil && out != want {
				err = fmt.Errorf("%q", out)
			}
			return err
		})
	}

	// Endpoints that come and go, and another certificate.
	labtest.Kubectl(t, ctx, a, "-n", "shop", "scale", "deployment", "web", "--replicas=3")
	pods = awayPods(t, ctx, a, 3)
	home.answers(t, ctx, "http://here.example:8000/", pods)
	there.answers(t, ctx, "http://there.example:8000/", pods)
	labtest.Kubectl(t, ctx, a, "-n", "shop", "delete", "pod", pods[0], "--wait")
	pods = awayPods(t, ctx, a, 3)
	home.answers(t, ctx, "http://here.example:8000/", pods)
	there.answers(t, ctx, "http://there.example:8000/", pods)
	pool, cert, key = certificate(t, "both.example")
	labtest.Kubectl(t, ctx, a, "-n", "shop", "patch", "secret", "shop-tls", "-p", fmt.Sprintf(`{"data":{"tls.crt":%q,"tls.key":%q}}`, cert, key))
	home.answersTLS(t, ctx, "https://both.example:8443/shop", pods, pool)
	there.answersTLS(t, ctx, "https://both.example:8443/shop", pods, pool)

	// Taken back: b opens it no more, home goes on.
	labtest.Kubectl(t, ctx, a, "-n", "shop", "annotate", "ingress", "both", "rivulet.dev/reflect-")
	there.becomes(t, ctx, "http://both.example:8000/shop", http.StatusNotFound)
	labtest.Kubectl(t, ctx, a, "-n", "shop", "delete", "ingress", "there")
	there.becomes(t, ctx, "http://there.example:8000/", http.StatusNotFound)
	home.answers(t, ctx, "http://both.example:8000/shop", pods)
}

func apply(t *testing.T, ctx context.Context, d *lab.Device, manifest string) {
	t.Helper()
	labtest.Must(t, ctx, d, "sh", "-c", `printf %s "$1" | rivulet kubectl apply -f -`, "apply", manifest)
}

// awayPods waits for n ready pods of the shop, all on b.
func awayPods(t *testing.T, ctx context.Context, a *lab.Device, n int) (names []string) {
	t.Helper()
	await.NoError(t, ctx, 2*time.Minute, fmt.Sprintf("%d pods are ready on b", n), func() error {
		out, err := a.Kubectl(ctx, "-n", "shop", "get", "pods", "-l", "app=web", "-o",
			`jsonpath={range .items[*]}{.metadata.name} {.spec.nodeName}{.metadata.deletionTimestamp} {.status.conditions[?(@.type=="Ready")].status}{"\n"}{end}`)
		names = nil
		for line := range strings.Lines(out) {
			if f := strings.Fields(line); len(f) == 3 && f[1] == "b" && f[2] == "True" {
				names = append(names, f[0])
			}
		}
		if err == nil && (len(names) != n || strings.Count(out, "\n") != n) {
			err = fmt.Errorf("%q", out)
		}
		return err
	})
	return names
}

// edge is a device's controller, as the device itself reaches it.
type edge struct {
	device  *lab.Device
	address string
}

func controllerOf(t *testing.T, ctx context.Context, d *lab.Device) edge {
	t.Helper()
	e := edge{device: d}
	await.NoError(t, ctx, 2*time.Minute, "the controller runs on "+d.Name, func() error {
		out, err := d.Kubectl(ctx, "-n", "edge", "get", "pods", "-l", "app=traefik", "-o", `jsonpath={.items[*].status.podIP} {.items[*].status.conditions[?(@.type=="Ready")].status}`)
		f := strings.Fields(out)
		if err == nil && (len(f) != 2 || f[1] != "True") {
			err = fmt.Errorf("%q", out)
		}
		if err == nil {
			e.address = f[0]
		}
		return err
	})
	return e
}

// get asks the controller, whatever the URL's host resolves to elsewhere.
func (e edge) get(ctx context.Context, url string, roots *x509.CertPool) (status int, pod string, err error) {
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots},
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			_, port, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			return e.device.Dial(ctx, network, net.JoinHostPort(e.address, port))
		}}}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	answer, err := client.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	raw, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		return answer.StatusCode, "", err
	}
	var said struct{ Pod string }
	err = json.Unmarshal(raw, &said)
	return answer.StatusCode, said.Pod, err
}

// answers waits until the pods answer in turn, each of them and nobody else.
func (e edge) answers(t *testing.T, ctx context.Context, url string, pods []string) {
	t.Helper()
	e.answersTLS(t, ctx, url, pods, nil)
}

func (e edge) answersTLS(t *testing.T, ctx context.Context, url string, pods []string, roots *x509.CertPool) {
	t.Helper()
	await.NoError(t, ctx, time.Minute, fmt.Sprintf("%s: %s is answered by %d pods", e.device.Name, url, len(pods)), func() error {
		seen := map[string]bool{}
		for range 4 * len(pods) {
			status, pod, err := e.get(ctx, url, roots)
			if err != nil {
				return err
			}
			if status != http.StatusOK || !slices.Contains(pods, pod) {
				return fmt.Errorf("status %d from pod %q, want one of %q", status, pod, pods)
			}
			seen[pod] = true
		}
		if len(seen) != len(pods) {
			return fmt.Errorf("only %v answer, of %q", seen, pods)
		}
		return nil
	})
}

// status fails the test if the controller answers otherwise.
func (e edge) status(t *testing.T, ctx context.Context, url string, want int) {
	t.Helper()
	if got, _, err := e.get(ctx, url, nil); err != nil || got != want {
		t.Errorf("%s: %s: status %d, %v; want %d", e.device.Name, url, got, err, want)
	}
}

func (e edge) becomes(t *testing.T, ctx context.Context, url string, want int) {
	t.Helper()
	await.NoError(t, ctx, time.Minute, fmt.Sprintf("%s: %s is %d", e.device.Name, url, want), func() error {
		got, _, err := e.get(ctx, url, nil)
		if err == nil && got != want {
			err = fmt.Errorf("status %d", got)
		}
		return err
	})
}

// certificate makes one that is its own authority, as base64 of PEM.
func certificate(t *testing.T, host string) (roots *x509.CertPool, cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: host}, DNSNames: []string{host},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	public := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	roots = x509.NewCertPool()
	roots.AppendCertsFromPEM(public)
	return roots, base64.StdEncoding.EncodeToString(public),
		base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}))
}
