package endpoint

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"rivulet/appliance/api"
	"rivulet/appliance/config"
	"rivulet/test/harness/await"
	"rivulet/test/harness/locks"
)

// notes is a store in memory.
type notes struct {
	mu   sync.Mutex
	all  map[string][]byte
	fail error
	copy error
}

func (n *notes) Note(name string) ([]byte, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.all[name], n.fail
}

func (n *notes) PutNote(name string, blob []byte) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.fail != nil {
		return n.fail
	}
	if n.all == nil {
		n.all = map[string][]byte{}
	}
	n.all[name] = blob
	return nil
}

func (n *notes) CopyError() error { return n.copy }

// pi is a device with these hosts and pods.
type pi struct{ lan, pods netip.Prefix }

func (pi) Name() string              { return "pi" }
func (pi) Addresses() []netip.Addr   { return []netip.Addr{netip.MustParseAddr("127.0.0.1")} }
func (p pi) Admit(a netip.Addr) bool { return p.lan.Contains(a) }
func (p pi) Own(a netip.Addr) bool   { return p.pods.Contains(a) }

// served is an endpoint on loopback.
type served struct {
	*Endpoint
	store *notes
	at    string
}

func serve(t *testing.T, metrics http.Handler) *served {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	port := uint16(locks.Ports(t, 1))
	s := &served{store: &notes{}, at: fmt.Sprintf("127.0.0.1:%d", port)}
	loopback := netip.MustParseAddr("127.0.0.1")
	s.Endpoint = New(Config{Store: s.store, Key: key, Name: pi{}, Metrics: metrics, Node: loopback, Port: port, LAN: pi{lan: netip.MustParsePrefix("127.0.0.0/8")}, Pods: pi{}})
	s.Configure(config.MetricsLAN)
	s.run(t)
	return s
}

// run serves until the test ends.
func (s *served) run(t *testing.T) {
	done := make(chan error, 1)
	ready := make(chan struct{})
	var once sync.Once
	ctx := t.Context()
	go func() {
		for ctx.Err() == nil {
			if err := s.serve(ctx, func() { once.Do(func() { close(ready) }) }, slog.New(slog.DiscardHandler)); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	t.Cleanup(func() {
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	<-ready
}

func (s *served) give(t *testing.T, name string, cert []byte) api.NewMetricsAccess {
	t.Helper()
	made, err := s.grant(api.MetricsRequest{Name: name, Certificate: cert})
	if err != nil {
		t.Fatal(err)
	}
	return made.(api.NewMetricsAccess)
}

// client pins the certificate, and has one of its own if there is a pair.
func (s *served) client(t *testing.T, pair ...tls.Certificate) *http.Client {
	t.Helper()
	cert, err := serving(s.cfg.Key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(cert.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(leaf)
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: ServerName, Certificates: pair}}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 10 * time.Second}
}

func (s *served) ask(c *http.Client, method, path, authorization string) (int, string, error) {
	r, err := http.NewRequest(method, "https://"+s.at+path, nil)
	if err != nil {
		return 0, "", err
	}
	if authorization != "" {
		r.Header.Set("Authorization", authorization)
	}
	resp, err := c.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), err
}

func newPair(t *testing.T) (tls.Certificate, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "prometheus"}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, der
}

func page(text string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, text) })
}

