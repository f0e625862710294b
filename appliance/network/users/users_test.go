package users

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"

	"rivulet/appliance/api"
	"rivulet/fabric/httpserver"
	"rivulet/fabric/logbound"
	"rivulet/offload/apiproxy"
	"rivulet/test/harness/await"
)

var bigOne = big.NewInt(1)

// notes is a Store.
type notes struct {
	blob []byte
	copy error
}

func (n *notes) Note(string) ([]byte, error)      { return n.blob, nil }
func (n *notes) PutNote(_ string, b []byte) error { n.blob = b; return nil }
func (n *notes) CopyError() error                 { return n.copy }
func (n *notes) had(t *testing.T) (out []record) {
	t.Helper()
	check(t, json.Unmarshal(n.blob, &out))
	return out
}
func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
func refused(t *testing.T, err error, what string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), what) {
		t.Errorf("%v, want an error with %q", err, what)
	}
}

// pair makes a user's key and certificate.
func pair(t *testing.T, user string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	template.Subject.CommonName = user
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	check(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// clock is one that a test sets.
type clock struct {
	mu    sync.Mutex
	now   time.Time
	wrong bool
}

func (c *clock) set(now time.Time, wrong bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now, c.wrong = now, wrong
}
func (c *clock) Plausible() (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now, !c.wrong
}

// gate is a front on a socket of its own, before an API server that says what it was asked.
type gate struct {
	*front
	clock *clock
	store *notes
	addr  string
	roots *x509.CertPool
}

func newGate(t *testing.T) *gate {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s %s\n", r.Header.Get("Impersonate-User"), strings.Join(r.Header["Impersonate-Group"], ","), r.URL.EscapedPath())
		if r.URL.Query().Has("watch") {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}
	}))
	t.Cleanup(server.Close)
	_, key, err := ed25519.GenerateKey(rand.Reader)
	check(t, err)
	g := &gate{clock: &clock{now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}, store: &notes{}}
	ctx, cancel := context.WithCancel(t.Context())
	g.front, err = newFront(ctx, key, load(g.store), g.clock, slog.New(slog.DiscardHandler))
	check(t, err)
	g.proxy, err = apiproxy.New(&rest.Config{Host: server.URL}, g.log)
	check(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	g.addr, g.roots = l.Addr().String(), x509.NewCertPool()
	if !g.roots.AppendCertsFromPEM(pemOf(g.tls.Certificates[0])) {
		t.Fatal("the authority cannot be read")
	}
	var wg sync.WaitGroup
	wg.Go(g.serve)
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { g.take(c) })
		}
	})
	t.Cleanup(func() { cancel(); l.Close(); wg.Wait() })
	return g
}

func (g *gate) give(t *testing.T, user string, life time.Duration) tls.Certificate {
	t.Helper()
	p := pair(t, user)
	now, _ := g.clock.Plausible()
	r, err := accept(api.KubeconfigRequest{User: user, Certificate: p.Certificate[0], For: life, Role: "view"}, now)
	check(t, err)
	check(t, g.list.add(r, false))
	return p
}

func (g *gate) client(p ...tls.Certificate) *http.Client {
	return &http.Client{Timeout: time.Minute, Transport: &http.Transport{
		ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{Certificates: p, RootCAs: g.roots, ServerName: ServerName},
	}}
}

func (g *gate) ask(c *http.Client, path string, header ...string) (int, string, error) {
	q, err := http.NewRequest(http.MethodGet, "https://"+g.addr+path, nil)
	if err != nil {
		return 0, "", err
	}
	for _, h := range header {
		q.Header.Set(h, "system:admin")
	}
	resp, err := c.Do(q)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), err
}

