package stream

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"io"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	authnv1 "k8s.io/api/authentication/v1"
	authzv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"

	"rivulet/offload/consumer/pod"
)

// pods are those of node b.
type pods struct {
	away  func(name string) (twin, pod string, err error)
	on    func() []*corev1.Pod
	usage func() ([]pod.Usage, error)
}

func (p pods) Away(_, name string) (twin, pod string, err error) { return p.away(name) }

func (p pods) On(node string) []*corev1.Pod {
	if node != "b" || p.on == nil {
		return nil
	}
	return p.on()
}

func (p pods) Usage(_ context.Context, node string) ([]pod.Usage, error) {
	if node != "b" || p.usage == nil {
		return nil, nil
	}
	return p.usage()
}

func TestParametersKeepTheirMeaning(t *testing.T) {
	for _, c := range []struct {
		to              mapping
		container       string
		kubelet, theAPI string
	}{
		{logs, "web", "follow=true&tailLines=5&timestamps=true&sinceTime=2026-01-01T00%3A00%3A00Z&other=x",
			"container=web&follow=true&sinceTime=2026-01-01T00%3A00%3A00Z&tailLines=5&timestamps=true"},
		{exec, "web", "command=sh&command=-c&command=echo+a%26b&input=1&output=1&tty=1",
			"command=sh&command=-c&command=echo+a%26b&container=web&stderr=false&stdin=true&stdout=true&tty=true"},
		{attach, "web", "output=1&error=1", "container=web&stderr=true&stdout=true"},
		{portForward, "", "port=80&port=443", "ports=80&ports=443"},
		{portForward, "", "", ""},
	} {
		from, err := url.ParseQuery(c.kubelet)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.to.query(from, c.container).Encode(); got != c.theAPI {
			t.Errorf("%s: %s\n  is %s\nwant %s", c.to.subresource, c.kubelet, got, c.theAPI)
		}
	}
}

