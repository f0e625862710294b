package users

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"rivulet/appliance/api"
	"rivulet/appliance/engine/controlplane"
	"rivulet/fabric/peer"
)

// class are virtual clusters: the identity of each is its name and how often it was made.
type class struct {
	mu     sync.Mutex
	have   map[string]peer.ID
	paused bool
	asleep bool
	unsure bool
	server *httptest.Server
}

func newClass(t *testing.T, names ...string) *class {
	c := &class{have: map[string]peer.ID{}}
	for _, n := range names {
		c.have[n] = peer.ID(n + "-1")
	}
	c.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who := r.TLS.PeerCertificates[0].Subject
		fmt.Fprintf(w, "%s %s as %q %s", who.CommonName, strings.Join(who.Organization, ","), r.Header.Get("Impersonate-User"), r.URL.Path)
	}))
	c.server.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	c.server.StartTLS()
	t.Cleanup(c.server.Close)
	return c
}

func (c *class) set(name string, id peer.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if delete(c.have, name); id != "" {
		c.have[name] = id
	}
}

func (c *class) Identity(name string) (peer.ID, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.have[name] == "" {
		return "", errors.New("there is none")
	}
	return c.have[name], nil
}

func (c *class) Identities() (map[peer.ID]bool, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[peer.ID]bool{}
	for _, id := range c.have {
		out[id] = true
	}
	return out, !c.unsure
}

func (c *class) Changed() (<-chan struct{}, func()) { return nil, func() {} }

func (c *class) Ready(_ context.Context, id peer.ID, _ string, watches bool) error {
	have, _ := c.Identities()
	switch {
	case c.asleep && watches:
		return controlplane.ErrAsleep
	case !have[id]:
		return errors.New("it is not there any more")
	case c.paused:
		return errors.New("it is paused; resume it")
	}
	return nil
}

func (c *class) REST(_ peer.ID, user, group string, until time.Time) (*rest.Config, error) {
	key, err := NewKey()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{SerialNumber: bigOne, NotAfter: until, Subject: pkix.Name{CommonName: user, Organization: []string{group}}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	return &rest.Config{Host: c.server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true,
		CertData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), KeyData: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})}}, err
}

// A user of a virtual cluster reaches that one and no other, with the group of the role; whom the user
// impersonates is for that one to judge. Paused it is said; deleted, or made again, nobody is let in.
func TestAVirtualClustersUser(t *testing.T) {
	g := newGate(t)
	ann := newClass(t, "ann", "ben")
	g.virtual = ann
	now, _ := g.clock.Plausible()
	give := func(user, vcluster string) *http.Client {
		t.Helper()
		p := pair(t, user)
		r, err := accept(api.KubeconfigRequest{User: user, Certificate: p.Certificate[0], For: time.Hour, Role: "edit", VCluster: vcluster}, now)
		check(t, err)
		if vcluster != "" {
			r.ID, err = ann.Identity(vcluster)
			check(t, err)
		}
		check(t, g.list.add(r, false))
		return g.client(p)
	}
	anna, home := give("anna", "ann"), give("anna", "")
	want := func(c *http.Client, code int, text string, header ...string) {
		t.Helper()
		if got, out, err := g.ask(c, "/api/v1/pods", header...); got != code || !strings.Contains(out, text) || err != nil {
			t.Errorf("%d %q %v, want %d with %q", got, out, err, code, text)
		}
	}
	want(anna, 200, `rivulet:user:anna rivulet:edit as "" /api/v1/pods`)
	want(anna, 200, `rivulet:user:anna rivulet:edit as "system:admin"`, "Impersonate-User")
	want(anna, 403, "--token", "Authorization")
	want(home, 200, "rivulet:user:anna rivulet:users,system:authenticated")
	want(home, 403, "--as", "Impersonate-User")
	ann.paused = true
	want(anna, 503, "it is paused; resume it")
	ann.paused, ann.asleep = false, true
	want(anna, 200, "rivulet:user:anna")
	for _, path := range []string{"/api/v1/pods?watch=true", "/api/v1/watch/namespaces/lab/pods", "/api/v1/namespaces/lab/pods/web/log?follow=true"} {
		if got, out, err := g.ask(anna, path); got != 429 || !strings.Contains(out, "a watch does not wake it") || err != nil {
			t.Errorf("%s of a virtual cluster that sleeps: %d %q %v", path, got, out, err)
		}
	}
	for _, path := range []string{"/api/v1/namespaces/watch/pods?watch=0", "/api/v1/namespaces/lab/pods/watch/log?follow=false"} {
		if got, out, err := g.ask(anna, path); got != 200 || err != nil {
			t.Errorf("%s: %d %q %v", path, got, out, err)
		}
	}
	ann.asleep = false
	check(t, g.list.revoke("anna", "ann", now))
	g.closeWays(now)
	if len(g.ways) != 0 {
		t.Error("the way of a revoked user is kept")
	}
	want(anna, 401, "revoked")
	want(home, 200, "rivulet:users")

	carl := give("carl", "ben")
	want(carl, 200, "rivulet:user:carl")
	a := &Access{cfg: Config{VClusters: ann}, list: g.list}
	ann.set("ben", "ben-2")
	want(carl, 503, "not there any more")
	ann.unsure = true
	check(t, a.endGone(now))
	if r, _ := g.list.find(keyOfClient(t, carl)); !r.active(now) {
		t.Error("access has ended though it is not known which virtual clusters there are")
	}
	ann.unsure = false
	check(t, a.endGone(now))
	want(carl, 401, "revoked")
	want(home, 200, "rivulet:users")
}