// A user is who the certificate's key says; strangers get no answer; who has no access any
// more reads why, at the next request.
func TestWhoIsLetIn(t *testing.T) {
	g := newGate(t)
	anna := g.client(g.give(t, "anna", time.Hour))
	code, text, err := g.ask(anna, "/api/v1/namespaces/lab/services/http:web:80/proxy/a%2Fb")
	if want := "rivulet:user:anna rivulet:users,system:authenticated /api/v1/namespaces/lab/services/http:web:80/proxy/a%2Fb\n"; code != 200 || text != want || err != nil {
		t.Errorf("%d %q %v, want %q", code, text, err, want)
	}
	for _, header := range []string{"Impersonate-User", "Authorization", "X-Remote-User"} {
		if code, text, err := g.ask(anna, "/api", header); code != http.StatusForbidden || !strings.Contains(text, "leave --as") {
			t.Errorf("with %s: %d %q %v", header, code, text, err)
		}
	}
	if _, text, err := g.ask(g.client(pair(t, "anna")), "/api"); err == nil {
		t.Errorf("a stranger's certificate in the name of a user reads %q", text)
	}
	if _, text, err := g.ask(g.client(), "/api"); err == nil {
		t.Errorf("without a certificate: %q", text)
	}
	begun, _ := g.clock.Plausible()
	g.clock.set(begun, true)
	if code, text, _ := g.ask(anna, "/api"); code != http.StatusServiceUnavailable || !strings.Contains(text, "doctor") {
		t.Errorf("with a clock that cannot be right: %d %q", code, text)
	}
	for _, at := range []time.Duration{time.Hour, -2 * time.Minute} {
		g.clock.set(begun.Add(at), false)
		if code, text, _ := g.ask(anna, "/api"); code != http.StatusUnauthorized || !strings.Contains(text, "expired") {
			t.Errorf("after %s: %d %q", at, code, text)
		}
	}
	g.clock.set(begun, false)
	check(t, g.list.revoke("anna", "", begun))
	if code, text, _ := g.ask(g.client(anna.Transport.(*http.Transport).TLSClientConfig.Certificates[0]), "/api"); code != http.StatusUnauthorized || !strings.Contains(text, "revoked") {
		t.Errorf("revoked: %d %q", code, text)
	}
	if again := load(g.store); len(again.active(begun)) != 0 || len(again.all) != 1 {
		t.Errorf("after a restart: %+v", again.all)
	}
}

// A watch ends with the access it was opened by, whatever ends that, and other users keep theirs.
func TestOpenConnectionsEnd(t *testing.T) {
	g := newGate(t)
	begun, _ := g.clock.Plausible()
	watch := func(c *http.Client) io.ReadCloser {
		t.Helper()
		resp, err := c.Get("https://" + g.addr + "/api/v1/pods?watch=true")
		check(t, err)
		if _, err := io.ReadFull(resp.Body, make([]byte, 10)); err != nil {
			t.Fatal(err)
		}
		return resp.Body
	}
	ben := watch(g.client(g.give(t, "ben", 100*time.Hour)))
	for i, end := range []func(user string){
		func(user string) { check(t, g.list.revoke(user, "", begun)); g.list.sweep(begun, true) },
		func(string) { g.list.sweep(begun.Add(2*time.Hour), true) },
	} {
		user := fmt.Sprint("anna", i)
		body := watch(g.client(g.give(t, user, time.Hour)))
		end(user)
		if _, err := io.Copy(io.Discard, body); err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s's watch ended with %v", user, err)
		}
	}
	open := map[string]int{}
	for _, k := range g.list.views(begun) {
		open[k.User] = k.Connections
	}
	if open["ben"] != 1 || open["anna0"]+open["anna1"] != 0 {
		t.Errorf("connections: %v", open)
	}
	g.list.sweep(begun, false) // a clock that cannot be right ends all
	if _, err := io.Copy(io.Discard, ben); err == nil {
		t.Error("ben's watch goes on")
	}
}

func TestRequestsAreChecked(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	good := func() api.KubeconfigRequest {
		return api.KubeconfigRequest{User: "anna", Certificate: pair(t, "anna").Certificate[0], For: time.Hour, Role: "view"}
	}
	for what, spoil := range map[string]func(*api.KubeconfigRequest){
		"--user":     func(q *api.KubeconfigRequest) { q.User = "system:masters" },
		"--role":     func(q *api.KubeconfigRequest) { q.Role = "cluster-admin" },
		"--for":      func(q *api.KubeconfigRequest) { q.For = MaxLife + 1 },
		"namespaces": func(q *api.KubeconfigRequest) { q.Namespace = "../x" },
		"unreadable": func(q *api.KubeconfigRequest) { q.Certificate = []byte("no") },
		"too long":   func(q *api.KubeconfigRequest) { q.Certificate = bytes.Repeat([]byte{1}, maxCertificate+1) },
	} {
		q := good()
		spoil(&q)
		_, err := accept(q, now)
		refused(t, err, what)
	}
	s := &notes{}
	l := load(s)
	add := func(user string, now time.Time, replace bool) error {
		q := good()
		q.User = user
		r, err := accept(q, now)
		check(t, err)
		return l.add(r, replace)
	}
	check(t, add("anna", now, false))
	refused(t, add("anna", now, false), "--replace")
	check(t, add("anna", now, true))
	if a := l.active(now); len(a) != 1 {
		t.Errorf("%d have access after a replacement", len(a))
	}
	refused(t, l.revoke("nobody", "", now), "list")
	s.copy = errors.New("the disk is full")
	refused(t, l.revoke("anna", "", now), "full")
	s.copy = nil
	for i := range MaxUsers {
		check(t, add(fmt.Sprint("u", i), now, false))
	}
	refused(t, add("one-more", now, false), "revoke")
	for i := range 2 * maxEnded {
		check(t, add("u0", now.Add(time.Duration(i)*time.Second), true))
	}
	if n := len(s.had(t)); n > MaxUsers+maxEnded+2 {
		t.Errorf("%d records are kept", n)
	}
	check(t, add("late", now.Add(2*memory), false))
	if n := len(s.had(t)); n != 1 {
		t.Errorf("%d records are kept after a long time", n)
	}
	l = load(&notes{blob: []byte(`[{"user":"x","key":"AA=="}]`)})
	if refused(t, add("anna", now, false), "nobody"); len(l.all) != 0 {
		t.Error("a note that cannot be read lets somebody in")
	}
}

