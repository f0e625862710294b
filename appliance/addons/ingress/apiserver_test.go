package ingress

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"rivulet/appliance/config"
	"rivulet/fabric/netmon"
	"rivulet/offload/policy"
	"rivulet/test/harness/apiserver"
	"rivulet/test/harness/await"
	"rivulet/test/harness/locks"
)

// lans are a device's.
type lans struct {
	mu      sync.Mutex
	addr    string
	changed chan struct{}
}

func (l *lans) LANs() netmon.LANs {
	l.mu.Lock()
	defer l.mu.Unlock()
	return netmon.LANs{{Addrs: []netip.Prefix{netip.MustParsePrefix(l.addr)}}}
}

func (l *lans) Changed() (<-chan struct{}, func()) { return l.changed, func() {} }

// asked are the paths of what was asked of an API server.
type asked struct {
	http.RoundTripper
	mu    sync.Mutex
	paths []string
}

func (a *asked) RoundTrip(r *http.Request) (*http.Response, error) {
	a.mu.Lock()
	a.paths = append(a.paths, r.Method+" "+r.URL.Path+"?"+r.URL.RawQuery)
	a.mu.Unlock()
	return a.RoundTripper.RoundTrip(r)
}

func (a *asked) which(part string) (out []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range a.paths {
		if strings.Contains(p, part) {
			out = append(out, p)
		}
	}
	return out
}

// story is a device with a real API server.
type story struct {
	*front
	admin      kubernetes.Interface
	controller *Controller
	lans       *lans
	asked      *asked
}

func newStory(t *testing.T) *story {
	s := &story{lans: &lans{addr: "192.0.2.7/24", changed: make(chan struct{}, 1)}, asked: &asked{}}
	api := apiserver.Start(t)
	s.admin = api.Client
	cfg := rest.CopyConfig(api.Config)
	cfg.QPS, cfg.Burst = 100, 200
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { s.asked.RoundTripper = next; return s.asked })
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s.front = &front{t: t, web: locks.Ports(t, 1), secure: locks.Ports(t, 1), certificates: x509.NewCertPool()}
	s.controller = New(Config{Client: client, LANs: s.lans, Page: &s.page, Reaches: anywhere, File: "/etc/rivulet/config.yaml", Health: &s.health,
		Networks: func() []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16")} },
		Log:      slog.New(slog.DiscardHandler), Ports: [2]int{s.web, s.secure}})
	s.controller.absent = time.Second
	// The pods of the story are 10.42.0.7, which is home's, and 10.42.0.8, a tenant's.
	pods := map[string]string{}
	for _, addr := range []string{"10.42.0.7", "10.42.0.8"} {
		pods[addr+":8080"] = pod(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, addr) })
	}
	s.controller.server.pods.connect = func(ctx context.Context, network, address string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, pods[address])
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.controller.Run(ctx, func() {}) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func (s *story) ingress(namespace, name, class, host, service string, secret string) *networkingv1.Ingress {
	s.t.Helper()
	kind := networkingv1.PathTypePrefix
	i := &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.IngressSpec{Rules: []networkingv1.IngressRule{{Host: host, IngressRuleValue: networkingv1.IngressRuleValue{
		HTTP: &networkingv1.HTTPIngressRuleValue{Paths: []networkingv1.HTTPIngressPath{{Path: "/", PathType: &kind, Backend: networkingv1.IngressBackend{
			Service: &networkingv1.IngressServiceBackend{Name: service, Port: networkingv1.ServiceBackendPort{Number: 80}}}}}}}}}}}
	if class != "" {
		i.Spec.IngressClassName = &class
	}
	if secret != "" {
		i.Spec.TLS = []networkingv1.IngressTLS{{Hosts: []string{host}, SecretName: secret}}
	}
	return must[*networkingv1.Ingress](s.t)(s.admin.NetworkingV1().Ingresses(namespace).Create(s.t.Context(), i, metav1.CreateOptions{}))
}