// TestWhoIsLetIn runs a Server with authorities like the engine's: the API server may all, others
// what RBAC gives them.
func TestWhoIsLetIn(t *testing.T) {
	dir := t.TempDir()
	serverCA, clientCA := authority(t, dir, "server-ca"), authority(t, dir, "client-ca")
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.URL.String())
	}))
	defer target.Close()
	ip := netip.MustParseAddr("127.0.0.1")
	s, err := Listen(Config{IP: ip, Node: "b", Authority: EngineAuthority(dir), Home: reviewer(t), Target: &rest.Config{Host: target.URL + "/k8s"}, Log: slog.New(slog.DiscardHandler),
		Pods: pods{away: func(name string) (string, string, error) {
			if name == "gone" {
				return "", "", apierrors.NewNotFound(corev1.Resource("pods"), name)
			}
			return "lab-a", name + "-x1", nil
		}}})
	if err != nil {
		t.Fatal(err)
	}
	go s.Run(t.Context())
	token := ""
	get := func(certificate *tls.Certificate, path string) (int, string, error) {
		pool := x509.NewCertPool()
		pool.AddCert(serverCA.Leaf)
		config := &tls.Config{RootCAs: pool}
		if certificate != nil {
			config.Certificates = []tls.Certificate{*certificate}
		}
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: config}, Timeout: 10 * time.Second}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://127.0.0.1:"+strconv.Itoa(int(s.Port()))+path, nil)
		if err != nil {
			return 0, "", err
		}
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		resp, err := client.Do(r)
		if err != nil {
			return 0, "", err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		return resp.StatusCode, string(body), err
	}
	path := "/containerLogs/lab/web/main?tailLines=1"
	for name, c := range map[string]*tls.Certificate{
		"nobody": nil, "admin": signed(t, clientCA, "system:admin"), "a stranger's authority": signed(t, serverCA, apiServer)} {
		for _, path := range []string{path, "/pods", "/runningpods/", "/stats/summary", "/metrics/resource", "/healthz"} {
			if code, body, err := get(c, path); err == nil && code != http.StatusUnauthorized && code != http.StatusForbidden {
				t.Errorf("%s was let in to %s: %d %s", name, path, code, body)
			}
		}
	}
	for _, c := range []struct {
		token, path string
		want        int
	}{
		{"prometheus", "/metrics", http.StatusOK}, {"prometheus", "/metrics/cadvisor", http.StatusOK}, {"prometheus", "/metrics/probes", http.StatusOK},
		{"prometheus", "/pods", http.StatusForbidden}, {"prometheus", "/exec/lab/web/main", http.StatusForbidden}, {"prometheus", "/metricsx", http.StatusForbidden},
		{"reader", path, http.StatusOK}, {"reader", "/exec/lab/web/main?command=id", http.StatusForbidden}, {"reader", "/portForward/lab/web", http.StatusForbidden},
		{"another", "/metrics", http.StatusForbidden}, {"unknown", "/metrics", http.StatusUnauthorized}, {apiServer, "/pods", http.StatusUnauthorized},
	} {
		token = c.token
		if code, body, err := get(nil, c.path); err != nil || code != c.want {
			t.Errorf("%s with the token %s: %d %s %v, want %d", c.path, c.token, code, body, err, c.want)
		}
	}
	token = ""
	ours := signed(t, clientCA, apiServer)
	code, body, err := get(ours, path)
	if err != nil || code != http.StatusOK || body != "/k8s/api/v1/namespaces/lab-a/pods/web-x1/log?container=main&tailLines=1" {
		t.Errorf("%d %s %v", code, body, err)
	}
	if code, body, _ := get(ours, "/containerLogs/lab/gone/main"); code != http.StatusNotFound || !strings.Contains(body, "gone") {
		t.Errorf("a pod that is not there: %d %s", code, body)
	}
	target.Close()
	if code, body, _ := get(ours, path); code != http.StatusBadGateway || !strings.Contains(body, "rivulet peers") {
		t.Errorf("a target that is not there: %d %s", code, body)
	}
}

// reviewer is an API server that knows tokens by their users' names, and lets prometheus read
// nodes/metrics of b.
func reviewer(t *testing.T) kubernetes.Interface {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("POST /apis/authentication.k8s.io/v1/tokenreviews", func(w http.ResponseWriter, r *http.Request) {
		var review authnv1.TokenReview
		_ = json.NewDecoder(r.Body).Decode(&review)
		if review.Spec.Token != "unknown" {
			review.Status = authnv1.TokenReviewStatus{Authenticated: true, User: authnv1.UserInfo{Username: review.Spec.Token}}
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(&review)
	})
	mux.HandleFunc("POST /apis/authorization.k8s.io/v1/subjectaccessreviews", func(w http.ResponseWriter, r *http.Request) {
		var review authzv1.SubjectAccessReview
		_ = json.NewDecoder(r.Body).Decode(&review)
		of := review.Spec.ResourceAttributes
		may := map[string]string{"prometheus": "metrics", "reader": "proxy"}[review.Spec.User]
		review.Status.Allowed = of != nil && of.Verb == "get" && of.Resource == "nodes" && of.Subresource == may && of.Name == "b"
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(&review)
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func authority(t *testing.T, dir, name string) *tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	made, err := cert.NewSelfSignedCACert(cert.Config{CommonName: name}, key)
	if err != nil {
		t.Fatal(err)
	}
	text, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		t.Fatal(err)
	}
	certText, err := cert.EncodeCertificates(made)
	if err != nil {
		t.Fatal(err)
	}
	for file, content := range map[string][]byte{name + ".crt": certText, name + ".key": text} {
		if err := os.WriteFile(filepath.Join(dir, file), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return &tls.Certificate{Leaf: made, PrivateKey: key}
}

func signed(t *testing.T, by *tls.Certificate, name string) *tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}},
		by.Leaf, key.Public(), by.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}