func keyOfClient(t *testing.T, c *http.Client) [32]byte {
	t.Helper()
	cert, err := x509.ParseCertificate(c.Transport.(*http.Transport).TLSClientConfig.Certificates[0].Certificate[0])
	check(t, err)
	return keyOf(cert)
}

// One virtual cluster's users have so many and no more, of names, connections and all together.
func TestBoundsOfVirtualClusters(t *testing.T) {
	l, now := load(&notes{}), time.Now()
	add := func(user string, id peer.ID, key int) error {
		return l.add(record{User: user, ID: id, VCluster: string(id), Key: fmt.Appendf(nil, "%032d", key), Made: now, Expires: now.Add(time.Hour)}, false)
	}
	n := 0
	for c := range MaxVirtual / maxOfOne {
		for i := range maxOfOne {
			n++
			check(t, add(fmt.Sprint("u", i), peer.ID(fmt.Sprint("c", c)), n))
		}
		if c == 0 {
			refused(t, add("more", "c0", 9000), "revoke")
		}
	}
	refused(t, add("more", "another", 9001), "revoke")
	check(t, add("home", "", 9002))
	r := l.all[0]
	for range maxConns {
		if !l.opens(&conn{list: l}, r, now) {
			t.Fatal("refused within the bound")
		}
	}
	if l.opens(&conn{list: l}, r, now) {
		t.Error("more connections than one virtual cluster may have")
	}
	if !l.opens(&conn{list: l}, l.all[maxOfOne], now) {
		t.Error("another virtual cluster's user is refused")
	}
}

