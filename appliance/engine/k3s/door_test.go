package k3s

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/k3s-io/k3s/pkg/authenticator"
	"github.com/k3s-io/k3s/pkg/cli/cmds"
	"github.com/k3s-io/k3s/pkg/daemons/config"
	"github.com/k3s-io/k3s/pkg/daemons/control/deps"
	"github.com/k3s-io/k3s/pkg/server/handlers"
	"github.com/sirupsen/logrus"
	authn "k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	bootstrap "k8s.io/cluster-bootstrap/token/api"

	"rivulet/appliance/engine"
)

// Addresses of the server pi, its worker w, the worker x that was removed, and a pod.
const pi, w, x, pod = "100.127.15.2", "100.127.9.7", "100.127.40.3", "10.42.1.5"

// token is an authenticator for the bootstrap token of a worker, which is the same for all here: the door does not
// depend on it.
type token struct{}

func (token) AuthenticateRequest(r *http.Request) (*authn.Response, bool, error) {
	if r.Header.Get("Authorization") != "Bearer token" {
		return nil, false, nil
	}
	return &authn.Response{User: &user.DefaultInfo{Name: "system:bootstrap:w", Groups: []string{bootstrap.BootstrapDefaultGroup}}}, true, nil
}

// served is what k3s serves, and the door before it.
type served struct {
	bare http.Handler
	door *door
	csr  []byte
}

// newServed has k3s's own handlers, with its authorities. They take any password for any node, as for one that has none.
func newServed(t *testing.T) *served {
	t.Helper()
	logrus.SetOutput(io.Discard)
	t.Cleanup(func() { logrus.SetOutput(os.Stderr) })
	c := &config.Control{Token: "t", AgentToken: "a", ServerNodeName: "pi", DataDir: t.TempDir(), DisableAgent: true}
	c.Runtime = config.NewRuntime()
	for _, dir := range []string{"etc", "tls", "cred", "static"} {
		if err := os.MkdirAll(filepath.Join(c.DataDir, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	c.ServiceIPRange = &net.IPNet{IP: net.IPv4(10, 43, 0, 0), Mask: net.CIDRMask(16, 32)}
	c.ServiceIPRanges = []*net.IPNet{c.ServiceIPRange}
	deps.CreateRuntimeCertFiles(c)
	if err := deps.GenServerDeps(c); err != nil {
		t.Fatal(err)
	}
	certs, err := authenticator.FromArgs([]string{"--client-ca-file=" + c.Runtime.ClientCA})
	if err != nil {
		t.Fatal(err)
	}
	ok := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") })
	c.Runtime.Authenticator, c.Runtime.Tunnel, c.Runtime.APIServer = authenticator.Combine(certs, token{}), ok, ok
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	s := &served{bare: handlers.NewHandler(t.Context(), c, &cmds.Server{})}
	if s.csr, err = x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key); err != nil {
		t.Fatal(err)
	}
	s.door = &door{next: s.bare, node: "pi", list: &workersList{state: t.TempDir()}, log: slog.New(slog.DiscardHandler)}
	s.workers(t, engine.Workers{netip.MustParseAddr(w): "w"})
	return s
}

func (s *served) workers(t *testing.T, list engine.Workers) {
	t.Helper()
	if err := engine.SaveWorkers(s.door.list.state, list); err != nil {
		t.Fatal(err)
	}
}

// ask is a request. The zero value is w's for its own.
type ask struct {
	what, from, method, path string
	name, ip                 string // in the headers
	body                     []byte
	as                       *x509.Certificate // nil is the token
	want                     int
}

func (a ask) request(t *testing.T) *http.Request {
	t.Helper()
	t.Setenv("NODE_NAME", strings.ToLower(a.name)) // k3s takes any password for it
	r := httptest.NewRequest(a.method, a.path, strings.NewReader(string(a.body)))
	r.RemoteAddr = net.JoinHostPort(a.from, "40000")
	r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, &net.TCPAddr{IP: net.ParseIP(pi), Port: 6443}))
	for _, program := range []string{"k3s", "x"} { // that of the path counts
		r.Header.Set(program+"-Node-Name", a.name)
		r.Header.Set(program+"-Node-Password", "guessed")
		r.Header.Set(program+"-Node-IP", a.ip)
	}
	if a.as == nil {
		r.Header.Set("Authorization", "Bearer token")
	} else {
		r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{a.as}}
	}
	return r
}

// issue returns the certificate that k3s itself gives to who asks.
func (s *served) issue(t *testing.T, a ask) *x509.Certificate {
	t.Helper()
	a.method, a.body = http.MethodPost, s.csr
	out := httptest.NewRecorder()
	s.bare.ServeHTTP(out, a.request(t))
	return certificate(t, out)
}

