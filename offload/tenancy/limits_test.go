package tenancy

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"k8s.io/client-go/rest"

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
	timeout, ok := err.(net.Error)
	return ok && timeout.Timeout()
}

// A storm is answered 429 with the time to wait, of which clients know what to make;
// another consumer does not notice.
func TestStorm(t *testing.T) {
	v := newVisitors()
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

	v = newVisitors()
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
	if v.spend(alice, byteBurst) != true || v.spend(alice, byteBurst) {
		t.Error("what is sent is not counted")
	}
}

func TestLasts(t *testing.T) {
	for url, want := range map[string]bool{
		"/k8s/api/v1/namespaces/x/pods":                          false,
		"/k8s/api/v1/namespaces/x/pods?watch=true":               true,
		"/k8s/api/v1/namespaces/x/pods?watch=1":                  true,
		"/k8s/api/v1/namespaces/x/pods?watch":                    true,
		"/k8s/api/v1/namespaces/x/pods?watch=false":              false,
		"/k8s/api/v1/watch/namespaces/x/pods":                    true,
		"/k8s/apis/apps/v1/watch/namespaces/x/replicasets":       true,
		"/k8s/api/v1/namespaces/x/pods/p/log?follow=true":        true,
		"/k8s/api/v1/namespaces/x/pods/p/log":                    false,
		"/k8s/api/v1/namespaces/x/configmaps/watch?follow=true":  false,
		"/k8s/apis/batch/v1/namespaces/x/jobs?watch=0&limit=500": false,
	} {
		if got := lasts(httptest.NewRequest(http.MethodGet, url, nil)); got != want {
			t.Errorf("%s lasts: %v", url, got)
		}
	}
}