// A link gives the file to one who asks by POST, once, within its time and that of the access. The token is no key: until
// then the record admits nobody, and whoever has the token of a used link has nothing.
func TestALinkWorksOnce(t *testing.T) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	check(t, err)
	c := &clock{now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	a := New(Config{Store: &notes{}, Key: key, VClusters: newClass(t, "ann"), Clock: c, Name: here{}, Log: slog.New(slog.DiscardHandler),
		LAN: here{}, Port: 7442})
	s, err := newLinks(t.Context(), a)
	check(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	defer l.Close()
	go s.serve()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go s.give(c)
		}
	}()
	roots := x509.NewCertPool()
	leaf, err := x509.ParseCertificate(s.cert.Certificate[0])
	check(t, err)
	roots.AddCert(leaf)
	ask := func(method, path string) (int, string) {
		t.Helper()
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: ServerName}}}
		q, err := http.NewRequest(method, "https://"+l.Addr().String()+path, nil)
		check(t, err)
		resp, err := client.Do(q)
		check(t, err)
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		check(t, err)
		return resp.StatusCode, string(body)
	}
	link := func(user string, life time.Duration) (string, api.NewKubeconfig) {
		t.Helper()
		token, hash := NewToken()
		made, err := a.give(t.Context(), api.KubeconfigRequest{User: user, Token: hash, For: life, Role: "view", VCluster: "ann", Link: true})
		check(t, err)
		return LinkPath + token, made.(api.NewKubeconfig)
	}
	anna, made := link("anna", 30*24*time.Hour)
	before := a.list.all[0]
	if made.State != unused || len(a.list.active(c.now)) != 0 || before.Key != nil {
		t.Errorf("nobody has used the link, and the record is %+v", before)
	}
	if sum, err := pin(s.cert); err != nil || made.Pin != sum || made.Link != c.now.Add(linkLife) {
		t.Errorf("%+v %v, want the pin %s", made, err, sum)
	}
	for range 2 { // to look at it uses nothing up; a QR code has capitals
		if code, body := ask("GET", strings.ToUpper(anna)); code != 200 || !strings.Contains(body, "<button>") {
			t.Errorf("GET: %d %s", code, body)
		}
	}
	if code, _ := ask("PUT", anna); code != 405 {
		t.Errorf("PUT: %d", code)
	}
	var wg sync.WaitGroup
	files := make(chan string, 8)
	for range cap(files) {
		wg.Go(func() {
			if code, body := ask("POST", anna); code == 200 {
				files <- body
			} else if code != http.StatusGone && code != http.StatusServiceUnavailable {
				t.Errorf("POST: %d", code)
			}
		})
	}
	wg.Wait()
	if len(files) != 1 {
		t.Fatalf("%d have the file, want one", len(files))
	}
	cfg, err := clientcmd.RESTConfigFromKubeConfig([]byte(<-files))
	check(t, err)
	block, _ := pem.Decode(cfg.CertData)
	cert, err := x509.ParseCertificate(block.Bytes)
	check(t, err)
	if r, ok := a.list.find(keyOf(cert)); !ok || r.User != "anna" || cfg.Host != "https://"+l.Addr().String() || cfg.ServerName != ServerName || !bytes.Equal(cfg.CAData, made.Authority) {
		t.Errorf("the file is %v at %s", r, cfg.Host)
	}
	if again := load(a.cfg.Store); again.bad != nil || !again.all[0].Link.IsZero() {
		t.Errorf("the link works again after a restart: %v", again.bad)
	}
	if raw, err := tokens.DecodeString(strings.ToUpper(anna[len(LinkPath):])); err != nil || len(a.list.active(c.now)) != 1 {
		t.Error(err)
	} else if k, err := derived(raw, "rivulet link"); err != nil || a.list.knows(t, k) {
		t.Errorf("who has the token has the key: %v", err)
	}
	if code, body := ask("GET", anna); code != http.StatusGone || strings.Contains(body, "<button>") {
		t.Errorf("used: %d %s", code, body)
	}

	ben, _ := link("ben", 30*24*time.Hour)
	carl, _ := link("carl", time.Hour)
	check(t, a.list.revoke("ben", "ann", c.now))
	if code, _ := ask("POST", ben); code != http.StatusGone {
		t.Errorf("revoked: %d", code)
	}
	c.set(c.now, true)
	if code, _ := ask("POST", carl); code != http.StatusServiceUnavailable {
		t.Errorf("with a clock that cannot be right: %d", code)
	}
	c.set(c.now.Add(2*time.Hour), false)
	if code, _ := ask("POST", carl); code != http.StatusGone {
		t.Errorf("expired: %d", code)
	}
	dora, _ := link("dora", 30*24*time.Hour)
	c.set(c.now.Add(linkLife), false)
	if code, _ := ask("POST", dora); code != http.StatusGone {
		t.Errorf("the link's time is over: %d", code)
	}
	stranger, _ := NewToken()
	for _, path := range []string{"/", "/k/", "/k/x", LinkPath + stranger, anna + "x", "/k/../" + anna} {
		if code, body := ask("POST", path); code != http.StatusNotFound {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
}

// knows reports whether the list has a key.
func (l *list) knows(t *testing.T, key *ecdsa.PrivateKey) bool {
	t.Helper()
	der, err := Certificate(key, "anna", time.Now().Add(time.Hour))
	check(t, err)
	cert, err := x509.ParseCertificate(der)
	check(t, err)
	_, ok := l.find(keyOf(cert))
	return ok
}

// A note in which a link of an earlier version is open admits nobody by the key that was derived from its token.
func TestAnOpenLinkAdmitsNobody(t *testing.T) {
	g := newGate(t)
	anna := g.give(t, "anna", time.Hour)
	now, _ := g.clock.Plausible()
	check(t, g.list.change(func(all []record) ([]record, error) {
		all[0].Link = now.Add(time.Minute)
		return all, nil
	}))
	if code, text, err := g.ask(g.client(anna), "/api"); code != http.StatusUnauthorized || err != nil {
		t.Errorf("%d %q %v", code, text, err)
	}
	if l := load(&notes{blob: []byte(`[{"user":"x","token":"AA=="}]`)}); l.bad == nil {
		t.Error("a record without a key and a link is taken")
	}
}

type here struct{}

func (here) Name() string            { return "lab-1" }
func (here) Addresses() []netip.Addr { return []netip.Addr{netip.MustParseAddr("192.0.2.7")} }
