package tenancy

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"rivulet/fabric/logbound"
	"rivulet/fabric/peer"
)

// limitedBy serves /k8s/ as the consumer, in front of an API server of the test's own.
func limitedBy(t *testing.T, api http.Handler) (*Tenancy, string) {
	t.Helper()
	back := httptest.NewServer(api)
	t.Cleanup(back.Close)
	tenancy, err := New(Config{Local: &rest.Config{Host: back.URL}, PeerID: func(*http.Request) (peer.ID, bool) { return alice, true }, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	tenancy.mayPass = func(string, peer.ID) (int, string) { return 0, "" }
	front := httptest.NewServer(tenancy.Routes()["/k8s/"])
	t.Cleanup(front.Close)
	return tenancy, front.URL
}

// A session of exec ends with the pin, on both sides.
func TestRevocationEndsSessions(t *testing.T) {
	ended := make(chan struct{})
	tenancy, url := limitedBy(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprint(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\nprompt\n")
		rw.Flush()
		_, _ = io.Copy(io.Discard, rw)
		close(ended)
	}))
	conn, err := net.Dial("tcp", url[len("http://"):])
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "GET /k8s/api/v1/namespaces/x/pods/p/exec HTTP/1.1\r\nHost: p\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n")
	in := bufio.NewReader(conn)
	response, err := http.ReadResponse(in, nil)
	if err != nil || response.StatusCode != http.StatusSwitchingProtocols {
		t.Fatal(response, err)
	}
	if line, _ := in.ReadString('\n'); line != "prompt\n" {
		t.Fatalf("%q", line)
	}
	tenancy.Only(map[peer.ID]bool{alice: true})
	if tenancy.visitors.open(alice) != 1 {
		t.Fatal("the session of a peer was ended")
	}
	tenancy.Only(map[peer.ID]bool{bob: true})
	_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	if _, err := in.ReadByte(); err == nil || err != io.EOF && isTimeout(err) {
		t.Errorf("the session goes on: %v", err)
	}
	select {
	case <-ended:
	case <-time.After(30 * time.Second):
		t.Error("the session goes on inside")
	}
}

func isTimeout(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	return ok && timeout.Timeout()
}

// A storm is answered 429 with the time to wait, of which clients know what to make;
// another consumer does not notice.
func TestStorm(t *testing.T) {
	v := newVisitors(1 << 20)
	ok, refused := 0, ""
	for range 3 * requestBurst {
		_, leave, why := v.enter(t.Context(), alice, short, 0)
		if leave == nil {
			refused = why
			continue
		}
		leave()
		ok++
	}
	if refused == "" || ok < requestBurst {
		t.Errorf("%d of %d let in, %q", ok, 3*requestBurst, refused)
	}
	if _, leave, why := v.enter(t.Context(), bob, short, 0); leave == nil {
		t.Errorf("another consumer is held: %s", why)
	}

	v = newVisitors(1 << 20)
	var leaves []func()
	for range atOnce {
		_, leave, why := v.enter(t.Context(), alice, short, 0)
		if leave == nil {
			t.Fatal(why)
		}
		leaves = append(leaves, leave)
	}
	if _, leave, _ := v.enter(t.Context(), alice, short, 0); leave != nil {
		t.Error("more at once than there may be")
	}
	leaves[0]()
	if _, leave, why := v.enter(t.Context(), alice, short, 0); leave == nil {
		t.Errorf("room again, and refused: %s", why)
	}
	if v.spend(alice, 1<<20) != true || v.spend(alice, 1<<20) {
		t.Error("what is sent is not counted")
	}
	v.spend(bob, 1)
	v.enter(t.Context(), bob, short, 0)
	v.owe(bob, 1<<20)
	if v.spend(bob, 1<<10) {
		t.Error("what is owed is not made good")
	}
}