// Bindings are those of who has access, and of nobody else.
func TestRights(t *testing.T) {
	foreign := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "x"}}
	old := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "rivulet:user:gone", Labels: map[string]string{Label: "gone"}}}
	client := fake.NewClientset(foreign, old)
	have := func() (out []string) {
		t.Helper()
		wide, err := client.RbacV1().ClusterRoleBindings().List(t.Context(), metav1.ListOptions{})
		check(t, err)
		narrow, err := client.RbacV1().RoleBindings("").List(t.Context(), metav1.ListOptions{})
		check(t, err)
		for _, b := range wide.Items {
			out = append(out, b.Name+"="+b.RoleRef.Name)
		}
		for _, b := range narrow.Items {
			out = append(out, b.Namespace+"/"+b.Name+"="+b.RoleRef.Name)
		}
		return out
	}
	for _, x := range []struct {
		active []record
		want   string
	}{
		{[]record{{User: "anna", Role: "admin"}, {User: "ben", Role: "edit", Namespace: "lab"}},
			"rivulet:user:anna=cluster-admin rivulet:user:anna:extra=rivulet:user x= lab/rivulet:user:ben=edit"},
		{[]record{{User: "anna", Role: "view"}, {User: "ben", Role: "admin", Namespace: "lab"}},
			"rivulet:user:anna=view rivulet:user:anna:extra=rivulet:user x= lab/rivulet:user:ben=admin"},
		{nil, "x="},
	} {
		check(t, settle(t.Context(), client, x.active))
		if got := strings.Join(have(), " "); got != x.want {
			t.Errorf("%+v: %s, want %s", x.active, got, x.want)
		}
	}
}

// What one change has made the next one takes back, whoever made it: access that is given
// and revoked between two looks leaves no binding, and nothing is asked where nothing changes.
func TestRightsFollowEveryChange(t *testing.T) {
	client, now := fake.NewClientset(), time.Now()
	a := New(Config{Store: &notes{}, VClusters: &class{}, Clock: &clock{now: now}, Log: slog.New(slog.DiscardHandler)})
	bindings := func() int {
		t.Helper()
		check(t, a.settleBy(t.Context(), client))
		wide, err := client.RbacV1().ClusterRoleBindings().List(t.Context(), metav1.ListOptions{})
		check(t, err)
		return len(wide.Items)
	}
	if n := bindings(); n != 0 {
		t.Fatalf("%d before anybody was let in", n)
	}
	for i := range 2 {
		check(t, a.list.add(record{User: "anna", Key: bytes.Repeat([]byte{byte(i + 1)}, 32), Role: "admin", Made: now, Expires: now.Add(time.Hour)}, true))
		if n := bindings(); n != 2 {
			t.Errorf("%d bindings of one user, want 2", n)
		}
		check(t, a.list.revoke("anna", "", now))
		if n := bindings(); n != 0 {
			t.Errorf("%d bindings are left of one who was revoked", n)
		}
	}
	asked := len(client.Actions())
	check(t, a.settleBy(t.Context(), client))
	if n := len(client.Actions()) - asked; n != 0 {
		t.Errorf("%d requests though nothing has changed", n)
	}
}