// A token or a certificate lets in until it is revoked, on the same connection as well; nothing else does.
func TestWhoIsLetIn(t *testing.T) {
	s := serve(t, page("rivulet_ready 1\n"))
	pair, der := newPair(t)
	token := s.give(t, "prometheus", nil).Token
	s.give(t, "by-key", der)
	want := func(c *http.Client, authorization string, code int) {
		t.Helper()
		got, body, err := s.ask(c, http.MethodGet, "/metrics", authorization)
		if err != nil || got != code || (code == 200) != (body == "rivulet_ready 1\n") {
			t.Errorf("%d %q %v, want %d", got, body, err, code)
		}
	}
	plain, byKey := s.client(t), s.client(t, pair)
	want(plain, "Bearer "+token, 200)
	want(plain, "bearer "+token, 200)
	want(byKey, "", 200)
	want(byKey, "Bearer wrong", 200) // the certificate stands for itself
	other, _ := newPair(t)
	stranger := s.client(t, other)
	for _, a := range []string{"", "Bearer ", "Bearer " + token + "x", "Bearer " + token[1:], "Bearer " + strings.ToLower(token), "Basic " + token, token} {
		want(s.client(t), a, 401)
		want(stranger, a, 401)
		stranger.CloseIdleConnections()
	}
	for _, r := range []struct {
		method, path string
		code         int
	}{{"POST", "/metrics", 405}, {"GET", "/v1/status", 404}, {"GET", "/", 404}, {"GET", "/metrics/../v1/store", 404}} {
		if got, _, err := s.ask(plain, r.method, r.path, "Bearer "+token); got != r.code || err != nil {
			t.Errorf("%s %s: %d %v, want %d", r.method, r.path, got, err, r.code)
		}
	}
	if all, err := s.list.views(); err != nil || len(all) != 2 || all[0].Used.IsZero() || all[0].From != "127.0.0.1" {
		t.Errorf("%+v %v", all, err)
	}
	for _, name := range []string{"prometheus", "by-key"} {
		if err := s.list.revoke(name); err != nil {
			t.Fatal(err)
		}
	}
	want(plain, "Bearer "+token, 401)
	want(byKey, "", 401)
	if again := load(s.store); len(again.all) != 0 {
		t.Error("an access is there again after a restart")
	}
}

// The store has no token, and a restart changes nothing.
func TestAccessIsStoredAsAHash(t *testing.T) {
	store := &notes{}
	a := load(store)
	_, token, err := a.add(api.MetricsRequest{Name: "prometheus"}, time.Now())
	if err != nil || len(token) < 26 {
		t.Fatalf("%q %v", token, err)
	}
	if strings.Contains(string(store.all[note]), token) {
		t.Errorf("the store has the token: %s", store.all[note])
	}
	if r, ok := load(store).find(byToken, []byte(token)); !ok || r.Name != "prometheus" {
		t.Errorf("after a restart: %+v %v", r, ok)
	}
	if _, ok := a.find(byCertificate, []byte(token)); ok {
		t.Error("a token counts as a key")
	}
	for _, blob := range []string{"{", `[{"name":"x","by":"token","hash":"AA=="}]`, `[{"name":"x","by":"anything","hash":"` + strings.Repeat("A", 43) + `="}]`} {
		store.all[note] = []byte(blob)
		bad := load(store)
		if _, ok := bad.find(byToken, []byte(token)); ok || bad.bad == nil || !strings.Contains(bad.bad.Error(), "; ") {
			t.Errorf("%s: %v", blob, bad.bad)
		}
		if _, _, err := bad.add(api.MetricsRequest{Name: "x"}, time.Now()); err == nil {
			t.Error("what cannot be read is replaced")
		}
	}
}