// What lasts is what the API server takes for it: by verb and subresource, and never
// because a request that writes says so.
func TestRequested(t *testing.T) {
	for _, c := range []struct {
		method, url   string
		lasts, writes bool
	}{
		{"GET", "/k8s/api/v1/namespaces/x/pods", false, false},
		{"GET", "/k8s/api/v1/namespaces/x/pods?watch=true", true, false},
		{"GET", "/k8s/api/v1/namespaces/x/pods?watch=1", true, false},
		{"GET", "/k8s/api/v1/namespaces/x/pods?watch", true, false},
		{"GET", "/k8s/api/v1/namespaces/x/pods?watch=false", false, false},
		{"GET", "/k8s/api/v1/namespaces/x/pods/p?watch=true", false, false}, // it is a get
		{"GET", "/k8s/api/v1/watch/namespaces/x/pods", true, false},
		{"GET", "/k8s/apis/apps/v1/watch/namespaces/x/replicasets", true, false},
		{"GET", "/k8s/api/v1/namespaces/x/pods/p/log?follow=true", true, false},
		{"GET", "/k8s/api/v1/namespaces/x/pods/p/exec?command=sh", true, false},
		{"POST", "/k8s/api/v1/namespaces/x/pods/p/exec?command=sh", true, false},
		{"GET", "/k8s/api/v1/namespaces/x/configmaps/watch?follow=true", false, false},
		{"GET", "/k8s/apis/batch/v1/namespaces/x/jobs?watch=0&limit=500", false, false},
		{"POST", "/k8s/api/v1/namespaces/x/configmaps?watch=true", false, true},
		{"PUT", "/k8s/api/v1/namespaces/x/configmaps/c?watch=true", false, true},
		{"PATCH", "/k8s/api/v1/namespaces/x/configmaps/c?watch=1&follow=true", false, true},
		{"POST", "/k8s/api/v1/namespaces/x/configmaps", false, true},
		{"DELETE", "/k8s/api/v1/namespaces/x/configmaps?watch=true", false, false},
		{"POST", "/k8s/apis", false, true},
	} {
		what := requested(httptest.NewRequest(c.method, c.url, nil))
		if lasts(what) != c.lasts || writes(what) != c.writes {
			t.Errorf("%s %s lasts: %v, writes: %v", c.method, c.url, lasts(what), writes(what))
		}
	}
}

// Whatever a write says of itself, its bytes are counted: asked for as a watch, as an
// upgrade, or without a length.
func TestNoWriteGoesUncounted(t *testing.T) {
	api := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/api/v1/namespaces") && r.Method == http.MethodGet {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{"kind":"NamespaceList","apiVersion":"v1","items":[]}`)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusCreated)
	})
	body := `"` + strings.Repeat("x", 1<<20-2) + `"`
	for name, change := range map[string]func(*http.Request){
		"plain":   func(*http.Request) {},
		"watch":   func(r *http.Request) { r.URL.RawQuery = "watch=true" },
		"upgrade": func(r *http.Request) { r.Header.Set("Connection", "Upgrade"); r.Header.Set("Upgrade", "SPDY/3.1") },
	} {
		_, url := limitedBy(t, api)
		refused, made := 0, 0
		for range minStore>>20 + 4 {
			r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/k8s/api/v1/namespaces/x/configmaps", strings.NewReader(body))
			change(r)
			response, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(name, err)
			}
			response.Body.Close()
			switch response.StatusCode {
			case http.StatusCreated:
				made++
			case http.StatusTooManyRequests:
				refused++
			}
		}
		if refused == 0 || made < minStore>>20 {
			t.Errorf("%s: %d MiB in a row, %d refused", name, made, refused)
		}
	}
	_, url := limitedBy(t, api)
	r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/k8s/api/v1/namespaces/x/configmaps", io.MultiReader(strings.NewReader(body)))
	response, err := http.DefaultClient.Do(r)
	if err != nil || response.StatusCode != http.StatusLengthRequired {
		t.Errorf("of no length: %v, %v", response, err)
	}
}

// A patch of some bytes that makes a new version of a large object is charged for that,
// whatever its sender wants to have back of it.
func TestSmallPatchesOfLargeObjects(t *testing.T) {
	_, url := limitedBy(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodGet:
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{"kind":"NamespaceList","apiVersion":"v1","items":[]}`)
		case r.Header.Get("Accept") != "application/json":
			fmt.Fprint(w, `{}`)
		default:
			fmt.Fprint(w, strings.Repeat("x", 1<<20))
		}
	}))
	made := 0
	for range 40 {
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodPatch, url+"/k8s/api/v1/namespaces/x/configmaps/c", strings.NewReader(`{}`))
		r.Header.Set("Accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1")
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode == http.StatusOK {
			made++
		}
	}
	if made == 0 || made > minStore>>20+2 {
		t.Errorf("%d versions of a megabyte in a row", made)
	}
}

// open is the number of requests under way.
func (v *visitors) open(id peer.ID) int {
	v.mu.Lock()
	defer v.mu.Unlock()
	if g := v.all[id]; g != nil {
		return g.short + g.long + g.offers + g.files
	}
	return 0
}

// A consumer whose requests for twins are refused gets an answer for each, and a bounded number of lines in the owner's
// log.
func TestRefusedRequestsDoNotFillTheLog(t *testing.T) {
	var log bytes.Buffer
	tenancy, err := New(Config{Local: &rest.Config{Host: "http://127.0.0.1:1"}, PeerID: func(*http.Request) (peer.ID, bool) { return alice, true }, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 10 * logbound.PerMinute {
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(ctx, http.MethodPut, "/v1/namespaces/shop", nil)
		r.SetPathValue("home", "shop")
		if tenancy.ensure(w, r, alice); w.Code != http.StatusServiceUnavailable {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
	}
	if n := strings.Count(log.String(), "no twin"); n == 0 || n > 2*logbound.PerMinute { // a minute may end meanwhile
		t.Errorf("%d lines of %d requests", n, 10*logbound.PerMinute)
	}
}