// A user whose requests do not reach the API server gets an answer for each, and a bounded number of lines in the owner's
// log.
func TestRefusedRequestsDoNotFillTheLog(t *testing.T) {
	var log bytes.Buffer
	a := New(Config{Store: &notes{}, Log: slog.New(slog.NewTextHandler(&log, nil))})
	p, err := apiproxy.New(&rest.Config{Host: "http://127.0.0.1:1"}, a.cfg.Log)
	check(t, err)
	for range 10 * logbound.PerMinute {
		w := httptest.NewRecorder()
		p.Serve(w, httptest.NewRequest(http.MethodGet, "/api", nil), apiproxy.As{User: "anna"}, "/api", "")
		if w.Code != http.StatusServiceUnavailable {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
	}
	if n := strings.Count(log.String(), "\n"); n > 2*logbound.PerMinute { // a minute may end meanwhile
		t.Errorf("%d lines of %d requests", n, 10*logbound.PerMinute)
	}
}

// A user who opens watches without number has some of them, and the others are refused; that costs a few megabytes, and
// another user does not notice.
func TestWatchesWithoutNumber(t *testing.T) {
	g := newGate(t)
	ann, ben := g.give(t, "ann", time.Hour), g.give(t, "ben", time.Hour)
	before := inUse()
	var open, refused atomic.Int32
	var wg sync.WaitGroup
	ctx, end := context.WithCancel(t.Context())
	defer wg.Wait()
	defer end()
	// Connections of less than their streams each, so that no request needs another one: a request that is refused is
	// asked again on its own.
	const conns, each, tries = 24, 20, 8
	ask := func(c *http.Client) (again bool) {
		q, _ := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+g.addr+"/api/v1/pods?watch", nil)
		resp, err := c.Do(q)
		if err != nil {
			if ctx.Err() == nil {
				t.Error(err)
			}
			return false
		}
		defer resp.Body.Close()
		refuses := resp.StatusCode == http.StatusTooManyRequests && resp.Header.Get("Retry-After") != ""
		if refuses {
			refused.Add(1)
		} else {
			open.Add(1)
		}
		io.Copy(io.Discard, resp.Body)
		return refuses
	}
	clients := make([]*http.Client, conns)
	for i := range clients {
		c := g.client(ann)
		clients[i] = c
		if code, out, err := g.ask(c, "/api"); code != 200 || err != nil { // the connection is there
			t.Fatalf("%d %s %v", code, out, err)
		}
		c.Timeout = 0
	}
	for _, c := range clients {
		for range each {
			wg.Go(func() {
				for range tries {
					if !ask(c) {
						return
					}
				}
			})
		}
	}
	want := int32(conns*each - maxRequests)
	await.True(t, time.Minute, "all requests to be answered", func() bool { return t.Failed() || open.Load() >= maxRequests && refused.Load() >= want*tries })
	if n := open.Load(); n != maxRequests {
		t.Errorf("%d watches of one user are open, %d may be", n, maxRequests)
	}
	grown := int64(inUse()) - int64(before) // of the clients and the API server, too
	t.Logf("%d MiB more are in use", grown>>20)
	if grown > 96<<20 {
		t.Error("that is too much")
	}
	if code, out, err := g.ask(g.client(ben), "/api"); code != 200 || err != nil {
		t.Errorf("another user: %d %s %v", code, out, err)
	}
	end()
	wg.Wait()
	await.True(t, 10*time.Second, "the user to be let in again", func() bool {
		code, _, err := g.ask(g.client(ann), "/api")
		return code == 200 && err == nil
	})
}

// Whoever has a kubeconfig that was replaced, and takes no answer, has no place of the user's who has the new one.
func TestAReplacedKubeconfigTakesNoPlace(t *testing.T) {
	g := newGate(t)
	old, fresh := g.give(t, "ann", time.Hour), pair(t, "ann")
	now, _ := g.clock.Plausible()
	r, err := accept(api.KubeconfigRequest{User: "ann", Certificate: fresh.Certificate[0], For: time.Hour, Role: "view"}, now)
	check(t, err)
	check(t, g.list.add(r, true))
	await.True(t, time.Minute, "all places of who has the old one to be taken", func() bool {
		g.hold(t, old, httpserver.Users.Streams)
		code, _, err := g.ask(g.client(old), "/api")
		return code == http.StatusTooManyRequests && err == nil
	})
	if code, out, err := g.ask(g.client(fresh), "/api"); code != 200 || err != nil {
		t.Errorf("who has the new one: %d %s %v", code, out, err)
	}
}

// hold sends n requests in one connection, and takes no byte of the answers' bodies.
func (g *gate) hold(t *testing.T, p tls.Certificate, n int) {
	t.Helper()
	c, err := tls.Dial("tcp", g.addr, &tls.Config{Certificates: []tls.Certificate{p}, RootCAs: g.roots, ServerName: ServerName, NextProtos: []string{"h2"}})
	check(t, err)
	t.Cleanup(func() { c.Close() })
	var all bytes.Buffer // at once: after its first answer the server takes no more
	all.WriteString(http2.ClientPreface)
	f := http2.NewFramer(&all, nil)
	check(t, f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}))
	var head bytes.Buffer
	e := hpack.NewEncoder(&head)
	for _, h := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":authority", "x"}, {":path", "/api"}} {
		check(t, e.WriteField(hpack.HeaderField{Name: h[0], Value: h[1], Sensitive: true})) // the same in each request
	}
	for i := range n {
		check(t, f.WriteHeaders(http2.HeadersFrameParam{StreamID: uint32(2*i + 1), BlockFragment: head.Bytes(), EndStream: true, EndHeaders: true}))
	}
	_, err = c.Write(all.Bytes())
	check(t, err)
	go io.Copy(io.Discard, c) // so that the server can write all that it may
}

// inUse is what the process has of memory for what it does.
func inUse() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}
