package vcluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"rivulet/appliance/engine/controlplane"
	"rivulet/fabric/changes"
	"rivulet/fabric/peer"
	"rivulet/test/harness/await"
)

// addresses are those that pods have, by a test.
type addresses struct {
	changes.Signal
	mu sync.Mutex
	of map[netip.Addr]peer.ID
}

func (a *addresses) Has(id peer.ID, at netip.Addr) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	owner, ok := a.of[at]
	return ok && owner == id
}

// give has the address be a pod's; of nobody it is gone.
func (a *addresses) give(at string, id peer.ID) {
	a.mu.Lock()
	if a.of == nil {
		a.of = map[netip.Addr]peer.ID{}
	}
	a.of[netip.MustParseAddr(at)] = id
	if id == "" {
		delete(a.of, netip.MustParseAddr(at))
	}
	a.mu.Unlock()
	a.Notify()
}

// way is the socket of a virtual cluster to its host, and a pod that repeats what it hears.
type way struct {
	*cluster
	t      *testing.T
	pods   addresses
	mu     sync.Mutex
	dialed []string
	before func() // called when a pod is dialed
}

func newWay(t *testing.T) *way {
	dir, err := os.MkdirTemp("", "way") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	w := &way{t: t, before: func() {}}
	k := New(Config{State: dir, Run: dir, Addresses: &w.pods, Log: slog.New(slog.DiscardHandler)})
	k.dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
		w.mu.Lock()
		w.dialed = append(w.dialed, network+" "+addr)
		w.mu.Unlock()
		w.before()
		if strings.HasSuffix(addr, ":1") {
			return nil, errors.New("connection refused")
		}
		here, there := net.Pipe()
		go func() { _, _ = io.Copy(there, there); there.Close() }()
		return here, nil
	}
	w.cluster = newCluster(k, record{Spec: Spec{Name: "ann"}, UID: os.Getuid(), ID: "ann's"})
	if err := os.MkdirAll(w.rootDir(), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := w.openHost(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.closeHost)
	return w
}

// connect sends a CONNECT for what is given, and returns the connection and the status.
func (w *way) connect(to string) (net.Conn, int, string) {
	w.t.Helper()
	c, err := net.Dial("unix", filepath.Join(w.rootDir(), controlplane.Host))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { c.Close() })
	if _, err := fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", to, to); err != nil {
		w.t.Fatal(err)
	}
	r, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: http.MethodConnect})
	if err != nil {
		w.t.Fatal(err)
	}
	if r.StatusCode == http.StatusOK {
		return c, r.StatusCode, ""
	}
	text, _ := io.ReadAll(r.Body)
	return c, r.StatusCode, string(text)
}

// repeats reports whether the pod is at the other end.
func repeats(c net.Conn) error {
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	if _, err := c.Write([]byte("x")); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, 1))
	return err
}

