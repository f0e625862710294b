package peer

import (
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"rivulet/fabric/peer"
	"rivulet/offload/foreign"
)

// lyingPeer is a target at a peer with TLS that answers as it likes; sent counts the bytes of its answers.
func lyingPeer(t *testing.T, answer http.HandlerFunc) (*Target, *atomic.Int64) {
	t.Helper()
	sent := &atomic.Int64{}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { answer(counted{w, sent}, r) }))
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections)
	l := b
	l.Addr = netip.MustParseAddrPort(server.Listener.Addr().String())
	target, err := New(Config{Name: "b", Link: l, Links: func() []peer.Link { return nil }, PodCIDR: pods, HTTP: server.Client(), BaseURL: server.URL, Log: slog.New(slog.DiscardHandler),
		ServerCert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), ServerName: "example.com"})
	if err != nil {
		t.Fatal(err)
	}
	return target, sent
}

type counted struct {
	http.ResponseWriter
	n *atomic.Int64
}

func (c counted) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p)
	c.n.Add(int64(n))
	return n, err
}

// Neither the API of a peer nor its own routes are read without an end, inflated, or followed to where they point; its
// names are names of namespaces. Each is an error of the call.
func TestAPeerThatLies(t *testing.T) {
	var hits atomic.Int32
	victim := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { hits.Add(1) }))
	defer victim.Close()
	endless := func(w http.ResponseWriter) {
		for block := []byte(strings.Repeat("[", 64<<10)); ; {
			if _, err := w.Write(block); err != nil {
				return
			}
		}
	}
	for what, answer := range map[string]http.HandlerFunc{
		"without an end": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			endless(w)
		},
		"compressed": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Encoding", "gzip")
			endless(w)
		},
		"pointing to home": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, victim.URL+"/index/_all", http.StatusTemporaryRedirect)
		},
		"pointing to itself": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, r.URL.Path+"/", http.StatusPermanentRedirect)
		},
	} {
		target, sent := lyingPeer(t, answer)
		claims := target.Client().CoreV1().PersistentVolumeClaims("y")
		for call, do := range map[string]func() error{
			"list":   func() error { _, err := claims.List(t.Context(), metav1.ListOptions{}); return err },
			"delete": func() error { return claims.Delete(t.Context(), "a", metav1.DeleteOptions{}) },
			"create": func() error {
				_, err := claims.Create(t.Context(), &corev1.PersistentVolumeClaim{}, metav1.CreateOptions{})
				return err
			},
			"twins":   func() error { _, err := target.Twins(t.Context()); return err },
			"a twin":  func() error { _, err := target.Namespace(t.Context(), "lab"); return err },
			"release": func() error { return target.Release(t.Context(), "lab") },
			"config of streams": func() error {
				client, err := rest.HTTPClientFor(target.Config())
				if err != nil {
					return err
				}
				resp, err := client.Get(target.Config().Host + "/api/v1/namespaces/y/pods")
				if err == nil {
					_, err = fmt.Fscan(resp.Body, new(string))
					resp.Body.Close()
				}
				return err
			},
		} {
			before := sent.Load()
			if err := do(); err == nil {
				t.Errorf("%s, %s: no error", what, call)
			} else if own := call == "twins" || call == "a twin" || call == "release"; !errors.As(err, new(*foreign.Unusable)) && !(own && what == "without an end") {
				t.Errorf("%s, %s: %v", what, call, err)
			}
			if n := sent.Load() - before; n > foreign.MaxAnswer+16<<20 {
				t.Errorf("%s, %s: %d bytes were taken", what, call, n)
			}
		}
	}
	if n := hits.Load(); n > 0 {
		t.Errorf("%d requests went to home", n)
	}
	for _, answer := range []string{`{"name":"../../api"}`, `{"name":""}`, `{"twins":{"x":"a/b"}}`, `{"twins":{"..":"y"}}`, `{"twins":{"x":""}}`} {
		target, _ := lyingPeer(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, answer) })
		_, err := target.Namespace(t.Context(), "lab")
		_, err2 := target.Twins(t.Context())
		if err == nil || strings.Contains(answer, "twins") && err2 == nil {
			t.Errorf("%s: %v, %v", answer, err, err2)
		}
	}
}

// The API of a peer is reached at its control address, and nothing else is.
func TestAPeersConnectionsLeadToIt(t *testing.T) {
	target, _ := lyingPeer(t, http.NotFound)
	for _, addr := range []string{"127.0.0.1:22", "10.43.0.1:443", "10.42.0.7:9200"} {
		if c, err := target.Config().Dial(t.Context(), "tcp", addr); err == nil {
			c.Close()
			t.Errorf("there is a connection to %s", addr)
		} else if !errors.As(err, new(*foreign.Unusable)) {
			t.Errorf("%s: %v", addr, err)
		}
	}
	c, err := target.Config().Dial(t.Context(), "tcp", target.cfg.Link.Addr.String())
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}
