package nodes

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	bootstrap "k8s.io/cluster-bootstrap/token/api"

	"rivulet/appliance/engine"
	"rivulet/test/harness/apiserver"
	"rivulet/test/harness/await"
	"rivulet/test/harness/testns"
)

func TestMain(m *testing.M) {
	testns.Enter()
	os.Exit(m.Run())
}

// thief is somebody with a worker's token, or with a certificate, at an address.
type thief struct {
	server, from string
	key          *ecdsa.PrivateKey
}

// ask returns the status of the answer, and the answer; cert nil asks with the token.
func (f thief) ask(ctx context.Context, method, path, name, ip string, body []byte, cert []byte) (int, []byte, error) {
	config := &tls.Config{InsecureSkipVerify: true}
	if cert != nil {
		config.Certificates = []tls.Certificate{{Certificate: [][]byte{cert}, PrivateKey: f.key}}
	}
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(f.from)}}
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: config, DialContext: dialer.DialContext}}
	r, err := http.NewRequestWithContext(ctx, method, f.server+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	r.Header.Set("k3s-Node-Name", name)
	r.Header.Set("k3s-Node-Password", "of "+name)
	r.Header.Set("k3s-Node-IP", ip)
	if r.Header.Set("Content-Type", "application/json"); cert == nil {
		r.Header.Set("Authorization", "Bearer abcdef.0123456789abcdef")
	}
	answer, err := client.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer answer.Body.Close()
	out, err := io.ReadAll(answer.Body)
	return answer.StatusCode, out, err
}

// The engine gives a worker what is its own, by the address that its tunnel has, and nobody else anything.
func TestTheEngineServesWorkers(t *testing.T) {
	const inside, server, w, gone = "NODES_INSIDE", "100.127.15.2", "100.127.9.7", "100.127.40.3"
	if os.Getenv(inside) == "" {
		room := testns.New(t)
		room.Do(func() error {
			for _, a := range []string{server, w, gone} {
				if err := testns.Give("lo", a+"/32"); err != nil {
					return err
				}
			}
			return nil
		})
		apiserver.Binary(t) // skips
		out, err := exec.CommandContext(t.Context(), testns.Program(t, room.NS, inside+"=1"), "-test.run=^"+t.Name()+"$", "-test.v").CombinedOutput()
		if t.Logf("%s", out); err != nil {
			t.Error(err)
		}
		return
	}
	ctx := t.Context()
	s := apiserver.Start(t, "--bind-address="+server, "--advertise-address="+server)
	state := filepath.Dir(filepath.Dir(filepath.Dir(s.TLSDir)))
	serve := func(list engine.Workers) {
		if err := engine.SaveWorkers(state, list); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Client.CoreV1().Secrets(metav1.NamespaceSystem).Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: bootstrap.BootstrapTokenSecretPrefix + "abcdef"},
		Type: bootstrap.SecretTypeBootstrapToken, StringData: map[string]string{bootstrap.BootstrapTokenIDKey: "abcdef", bootstrap.BootstrapTokenSecretKey: "0123456789abcdef",
			bootstrap.BootstrapTokenUsageAuthentication: "true", bootstrap.BootstrapTokenExtraGroupsKey: "system:bootstrappers:k3s:default-node-token"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	at, err := url.Parse(s.Config.Host)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	base := "https://" + net.JoinHostPort(server, at.Port())
	worker, other := thief{base, w, key}, thief{base, gone, key}

	const kubelet, serving, nodes = "/v1-k3s/client-kubelet.crt", "/v1-k3s/serving-kubelet.crt", "/api/v1/nodes"
	serve(engine.Workers{netip.MustParseAddr(w): "w"})
	var raw []byte
	await.NoError(t, ctx, time.Minute, "the worker gets its certificate", func() error {
		code, out, err := worker.ask(ctx, http.MethodPost, kubelet, "w", w, csr, nil)
		if raw = out; err == nil && code != http.StatusOK {
			err = fmt.Errorf("%d %s", code, out)
		}
		return err
	})
	block, _ := pem.Decode(raw)
	if block == nil {
		t.Fatalf("%s", raw)
	}
	mine := block.Bytes
	ghost, own := []byte(`{"apiVersion":"v1","kind":"Node","metadata":{"name":"ghost"}}`), []byte(`{"apiVersion":"v1","kind":"Node","metadata":{"name":"w"}}`)
	check := func(what string, by thief, method, path, name, ip string, body, cert []byte, want int) {
		t.Helper()
		code, out, err := by.ask(ctx, method, path, name, ip, body, cert)
		if err != nil || code != want {
			t.Errorf("%s: %d %v, want %d: %.300s", what, code, err, want, out)
		}
	}
	const post, get, no = http.MethodPost, http.MethodGet, http.StatusForbidden
	check("a new name", worker, post, kubelet, "ghost", w, csr, nil, no)
	check("the API server's address", worker, post, serving, "w", "10.43.0.1", csr, nil, no)
	check("its own address", worker, post, serving, "w", w, csr, nil, http.StatusOK)
	check("the server's private key", worker, get, kubelet, "w", w, nil, nil, no)
	check("the cluster's keys", worker, get, "/v1-k3s/server-bootstrap", "w", w, nil, mine, no)
	check("another address", other, post, kubelet, "w", w, csr, nil, no)
	check("its Node", worker, post, nodes, "w", w, own, mine, http.StatusCreated)
	check("another Node", worker, post, nodes, "w", w, ghost, mine, no)
	check("its certificate at another address", other, get, nodes+"/w", "w", w, nil, mine, http.StatusUnauthorized)
	serve(engine.Workers{})
	check("its certificate, after it was removed", worker, get, nodes+"/w", "w", w, nil, mine, http.StatusUnauthorized)
	check("its token, after it was removed", worker, post, kubelet, "w", w, csr, nil, no)
	if list, err := registered(ctx, s.Client); err != nil || strings.Contains(strings.Join(list, " "), "ghost") {
		t.Errorf("%q have registered: %v", list, err)
	}
}
