package tenantimages

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
)

// relay starts one and returns how containerd asks it.
func relay(t *testing.T, cfg RelayConfig) func(method, path, user, password string) (int, http.Header, string) {
	t.Helper()
	cfg.Folder = t.TempDir()
	if cfg.Withheld == nil {
		cfg.Withheld = func() []string { return nil }
	}
	cfg.Networks = func() []netip.Prefix { return nil }
	ctx, stop := context.WithCancel(t.Context())
	ended, ready := make(chan error, 1), make(chan struct{})
	go func() { ended <- NewRelay(cfg).Serve(ctx, func() { close(ready) }) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	<-ready
	raw, err := os.ReadFile(filepath.Join(cfg.Folder, Registry, "hosts.toml"))
	if err != nil {
		t.Fatal(err)
	}
	server := regexp.MustCompile(`server = "([^"]+)"`).FindStringSubmatch(string(raw))[1]
	return func(method, path, user, password string) (int, http.Header, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(ctx, method, server+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if user != "" {
			req.SetBasicAuth(user, password)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, resp.Header, string(body)
	}
}

// registry wants a token for what is in it, which only the login gets, unless that is empty.
func registry(t *testing.T, login string) *httptest.Server {
	var s *httptest.Server
	s = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		switch {
		case r.URL.Path == "/token" && (login == "" || user+":"+password == login):
			json.NewEncoder(w).Encode(map[string]string{"token": "good"})
		case r.URL.Path == "/token":
			w.WriteHeader(http.StatusUnauthorized)
		case r.Header.Get("Authorization") != "Bearer good":
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+s.URL+`/token",service="r",scope="repository:a/b:pull"`)
			w.WriteHeader(http.StatusUnauthorized)
		case r.URL.Path == "/v2/a/b/manifests/1":
			w.Header().Set("Docker-Content-Digest", "sha256:x")
			fmt.Fprint(w, "the manifest")
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

const of = "/0123456789abcdef0123456789abcdef/registry.example.org"

// What the owner has set up for a registry is used for tenants, too: mirrors, logins that are shared.
func TestMirrorsOfTheOwner(t *testing.T) {
	mirror := registry(t, "owner:secret")
	host := strings.TrimPrefix(mirror.URL, "http://")
	text := fmt.Sprintf("mirrors: {registry.example.org: {endpoint: [%q], rewrite: {'^x/(.*)': 'a/$1'}}}\nconfigs: {%q: {auth: {username: owner, password: secret}}}\n", mirror.URL, host)
	withheld := []string{}
	ask := relay(t, RelayConfig{Registries: func() string { return text }, Withheld: func() []string { return withheld }})
	for _, method := range []string{"GET", "HEAD"} {
		code, header, body := ask(method, of+"/x/b/manifests/1", "", "")
		if code != 200 || header.Get("Docker-Content-Digest") != "sha256:x" || method == "GET" && body != "the manifest" {
			t.Errorf("%s: %d %v %s", method, code, header, body)
		}
	}
	withheld = []string{"registry.example.org"}
	if code, _, body := ask("GET", of+"/x/b/manifests/1", "", ""); code != http.StatusForbidden {
		t.Errorf("withheld: %d %s", code, body)
	}
}

// A pod's own login is asked for when the registry wants one, and given to it.
func TestLoginOfThePod(t *testing.T) {
	own := registry(t, "tenant:secret")
	host := strings.TrimPrefix(own.URL, "http://")
	var r registries
	e, err := r.endpoint(own.URL+"/v2", true, host)
	if err != nil {
		t.Fatal(err)
	}
	relay := NewRelay(RelayConfig{})
	in := httptest.NewRequest("GET", "/", nil)
	for _, c := range []struct {
		user, secret string
		want         int
	}{{"", "", 401}, {"tenant", "wrong", 0}, {"tenant", "secret", 200}, {"", "", 401}} {
		e.user, e.secret = c.user, c.secret
		resp, err := relay.fetch(in, e, "a/b", "manifests/1")
		if err != nil {
			if c.want == 200 {
				t.Error(err)
			}
			continue
		}
		if resp.StatusCode != c.want {
			t.Errorf("%s: %d, want %d", c.user, resp.StatusCode, c.want)
		}
		w := httptest.NewRecorder()
		send(w, resp, c.user == "")
		if challenge := w.Header().Get("WWW-Authenticate"); (challenge != "") != (c.want == 401 && c.user == "") {
			t.Errorf("%s: challenge %q", c.user, challenge)
		}
	}
}

// An address that is not public is not connected to, whichever way a registry leads there.
func TestPrivateAddressesAreNotDialled(t *testing.T) {
	var met atomic.Int32
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	inside := httptest.NewUnstartedServer(http.NotFoundHandler())
	inside.Listener.Close()
	inside.Listener = counted{l, &met}
	inside.Start()
	defer inside.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())

	ask := relay(t, RelayConfig{Registries: func() string { return "" }})
	for _, host := range []string{"127.0.0.1", "localhost", "127.1"} {
		if code, _, body := ask("GET", "/0123456789abcdef0123456789abcdef/"+host+"__"+port+"/a/b/manifests/1", "", ""); code < 400 {
			t.Errorf("%s: %d %s", host, code, body)
		}
	}
	// A redirect and a token's realm are followed with the same transport.
	r := NewRelay(RelayConfig{Networks: func() []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix("93.184.216.0/24")} }})
	for _, addr := range []string{"localhost:" + port, "127.0.0.1:" + port, "[::ffff:127.0.0.1]:" + port, "93.184.216.34:80"} {
		if c, err := r.public.DialContext(t.Context(), "tcp", addr); err == nil || !strings.Contains(err.Error(), "public addresses only") {
			t.Errorf("%s: %v, %v", addr, c, err)
		}
	}
	if n := met.Load(); n != 0 {
		t.Errorf("%d connections came in", n)
	}
	if resp, err := http.Get(inside.URL); err != nil || resp.Body.Close() != nil || met.Load() != 1 {
		t.Errorf("it counts nothing: %v", err)
	}
}

type counted struct {
	net.Listener
	n *atomic.Int32
}

func (c counted) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err == nil {
		c.n.Add(1)
	}
	return conn, err
}