// service makes a Service of one pod, which is what its EndpointSlice says.
func (s *story) service(namespace, name, addr string) {
	s.t.Helper()
	ctx := s.t.Context()
	must[*corev1.Service](s.t)(s.admin.CoreV1().Services(namespace).Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{}))
	port, empty := int32(8080), ""
	must[*discoveryv1.EndpointSlice](s.t)(s.admin.DiscoveryV1().EndpointSlices(namespace).Create(ctx, &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}}, AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{Name: &empty, Port: &port}}, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{addr}}}}, metav1.CreateOptions{}))
}

func (s *story) events(name, reason string) (out []string) {
	list, err := s.admin.CoreV1().Events("").List(s.t.Context(), metav1.ListOptions{FieldSelector: "reason=" + reason + ",involvedObject.name=" + name})
	if err != nil {
		s.t.Fatal(err)
	}
	for _, e := range list.Items {
		for range max(e.Count, 1) {
			out = append(out, e.Message)
		}
	}
	return out
}

func (s *story) told(name, reason string, words ...string) {
	s.t.Helper()
	await.NoError(s.t, s.t.Context(), 20*time.Second, "as it should be", func() error {
		got := s.events(name, reason)
		if len(got) != 1 {
			return fmt.Errorf("%d events %s of %s: %q", len(got), reason, name, got)
		}
		for _, w := range words {
			if !strings.Contains(got[0], w) {
				return fmt.Errorf("%q does not tell of %q", got[0], w)
			}
		}
		return nil
	})
}