func certificate(t *testing.T, out *httptest.ResponseRecorder) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(out.Body.Bytes())
	if block == nil {
		t.Fatalf("no certificate: %d %s", out.Code, out.Body)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// What k3s does for whoever has a worker's token, the door lets through for the worker itself, with its own name and
// address, and for this node.
func TestAWorkerGetsItsOwnOfK3s(t *testing.T) {
	const kubelet, serving, proxy, controller = "/v1-k3s/client-kubelet.crt", "/v1-k3s/serving-kubelet.crt", "/v1-k3s/client-kube-proxy.crt", "/v1-k3s/client-k3s-controller.crt"
	s := newServed(t)
	of := func(path, name string) *x509.Certificate {
		return s.issue(t, ask{from: w, path: path, name: name, ip: w})
	}
	ofW, ofX, ofPi, ofProxy, ofController := of(kubelet, "w"), of(kubelet, "x"), of(kubelet, "pi"), of(proxy, "w"), of(controller, "w")
	const post, get, no, who = http.MethodPost, http.MethodGet, http.StatusForbidden, http.StatusUnauthorized
	for _, a := range []ask{
		// Its own.
		{what: "its kubelet", path: kubelet}, {what: "its kubelet, with its certificate", path: kubelet, as: ofW}, {what: "its kubelet's server", path: serving},
		{what: "in capitals", path: serving, name: "W"},
		{what: "kube-proxy", path: proxy}, {what: "the agent's controller", path: controller},
		{what: "authority of clients", method: get, path: "/v1-k3s/client-ca.crt"}, {what: "authority of servers", method: get, path: "/v1-k3s/server-ca.crt"},
		{what: "settings", method: get, path: "/v1-k3s/config"}, {what: "the tunnel", method: get, path: "/v1-k3s/connect", as: ofW},
		{what: "the authority before it is known", method: get, path: "/cacerts"}, {what: "ping", method: get, path: "/ping"},
		{what: "the API", method: get, path: "/api/v1/nodes", as: ofW}, {what: "the API for kube-proxy", method: get, path: "/api/v1/nodes", as: ofProxy},
		{what: "the API for the controller", method: get, path: "/api/v1/nodes", as: ofController},
		// Of others.
		{what: "a virtual node", path: kubelet, name: "alice", want: no}, {what: "a new node", path: kubelet, name: "ghost", want: no},
		{what: "the server's node", path: kubelet, name: "pi", want: no}, {what: "its name with a space", path: kubelet, name: " w", want: no},
		{what: "the API server", path: serving, name: "kubernetes.default.svc", want: no},
		{what: "the API server's Service", path: serving, ip: "10.43.0.1", want: no}, {what: "the server's address", path: serving, ip: pi, want: no},
		{what: "both addresses", path: serving, ip: w + "," + pi, want: no}, {what: "its own twice", path: serving, ip: w + "," + w, want: no},
		{what: "another program", path: "/v1-x/client-kubelet.crt", want: no}, {what: "another program's controller", path: "/v1-x/client-x-controller.crt", want: no},
		{what: "the server's key", method: get, path: kubelet, want: no}, {what: "the server's key for kube-proxy", method: get, path: proxy, want: no},
		{what: "the server's key, by no request", path: serving, body: []byte("x"), want: no}, {what: "the server's key for the controller", path: controller, body: []byte{}, want: no},
		// By others.
		{what: "the token from a pod", from: pod, path: kubelet, want: no}, {what: "kube-proxy from a pod", from: pod, path: proxy, want: no},
		{what: "settings from a pod", from: pod, method: get, path: "/v1-k3s/config", want: no},
		{what: "the token of a removed worker", from: x, path: kubelet, name: "x", ip: x, want: no},
		{what: "a removed worker in w's name", from: x, path: kubelet, want: no},
		{what: "a removed worker's certificate", from: x, method: get, path: "/api/v1/secrets", as: ofX, want: who},
		{what: "w with a removed worker's certificate", method: get, path: "/api/v1/secrets", as: ofX, want: who},
		{what: "w's from a pod", from: pod, method: get, path: "/api/v1/secrets", as: ofW, want: who},
		{what: "w's from the server", from: "127.0.0.1", method: get, path: "/api/v1/secrets", as: ofW, want: who},
		{what: "the server's from w", method: get, path: "/api/v1/secrets", as: ofPi, want: who},
		{what: "kube-proxy's from a removed worker", from: x, method: get, path: "/api/v1/services", as: ofProxy, want: who},
		{what: "the controller's from a pod", from: pod, method: get, path: "/api/v1/nodes", as: ofController, want: who},
		{what: "the controller's tunnel", method: get, path: "/v1-k3s/connect", as: ofX, want: who},
		{what: "files", method: get, path: "/static/", want: no},
		// What is not the door's.
		{what: "the API for a pod", from: pod, method: get, path: "/api/v1/pods"},
		{what: "this node", from: "127.0.0.1", path: kubelet, name: "pi", ip: pi}, {what: "this node by its address", from: pi, path: serving, name: "pi", ip: pi},
		{what: "this node by IPv6", from: "::1", method: get, path: "/api/v1/nodes", as: ofPi}, {what: "this node's kubelet", from: pi, method: get, path: "/api/v1/nodes", as: ofPi},
	} {
		if a.from == "" {
			a.from = w
		}
		if a.method == "" {
			a.method = post
		}
		if a.name == "" {
			a.name = "w"
		}
		if a.ip == "" {
			a.ip = w
		}
		if a.body == nil && a.method == post {
			a.body = s.csr
		}
		if a.want == 0 {
			a.want = http.StatusOK
		}
		bare, out := httptest.NewRecorder(), httptest.NewRecorder()
		s.bare.ServeHTTP(bare, a.request(t))
		s.door.ServeHTTP(out, a.request(t))
		if bare.Code != http.StatusOK {
			t.Errorf("%s: k3s itself answers %d %s: this is no attack", a.what, bare.Code, bare.Body)
		}
		if out.Code != a.want {
			t.Errorf("%s: %s %s from %s: %d %s, want %d", a.what, a.method, a.path, a.from, out.Code, out.Body, a.want)
		}
		if a.want != http.StatusOK && (strings.Contains(out.Body.String(), "BEGIN") || out.Body.String() == "ok") {
			t.Errorf("%s: refused, with the answer %s", a.what, out.Body)
		}
		if a.path == serving && a.want == http.StatusOK && a.from == w {
			if c := certificate(t, out); c.Subject.CommonName != "w" || strings.Join(c.DNSNames, " ") != "w localhost" || fmt.Sprint(c.IPAddresses) != "[127.0.0.1 "+w+"]" {
				t.Errorf("%s: of %s, %q, %s", a.what, c.Subject, c.DNSNames, c.IPAddresses)
			}
		}
	}
	for _, path := range []string{"token", "server-bootstrap", "encrypt/status", "encrypt/config", "cert/cacerts", "p2p", "client-kubelet.crt/", ""} {
		for _, method := range []string{get, post, http.MethodPut, http.MethodConnect} {
			out := httptest.NewRecorder()
			s.door.ServeHTTP(out, ask{from: w, method: method, path: "/v1-k3s/" + path, name: "w", ip: w}.request(t))
			if out.Code != no {
				t.Errorf("%s %s: %d", method, path, out.Code)
			}
		}
	}
}

// A worker that was removed is refused from the next request on, in connections from before, too; and so is everyone
// whose list cannot be read.
func TestARemovedWorkersCertificate(t *testing.T) {
	s := newServed(t)
	mine := s.issue(t, ask{from: w, path: "/v1-k3s/client-kubelet.crt", name: "w", ip: w})
	for _, c := range []struct {
		what string
		do   func()
		want int
	}{
		{"a worker", func() {}, http.StatusOK},
		{"removed", func() { s.workers(t, engine.Workers{}) }, http.StatusUnauthorized},
		{"another device of its name", func() { s.workers(t, engine.Workers{netip.MustParseAddr(x): "w"}) }, http.StatusUnauthorized},
		{"again", func() { s.workers(t, engine.Workers{netip.MustParseAddr(w): "w"}) }, http.StatusOK},
		{"a list that is damaged", func() {
			if err := os.WriteFile(filepath.Join(s.door.list.state, "k3s-workers.json"), []byte(`{"`), 0o600); err != nil {
				t.Fatal(err)
			}
		}, http.StatusUnauthorized},
		{"repaired", func() { s.workers(t, engine.Workers{netip.MustParseAddr(w): "w"}) }, http.StatusOK},
		{"no list", func() {
			if err := os.Remove(filepath.Join(s.door.list.state, "k3s-workers.json")); err != nil {
				t.Fatal(err)
			}
		}, http.StatusUnauthorized},
	} {
		c.do()
		out := httptest.NewRecorder()
		s.door.ServeHTTP(out, ask{from: w, method: http.MethodGet, path: "/api/v1/nodes", as: mine}.request(t))
		if out.Code != c.want {
			t.Errorf("%s: %d, want %d", c.what, out.Code, c.want)
		}
	}
}