func TestOnlyObjectsOfRegistries(t *testing.T) {
	ask := relay(t, RelayConfig{Registries: func() string { return "" }})
	for _, path := range []string{"/", "/v2/", of + "/a/b/tags/list", of + "/a/../b/manifests/1", "/x/registry.example.org/a/manifests/1", of + "/a/b/manifests/1/2"} {
		if code, _, _ := ask("GET", path, "", ""); code != http.StatusNotFound {
			t.Errorf("%s: %d", path, code)
		}
	}
	if code, _, _ := ask("POST", of+"/a/b/manifests/1", "", ""); code != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", code)
	}
}

func TestEndpoints(t *testing.T) {
	text := "mirrors: {docker.io: {endpoint: ['https://m.example/v2/hub', 'http://n.example:5000']}, '*': {endpoint: [all.example]}}\n" +
		"configs: {n.example:5000: {auth: {auth: dTpw}}, all.example: {tls: {insecure_skip_verify: true}}}\n"
	show := func(host string) (out []string) {
		got, err := endpoints(text, host)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range got {
			out = append(out, fmt.Sprint(e.base, " ", e.own, " ", e.user, " ", e.tls != nil))
		}
		return out
	}
	for host, want := range map[string]string{
		"docker.io":   "[https://m.example/v2/hub true  false http://n.example:5000/v2 true u false https://registry-1.docker.io/v2 false  false]",
		"quay.io:444": "[https://all.example/v2 true  true https://quay.io:444/v2 false  false]",
	} {
		if got := fmt.Sprint(show(host)); got != want {
			t.Errorf("%s:\n%s, want\n%s", host, got, want)
		}
	}
	if _, err := endpoints("mirrors: [", "docker.io"); err == nil {
		t.Error("settings that are not read give endpoints")
	}
}
