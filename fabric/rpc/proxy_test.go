package rpc

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"
)

// A request that is refused before its body was read gets the whole refusal.
func TestEndBody(t *testing.T) {
	serve := func(h http.HandlerFunc) *httptest.Server {
		s := httptest.NewUnstartedServer(h)
		s.EnableHTTP2 = true
		s.StartTLS()
		t.Cleanup(s.Close)
		return s
	}
	behind := serve(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 {
			t.Errorf("the request comes by %s", r.Proto)
		}
		http.Error(w, "no", http.StatusForbidden)
	})
	to, err := url.Parse(behind.URL)
	if err != nil {
		t.Fatal(err)
	}
	front := serve(func(w http.ResponseWriter, r *http.Request) {
		proxy := httputil.ReverseProxy{Transport: behind.Client().Transport, FlushInterval: -1, Rewrite: func(p *httputil.ProxyRequest) { p.SetURL(to) }, ModifyResponse: EndBody(r)}
		proxy.ServeHTTP(w, r)
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	body, more := io.Pipe() // there is more, which nobody sends
	defer more.Close()
	q, err := http.NewRequestWithContext(ctx, http.MethodDelete, front.URL, body)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := front.Client().Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if text, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusForbidden || !strings.Contains(string(text), "no") {
		t.Errorf("%s %q %v", resp.Status, text, err)
	}
}