// TestAnAPIServerReachesItsOwnPodsAlone has a tenant name every kind of address.
func TestAnAPIServerReachesItsOwnPodsAlone(t *testing.T) {
	w := newWay(t)
	w.pods.give("10.42.0.5", "ann's")
	w.pods.give("10.42.0.6", "ben's")
	for _, to := range []string{
		"127.0.0.1:6443", "127.0.0.1:7442", "[::1]:6443", "0.0.0.0:80", "[::]:80", "localhost:6443", "192.168.1.10:7442", "192.168.1.10:10250",
		"10.42.0.6:8443", "10.42.0.1:10250", "10.42.255.1:7442", "10.43.0.1:443", "10.43.0.10:53", "169.254.169.254:80", "255.255.255.255:80",
		"[::ffff:10.42.0.5]:8443", "[::ffff:127.0.0.1]:6443", "[fe80::1%25eth0]:80", "[fd00::5]:8443", "10.42.0.5%lo:80",
		"10.42.0.5", "10.42.0.5:", "10.42.0.5:99999", "10.42.0.5:https", "010.42.0.5:80", "10.42.5:80", "0x0a2a0005:80", "170524677:80",
		"web.lab.svc:443", "kubernetes.default.svc:443", "example.org:443", ":443", "10.42.0.5:80,127.0.0.1:6443", "10.42.0.5:80@127.0.0.1:80",
	} {
		_, status, text := w.connect(to)
		if status != http.StatusForbidden && status != http.StatusBadRequest || status == http.StatusForbidden && !strings.Contains(text, "name a Service") {
			t.Errorf("%s: %d %s", to, status, text)
		}
	}
	if len(w.dialed) > 0 {
		t.Errorf("somebody was called: %q", w.dialed)
	}
	c, status, text := w.connect("10.42.0.5:8443")
	if status != http.StatusOK {
		t.Fatalf("its own pod: %d %s", status, text)
	}
	if err := repeats(c); err != nil {
		t.Fatal(err)
	}
	if want := []string{"tcp4 10.42.0.5:8443"}; !slices.Equal(w.dialed, want) {
		t.Errorf("called are %q, want %q", w.dialed, want)
	}
	if _, status, text := w.connect("10.42.0.5:1"); status != http.StatusBadGateway || !strings.Contains(text, "connection refused") {
		t.Errorf("a pod that does not listen: %d %s", status, text)
	}
	w.mu.Lock()
	w.rec.Deleting = true
	w.mu.Unlock()
	if _, status, _ := w.connect("10.42.0.5:8443"); status != http.StatusForbidden {
		t.Errorf("it is being deleted: %d", status)
	}
}

// TestAnAddressChangesHands: between the look and the connection, and while that is open.
func TestAnAddressChangesHands(t *testing.T) {
	for what, next := range map[string]peer.ID{"the pod is gone": "", "another's pod has its address": "ben's"} {
		t.Run(what, func(t *testing.T) {
			w := newWay(t)
			w.pods.give("10.42.0.5", "ann's")
			w.before = func() { w.pods.give("10.42.0.5", next) }
			if _, status, _ := w.connect("10.42.0.5:8443"); status != http.StatusForbidden {
				t.Errorf("before it was there: %d", status)
			}
			w.before = func() {}
			w.pods.give("10.42.0.5", "ann's")
			w.pods.give("10.42.0.7", "ann's")
			gone, _, _ := w.connect("10.42.0.5:8443")
			stays, _, _ := w.connect("10.42.0.7:8443")
			for _, c := range []net.Conn{gone, stays} {
				if err := repeats(c); err != nil {
					t.Fatal(err)
				}
			}
			w.pods.give("10.42.0.5", next)
			if _, err := gone.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
				t.Errorf("a connection to it goes on: %v", err)
			}
			if err := repeats(stays); err != nil {
				t.Errorf("a connection to another pod: %v", err)
			}
			w.closeHost()
			if _, err := stays.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
				t.Errorf("without a way to the host it goes on: %v", err)
			}
		})
	}
}

// TestConnectionsToPodsAreBounded: the next one waits for a place, and is refused in words.
func TestConnectionsToPodsAreBounded(t *testing.T) {
	t.Parallel()
	w := newWay(t)
	w.pods.give("10.42.0.5", "ann's")
	var all []net.Conn
	for range maxToPods {
		c, status, text := w.connect("10.42.0.5:8443")
		if status != http.StatusOK {
			t.Fatalf("%d: %d %s", len(all), status, text)
		}
		all = append(all, c)
	}
	if _, status, text := w.connect("10.42.0.5:8443"); status != http.StatusServiceUnavailable || !strings.Contains(text, "may have no more") {
		t.Errorf("%d %s", status, text)
	}
	go all[0].Close()
	if c, status, text := w.connect("10.42.0.5:8443"); status != http.StatusOK || repeats(c) != nil {
		t.Errorf("with a place again: %d %s", status, text)
	}
	for _, c := range all {
		c.Close()
	}
	await.Empty(t, 10*time.Second, "all places but one are free", func(context.Context) string {
		if n := len(w.toPods); n > 1 {
			return fmt.Sprint(n)
		}
		return ""
	})
}