// Requests that cannot be met have a cure, and change nothing.
func TestRefusals(t *testing.T) {
	store := &notes{}
	a := load(store)
	now := time.Now()
	_, der := newPair(t)
	if _, _, err := a.add(api.MetricsRequest{Name: "a", Certificate: der}, now); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		q    api.MetricsRequest
		want string
	}{
		{api.MetricsRequest{}, "lower-case letters"}, {api.MetricsRequest{Name: "A b"}, "lower-case letters"}, {api.MetricsRequest{Name: strings.Repeat("x", 64)}, "lower-case letters"},
		{api.MetricsRequest{Name: "a"}, "rivulet metrics revoke a"}, {api.MetricsRequest{Name: "b", Certificate: der}, "run the command again"},
		{api.MetricsRequest{Name: "b", Certificate: []byte("x")}, "same version"}, {api.MetricsRequest{Name: "b", Certificate: make([]byte, maxCertificate+1)}, "too long"},
	} {
		if _, _, err := a.add(c.q, now); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.20s: %v, want %s", c.q.Name, err, c.want)
		}
	}
	for i := len(a.all); i < MaxAccesses; i++ {
		if _, _, err := a.add(api.MetricsRequest{Name: fmt.Sprint("n", i)}, now); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := a.add(api.MetricsRequest{Name: "more"}, now); err == nil || !strings.Contains(err.Error(), "rivulet metrics revoke") {
		t.Errorf("more than the bound: %v", err)
	}
	if err := a.revoke("nobody"); err == nil || !strings.Contains(err.Error(), "rivulet metrics list") {
		t.Error(err)
	}
	store.copy = errors.New("the copy is behind")
	if err := a.revoke("a"); !errors.Is(err, store.copy) {
		t.Errorf("the copy may bring it back: %v", err)
	}
	store.fail = errors.New("the disk is full")
	if err := a.revoke("n1"); !errors.Is(err, store.fail) || len(a.all) != MaxAccesses-1 {
		t.Errorf("%v, %d", err, len(a.all))
	}
}

// Each setting admits its own hosts, before TLS; a change closes the port, or opens it to others, at once.
func TestAdmittedByAddress(t *testing.T) {
	_, key, _ := ed25519.GenerateKey(rand.Reader)
	port := uint16(locks.Ports(t, 1))
	lan, pod := netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr("127.0.0.3")
	e := New(Config{Store: &notes{}, Key: key, Name: pi{}, Metrics: page("x"), Node: netip.MustParseAddr("127.0.0.1"), Port: port, LAN: pi{lan: netip.PrefixFrom(lan, 32)}, Pods: pi{pods: netip.PrefixFrom(pod, 32)}})
	reaches := func(from netip.Addr) bool {
		d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0)), Timeout: time.Second}
		c, err := d.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			return false
		}
		defer c.Close()
		t := tls.Client(c, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // the test is of the address
		return t.Handshake() == nil
	}
	s := &served{Endpoint: e}
	s.run(t)
	for _, c := range []struct {
		setting  string
		lan, pod bool
	}{{config.MetricsLAN, true, false}, {config.MetricsPods, false, true}, {"", false, false}, {config.MetricsPods, false, true}, {config.MetricsLAN, true, false}, {config.MetricsOff, false, false}} {
		e.Configure(c.setting)
		await.True(t, 10*time.Second, "metrics: "+c.setting, func() bool { return reaches(lan) == c.lan && reaches(pod) == c.pod })
	}
}

// Clients without access keep no scraper out, however many connections they hold.
func TestStrangersKeepNobodyOut(t *testing.T) {
	s := serve(t, page("x"))
	token := s.give(t, "prometheus", nil).Token
	var held []net.Conn
	for range 200 {
		c, err := net.Dial("tcp", s.at)
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, c)
	}
	defer func() {
		for _, c := range held {
			c.Close()
		}
	}()
	c := s.client(t)
	for range 3 {
		if code, _, err := s.ask(c, http.MethodGet, "/metrics", "Bearer "+token); code != 200 || err != nil {
			t.Fatalf("%d %v", code, err)
		}
		c.CloseIdleConnections()
	}
}

// The certificate is the same after a restart, and carries the name by which scrapers verify it.
func TestTheCertificateStays(t *testing.T) {
	_, key, _ := ed25519.GenerateKey(rand.Reader)
	a, err := serving(key)
	b, err2 := serving(key)
	if err != nil || err2 != nil || string(a.Certificate[0]) != string(b.Certificate[0]) {
		t.Errorf("%v %v", err, err2)
	}
	s := serve(t, page("x"))
	made := s.give(t, "prometheus", nil)
	block, _ := pem.Decode(made.Authority)
	if leaf, err := x509.ParseCertificate(block.Bytes); err != nil || leaf.VerifyHostname(made.ServerName) != nil || made.Targets[0] != s.at {
		t.Errorf("%v %+v", err, made)
	}
}