func (s *story) address(namespace, name, want string) {
	s.t.Helper()
	await.NoError(s.t, s.t.Context(), 20*time.Second, "as it should be", func() error {
		i, err := s.admin.NetworkingV1().Ingresses(namespace).Get(s.t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		got := ""
		for _, a := range i.Status.LoadBalancer.Ingress {
			got += a.IP
		}
		if got != want {
			return fmt.Errorf("%s has the address %q, want %q", name, got, want)
		}
		return nil
	})
}

// answers waits for an answer of a URL.
func (s *story) answers(url string, status int, body string) {
	s.t.Helper()
	await.NoError(s.t, s.t.Context(), 20*time.Second, "as it should be", func() error {
		answer, err := s.client().Get(url)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		raw := make([]byte, len(body))
		n, _ := answer.Body.Read(raw)
		if answer.StatusCode != status || string(raw[:n]) != body {
			return fmt.Errorf("%s: %s %q, want %d %q", url, answer.Status, raw[:n], status, body)
		}
		return nil
	})
}

func (s *story) class(want func(*networkingv1.IngressClass) error) {
	s.t.Helper()
	await.NoError(s.t, s.t.Context(), 20*time.Second, "as it should be", func() error {
		c, err := s.admin.NetworkingV1().IngressClasses().Get(s.t.Context(), Class, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			c, err = nil, nil
		}
		if err != nil {
			return err
		}
		return want(c)
	})
}

func isDefaultClass(want bool) func(*networkingv1.IngressClass) error {
	return func(c *networkingv1.IngressClass) error {
		if c == nil || isDefault(c) != want {
			return fmt.Errorf("%+v, want default: %v", c, want)
		}
		return nil
	}
}

// The cure makes each configuration one that switches the controller on.
func TestSwitchOn(t *testing.T) {
	for _, before := range []string{"-", "", "name: a\n", "name: a", "ingress: false\nname: a\n", "name: a\ningress: off # for now"} {
		file := filepath.Join(t.TempDir(), "etc", "config.yaml")
		if before != "-" {
			if err := errors.Join(os.Mkdir(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(before), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		if out, err := exec.CommandContext(t.Context(), "sh", "-c", switchOn(file)).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v %s", before, err, out)
		}
		text, err := os.ReadFile(file)
		got := config.Parse(text, config.Options{File: file})
		if err != nil || len(got.Problems) > 0 || !got.Config.Ingress || strings.Contains(before, "name: a") != (got.Config.Name == "a") {
			t.Errorf("%q became %q: %v, %v", before, text, got.Problems, err)
		}
	}
}

// With a real API server: what an Ingress is told without the controller; a class, a
// status, certificates and endpoints that change; tenants; and off again.
func TestStoryWithAnAPIServer(t *testing.T) {
	s := newStory(t)
	ctx := t.Context()
	s.ingress("default", "web", "", "a.example", "web", "key")
	s.told("web", reasonNobody, "names no class", "ingress: true", "/etc/rivulet/config.yaml")
	s.ingress("default", "typo", "rivulet", "typo.example", "web", "")
	s.told("typo", reasonNobody, "no IngressClass rivulet", "ingress: true")
	s.ingress("default", "foreign", "nginx", "foreign.example", "web", "")
	s.told("foreign", reasonNobody, "no IngressClass nginx", "ingress: true")

	s.controller.Switch(true)
	s.class(isDefaultClass(true))
	s.told("web", reasonService, "default/web")
	await.NoError(t, ctx, 20*time.Second, "the cure that names the class", func() error {
		for _, e := range s.events("foreign", reasonNobody) {
			if strings.Contains(e, `no IngressClass nginx; rivulet kubectl -n default patch ingress foreign --type merge -p '{"spec":{"ingressClassName":"rivulet"}}'; or: `) {
				return nil
			}
		}
		return fmt.Errorf("%q", s.events("foreign", reasonNobody))
	})
	s.told("web", reasonSecret, "default/key")
	s.address("default", "web", "192.0.2.7")
	s.answers("http://a.example/", http.StatusServiceUnavailable, "no pod")
	s.service("default", "web", "10.42.0.7")
	s.answers("http://a.example/", http.StatusOK, "10.42.0.7")
	s.answers("http://typo.example/", http.StatusOK, "10.42.0.7")
	s.answers("http://pi.local/", http.StatusOK, "the page")
	s.lans.mu.Lock()
	s.lans.addr = "192.0.2.99/24"
	s.lans.mu.Unlock()
	s.lans.changed <- struct{}{}
	s.address("default", "web", "192.0.2.99")

	secrets := s.admin.CoreV1().Secrets("default")
	secret := func() (out *corev1.Secret) {
		made := secretOf(t, "key", time.Now(), "a.example")
		s.certificates = x509.NewCertPool()
		s.certificates.AppendCertsFromPEM(made.Data[corev1.TLSCertKey])
		out = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "key"}, Type: made.Type, Data: made.Data}
		return out
	}
	must[*corev1.Secret](t)(secrets.Create(ctx, secret(), metav1.CreateOptions{}))
	s.answers("https://a.example/", http.StatusOK, "10.42.0.7")
	must[*corev1.Secret](t)(secrets.Update(ctx, secret(), metav1.UpdateOptions{}))
	s.answers("https://a.example/", http.StatusOK, "10.42.0.7")
	s.told("web", reasonServed, "192.0.2.99")
	broken := secret()
	broken.Data[corev1.TLSPrivateKeyKey] = []byte("x")
	must[*corev1.Secret](t)(secrets.Update(ctx, broken, metav1.UpdateOptions{}))
	s.told("web", reasonCertificate, "default/key", "kubectl create secret tls")
	await.NoError(t, t.Context(), 20*time.Second, "as it should be", func() error {
		conn, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", s.secure), &tls.Config{InsecureSkipVerify: true, ServerName: "a.example"}) //nolint:gosec // whether there is one
		if err == nil {
			conn.Close()
			return fmt.Errorf("a certificate that is broken is served")
		}
		return nil
	})
	// No Secret but that one was asked for.
	for _, path := range s.asked.which("/secrets") {
		if !strings.Contains(path, "/namespaces/default/secrets?") || !strings.Contains(path, "fieldSelector=metadata.name%3Dkey") {
			t.Errorf("more Secrets than those of Ingresses: %s", path)
		}
	}
	// A pod that comes and goes.
	slices := s.admin.DiscoveryV1().EndpointSlices("default")
	if err := slices.Delete(ctx, "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.answers("http://a.example/", http.StatusServiceUnavailable, "no pod")

	s.anotherDefault(t)
	s.tenant(t)

	s.controller.Switch(false)
	s.class(func(c *networkingv1.IngressClass) error {
		if c != nil {
			return fmt.Errorf("class %s is still there", c.Name)
		}
		return nil
	})
	s.address("default", "web", "")
	await.NoError(t, t.Context(), 20*time.Second, "as it should be", func() error {
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", s.web))
		if err == nil {
			c.Close()
			return fmt.Errorf("port %d is still open", s.web)
		}
		return nil
	})
	if s.page.lent.Load() {
		t.Error("the page did not get its port back")
	}
}

// The class is the default only where no other is.
func (s *story) anotherDefault(t *testing.T) {
	ctx, classes := t.Context(), s.admin.NetworkingV1().IngressClasses()
	must[*networkingv1.IngressClass](t)(classes.Create(ctx, &networkingv1.IngressClass{ObjectMeta: metav1.ObjectMeta{Name: "other", Annotations: map[string]string{networkingv1.AnnotationIsDefaultIngressClass: "true"}},
		Spec: networkingv1.IngressClassSpec{Controller: "example.com/other"}}, metav1.CreateOptions{}))
	s.class(isDefaultClass(false))
	if err := classes.Delete(ctx, "other", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.class(isDefaultClass(true))
}

// Another cluster's Ingress is served once the class is lent, from its own pods.
func (s *story) tenant(t *testing.T) {
	ctx := t.Context()
	must[*corev1.Namespace](t)(s.admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "twin", Labels: map[string]string{policy.OriginLabel: "bob"}}}, metav1.CreateOptions{}))
	s.service("twin", "shop", "10.42.0.8")
	s.service("twin", "thief", "10.42.0.7")
	s.ingress("twin", "shop", Class, "shop.example", "shop", "")
	s.ingress("twin", "thief", Class, "thief.example", "thief", "")
	s.told("shop", reasonNotLent, policy.LentLabel)
	s.answers("http://shop.example/", http.StatusNotFound, "no Ingress")
	await.NoError(t, t.Context(), 20*time.Second, "as it should be", func() error {
		_, err := s.admin.CoreV1().ServiceAccounts("twin").Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	must[*corev1.Pod](t)(s.admin.CoreV1().Pods("twin").Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "shop"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}, metav1.CreateOptions{}))
	must[*corev1.Pod](t)(s.admin.CoreV1().Pods("twin").Patch(ctx, "shop", types.MergePatchType, []byte(`{"status":{"phase":"Running","podIP":"10.42.0.8","podIPs":[{"ip":"10.42.0.8"}]}}`), metav1.PatchOptions{}, "status"))
	lent := fmt.Sprintf(`{"metadata":{"labels":{%q:"kube-system"}}}`, policy.LentLabel)
	must[*networkingv1.IngressClass](t)(s.admin.NetworkingV1().IngressClasses().Patch(ctx, Class, types.MergePatchType, []byte(lent), metav1.PatchOptions{}))
	s.answers("http://shop.example/", http.StatusOK, "10.42.0.8")
	s.answers("http://thief.example/", http.StatusServiceUnavailable, "no pod")
	s.address("twin", "shop", "192.0.2.99")
	lent = fmt.Sprintf(`{"metadata":{"labels":{%q:null}}}`, policy.LentLabel)
	must[*networkingv1.IngressClass](t)(s.admin.NetworkingV1().IngressClasses().Patch(ctx, Class, types.MergePatchType, []byte(lent), metav1.PatchOptions{}))
	s.answers("http://shop.example/", http.StatusNotFound, "no Ingress")
	s.address("twin", "shop", "")
}
