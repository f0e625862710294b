package gatewaypod

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"rivulet/fabric/gateway/gatewayproto"
	"rivulet/test/harness/await"
)

// apiServer passes requests of pods/proxy to the pod, as an API server does: with the path and the Upgrade.
func apiServer(t *testing.T, pod http.Handler) (*rest.Config, kubernetes.Interface) {
	t.Helper()
	far := httptest.NewServer(pod)
	t.Cleanup(far.Close)
	to, err := url.Parse(far.URL)
	if err != nil {
		t.Fatal(err)
	}
	const prefix = "/api/v1/namespaces/shared/pods/gw:10080/proxy"
	near := httptest.NewUnstartedServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(to)
		r.Out.URL.Path = strings.TrimPrefix(r.In.URL.Path, prefix)
		if r.In.Header.Get("Authorization") != "Bearer secret" || r.Out.URL.Path == r.In.URL.Path {
			r.Out.URL.Path = "/refused"
		}
	}})
	near.EnableHTTP2 = true // which has no Upgrade
	near.StartTLS()
	t.Cleanup(near.Close)
	cfg := &rest.Config{Host: near.URL, BearerToken: "secret", TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return cfg, client
}

// echo takes the upgrade and answers with what it hears, which it begins with a greeting.
func echo(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != gatewayproto.StreamPath || r.Header.Get("Upgrade") != gatewayproto.StreamUpgrade {
		http.NotFound(w, r)
		return
	}
	c, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer c.Close()
	_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+gatewayproto.StreamUpgrade+"\r\n\r\nhello")
	_, _ = io.Copy(c, c)
}

func TestStreamThroughTheProxyOfPods(t *testing.T) {
	cfg, client := apiServer(t, http.HandlerFunc(echo))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	c, err := upgraded(ctx, cfg, client, "shared", "gw")
	if err != nil {
		t.Fatal(err)
	}
	cancel() // it bounds the request alone
	watch := time.AfterFunc(time.Minute, func() { c.Close() })
	defer watch.Stop()
	large := make([]byte, 16<<20)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(large) // it never fails
	go c.Write(large)
	want := append([]byte("hello"), large...)
	var got bytes.Buffer
	pieces := 0
	err = copyAll(writes(func(b []byte) error {
		pieces++
		got.Write(b)
		if got.Len() == len(want) {
			c.Close()
		}
		return nil
	}), c)
	if err == nil || !bytes.Equal(got.Bytes(), want) {
		t.Errorf("%d bytes of %d: %v", got.Len(), len(want), err)
	}
	if records := len(want) / (16 << 10); pieces >= records {
		t.Errorf("%d bytes were written in %d pieces, as many as TLS has records", len(want), pieces)
	}
}

// writes is a writer.
type writes func([]byte) error

func (w writes) Write(b []byte) (int, error) { return len(b), w(b) }

// A gateway or a campus without that gets a port-forward.
func TestPortForwardWhereTheProxyIsRefused(t *testing.T) {
	for status, far := range map[string]http.HandlerFunc{
		"404": http.NotFound,
		"403": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusForbidden) },
		"200": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "welcome") },
	} {
		var forwards atomic.Int32
		cfg, client := apiServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != gatewayproto.StreamPath {
				forwards.Add(1) // a request for another path than that of the proxy
			}
			far(w, r)
		}))
		if _, err := upgraded(t.Context(), cfg, client, "shared", "gw"); err == nil || !strings.Contains(err.Error(), status) {
			t.Errorf("%s: %v", status, err)
		}
		g := &Gateway{cfg: Config{Campus: cfg, Namespace: "shared", Log: slog.New(slog.DiscardHandler)}, campus: client, log: slog.New(slog.DiscardHandler)}
		if _, err := g.dialStream(t.Context(), "gw", true); err == nil || forwards.Load() == 0 {
			t.Errorf("%s: after %d other requests: %v", status, forwards.Load(), err)
		}
	}
}

// Where a stream through the proxy ends soon, the next one is a port-forward.
func TestAStreamThatEndsSoonIsNotTriedAgain(t *testing.T) {
	var upgrades, others atomic.Int32
	cfg, client := apiServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != gatewayproto.StreamPath {
			others.Add(1)
			http.NotFound(w, r)
			return
		}
		upgrades.Add(1)
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+gatewayproto.StreamUpgrade+"\r\n\r\n")
		c.Close()
	}))
	log := slog.New(slog.DiscardHandler)
	g := &Gateway{cfg: Config{Campus: cfg, Namespace: "shared", Fabric: swallow{}, Log: log}, campus: client, log: log, pod: "gw", problems: map[string]string{}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- g.link(ctx) }()
	await.True(t, time.Minute, "a port-forward is tried", func() bool { return others.Load() > 0 })
	if n := upgrades.Load(); n != 1 {
		t.Errorf("the proxy was tried %d times", n)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// swallow is a fabric that takes streams.
type swallow struct{ Fabric }

func (swallow) GatewayStream(net.Conn) error { return nil }
