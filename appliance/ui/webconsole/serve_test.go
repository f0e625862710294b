package webconsole

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/html"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"rivulet/appliance/api"
	"rivulet/appliance/config"
	"rivulet/appliance/health"
	"rivulet/test/harness/locks"
)

// testPage is a status page of a device called pi.
type testPage struct{}

func (testPage) Admit(netip.Addr) bool { return true }
func (testPage) Called(host string) bool {
	host, _, _ = strings.Cut(host, ":")
	return host == "127.0.0.1" || host == "pi.local"
}
func (testPage) Host() string                    { return "127.0.0.1" }
func (testPage) OnByDefault() bool               { return false }
func (testPage) Configure(*bool, bool, []string) {}

// device is a console beside a supervisor whose answers are those of testdata, and which keeps what it is asked to do.
type testDevice struct {
	*Console
	base   string
	client *http.Client

	mu      sync.Mutex
	asked   []string // METHOD PATH BODY
	answers map[string]json.RawMessage
	fails   map[string]string        // METHOD PATH to the error
	held    map[string]chan struct{} // METHOD PATH to what its answer waits for
	rest    *rest.Config             // nil: the engine starts
}

func (d *testDevice) setREST(cfg *rest.Config) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.rest = cfg
}

func (d *testDevice) answer(to string, with json.RawMessage) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.answers[to] = with
}

// fail makes requests fail with an error; the empty one ends that.
func (d *testDevice) fail(to, with string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fails == nil {
		d.fails = map[string]string{}
	}
	d.fails[to] = with
}

// hold makes answers wait until a channel is closed.
func (d *testDevice) hold(to string, until chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.held = map[string]chan struct{}{to: until}
}

// kubernetes is a client of it.
func (d *testDevice) kubernetes() kubernetes.Interface {
	cfg, err := d.restConfig()
	if err != nil {
		return nil
	}
	return kubernetes.NewForConfigOrDie(cfg)
}

// restConfig is home's API server.
func (d *testDevice) restConfig() (*rest.Config, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.rest == nil {
		return nil, errors.New("it starts")
	}
	return d.rest, nil
}

func newDevice(t *testing.T) *testDevice {
	t.Helper()
	raw, err := os.ReadFile("testdata/answers.json")
	if err != nil {
		t.Fatal(err)
	}
	d := &testDevice{}
	if err := json.Unmarshal(raw, &d.answers); err != nil {
		t.Fatal(err)
	}
	run := t.TempDir()
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		at := r.Method + " " + r.URL.RequestURI()
		d.mu.Lock()
		if r.Method != http.MethodGet {
			d.asked = append(d.asked, strings.TrimSpace(at+" "+string(body)))
		}
		a, ok := d.answers[at]
		failure, held := d.fails[at], d.held[at]
		d.mu.Unlock()
		if held != nil {
			<-held
		}
		api.JSON(func(*http.Request) (any, error) {
			if failure != "" {
				return nil, errors.New(failure)
			}
			if ok {
				return a, nil
			}
			if r.Method == http.MethodGet {
				return nil, errors.New("there is no answer to " + at)
			}
			return struct{}{}, nil
		}).ServeHTTP(w, r)
	})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); wg.Wait() })
	ready := make(chan struct{}, 2)
	wg.Go(func() { _ = api.Serve(ctx, run, mux, func() { ready <- struct{}{} }) })
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	d.Console = New(Config{
		Store: &memory{}, StateDir: t.TempDir(), RunDir: run, Executable: self, Page: testPage{}, Health: &health.Tracker{}, Log: slog.New(slog.DiscardHandler), Port: locks.Ports(t, 1),
		REST: d.restConfig, Client: d.kubernetes,
	})
	yes := true
	d.Configure(config.Config{Console: &yes}, []string{"pi"})
	wg.Go(func() { d.run(ctx, sync.OnceFunc(func() { ready <- struct{}{} })) })
	<-ready
	<-ready
	d.base = d.URL()
	d.client = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true}, Timeout: 20 * time.Second} //nolint:gosec // as a browser that was told to
	t.Cleanup(d.client.CloseIdleConnections)
	return d
}

// did returns what the supervisor was asked to do since the last call.
func (d *testDevice) did() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := d.asked
	d.asked = nil
	return out
}

// do sends a request, with a token if there is one.
func (d *testDevice) do(t *testing.T, method, path, token string, form url.Values, header ...string) (int, string, http.Header) {
	t.Helper()
	var body io.Reader
	if form != nil {
		body = strings.NewReader(form.Encode())
	}
	req, err := http.NewRequest(method, d.base+path, body)
	if err != nil {
		t.Fatal(err)
	}
	if form != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	for i := 0; i+1 < len(header); i += 2 {
		if header[i] == "Host" {
			req.Host = header[i+1]
		} else {
			req.Header.Set(header[i], header[i+1])
		}
	}
	resp, err := d.client.Do(req)
	if err != nil {
		t.Fatal(method, path, err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(method, path, err)
	}
	return resp.StatusCode, string(raw), resp.Header
}

// token signs in.
func (d *testDevice) token(t *testing.T, r Role) string {
	t.Helper()
	token, _, err := d.access.signIn(codeFor(t, d.access, r), "192.0.2.7", "")
	if err != nil {
		t.Fatal(err)
	}
	return token
}

const peerB = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"

// Every page and every action, by every role and without a sign-in: nobody gets more than the role has.
func TestRoles(t *testing.T) {
	d := newDevice(t)
	tokens := map[Role]string{"": ""}
	for _, r := range Roles {
		tokens[r] = d.token(t, r)
	}
	for role, token := range tokens {
		for _, p := range pages {
			path := strings.NewReplacer("{id}", peerB, "{namespace}", "lab", "{name}", "web").Replace(p.pattern)
			code, body, _ := d.do(t, http.MethodGet, "/api/page"+path, token, nil)
			switch {
			case role == "" && code != http.StatusUnauthorized:
				t.Errorf("%s without a sign-in: %d %s", path, code, body)
			case role != "" && !role.Includes(p.least) && code != http.StatusForbidden:
				t.Errorf("%s as %s: %d %s", path, role, code, body)
			case role != "" && role.Includes(p.least) && code == http.StatusForbidden:
				t.Errorf("%s as %s is refused: %s", path, role, body)
			}
		}
		for name, a := range actions {
			if name == "leave" {
				continue
			}
			code, body, _ := d.do(t, http.MethodPost, "/api/do/"+name, token, url.Values{})
			done := d.did()
			switch may := role.Includes(a.least); {
			case role == "" && (code != http.StatusUnauthorized || len(done) > 0):
				t.Errorf("%s without a sign-in: %d %s, %v", name, code, body, done)
			case role != "" && !may && (code != http.StatusForbidden || len(done) > 0):
				t.Errorf("%s as %s: %d %s, %v", name, role, code, body, done)
			case may && code == http.StatusForbidden:
				t.Errorf("%s as %s is refused: %s", name, role, body)
			}
		}
	}
}

// What other sites, other names and other methods can reach of a device with a signed-in browser.
func TestForeignRequests(t *testing.T) {
	d := newDevice(t)
	token := d.token(t, Admin)
	form := url.Values{"peer": {peerB}}
	if code, body, _ := d.do(t, http.MethodPost, "/api/do/approve", token, form); code != http.StatusOK {
		t.Fatal(code, body)
	}
	d.did()
	for what, header := range map[string][]string{
		"a cookie":                   {"Cookie", "token=" + token + "; Authorization=Bearer " + token},
		"basic authentication":       {"Authorization", "Basic " + token},
		"the token in the query":     {"X", "y"},
		"another site's form":        {"Origin", "https://evil.example"},
		"an empty bearer":            {"Authorization", "Bearer "},
		"a bearer of another length": {"Authorization", "Bearer " + strings.Repeat("0", 4000)},
	} {
		if code, _, _ := d.do(t, http.MethodPost, "/api/do/approve?token="+token, "", form, header...); code != http.StatusUnauthorized {
			t.Errorf("%s: %d", what, code)
		}
	}
	if done := d.did(); len(done) > 0 {
		t.Errorf("the supervisor was asked: %v", done)
	}
	if code, _, _ := d.do(t, http.MethodGet, "/api/page/", token, nil, "Host", "evil.example"); code != http.StatusMisdirectedRequest {
		t.Errorf("by another name: %d", code)
	}
	if code, _, h := d.do(t, http.MethodOptions, "/api/do/approve", "", nil, "Origin", "https://evil.example", "Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "authorization"); code < 400 || h.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("a preflight is answered with %d %v", code, h)
	}
	_, _, h := d.do(t, http.MethodGet, "/map", "", nil)
	for _, want := range []string{"default-src 'none'", "script-src 'self';", "style-src 'self';", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'"} {
		if !strings.Contains(h.Get("Content-Security-Policy"), want) {
			t.Errorf("the content security policy lacks %s", want)
		}
	}
	if strings.Contains(h.Get("Content-Security-Policy"), "unsafe") || h.Get("Set-Cookie") != "" || h.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("headers: %v", h)
	}
	if code, body, _ := d.do(t, http.MethodPost, "/api/do/approve", token, url.Values{"peer": {strings.Repeat("x", maxBody)}}); code == http.StatusOK && strings.Contains(strings.Join(d.did(), ""), "xxx") {
		t.Errorf("a large form is accepted: %d %s", code, body)
	}
}

func TestSignInOverTheNetwork(t *testing.T) {
	d := newDevice(t)
	send := func(code string) (int, string) {
		resp, err := d.client.Post(d.base+"/api/sign-in", "application/json", strings.NewReader(fmt.Sprintf(`{"code": %q}`, code)))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		raw, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(raw)
	}
	made, err := d.login(View)
	if err != nil || !strings.HasPrefix(made.Link, d.base+"/#code=") || strings.Count(made.Fingerprint, ":") != 31 {
		t.Fatal(made, err)
	}
	if code, body := send("0000-0000-0000-0000"); code != http.StatusForbidden || !strings.Contains(body, "rivulet console login") {
		t.Errorf("a wrong code: %d %s", code, body)
	}
	code, body := send(made.Code)
	var in struct{ Token string }
	if err := json.Unmarshal([]byte(body), &in); err != nil || code != http.StatusOK || in.Token == "" {
		t.Fatal(code, body)
	}
	if code, _, _ := d.do(t, http.MethodGet, "/api/page/map", in.Token, nil); code != http.StatusOK {
		t.Error("the token does not work:", code)
	}
	if code, body := send(made.Code); code != http.StatusForbidden {
		t.Errorf("the code works twice: %s", body)
	}
	for range attempts {
		send("0000-0000-0000-0000")
	}
	again, err := d.login(View)
	if err != nil {
		t.Fatal(err)
	}
	if code, body := send(again.Code); code != http.StatusForbidden || !strings.Contains(body, "wait a minute") {
		t.Errorf("after many wrong codes: %d %s", code, body)
	}
}

// A stream begins with the page, and ends when the session has ended.
func TestALivePageEndsWithItsSession(t *testing.T) {
	d := newDevice(t)
	token := d.token(t, View)
	req, err := http.NewRequest(http.MethodGet, d.base+"/api/page/map?live=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := d.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, maxPage)
	if !lines.Scan() || lines.Text() != `data: {"ends":""}` || !lines.Scan() {
		t.Fatalf("%q", lines.Text())
	}
	if !lines.Scan() || !strings.HasPrefix(lines.Text(), `data: {"title":"Map"`) {
		t.Fatalf("%q", lines.Text())
	}
	if err := d.access.signOut(""); err != nil {
		t.Fatal(err)
	}
	for lines.Scan() {
	}
	if err := lines.Err(); err != nil {
		t.Error("the stream did not end:", err)
	}
}

// A download works once, and only while its session has not ended.
func TestDownloads(t *testing.T) {
	d := newDevice(t)
	ticket := func(token string) string {
		_, body, _ := d.do(t, http.MethodPost, "/api/do/support", token, url.Values{})
		var out result
		if err := json.Unmarshal([]byte(body), &out); err != nil || out.Download == "" {
			t.Fatal(body, err)
		}
		return out.Download
	}
	d.cfg.Executable = echo(t)
	token := d.token(t, Admin)
	at := ticket(token)
	code, body, h := d.do(t, http.MethodGet, at, "", nil)
	if code != http.StatusOK || body != "support -o -\n" || !strings.Contains(h.Get("Content-Disposition"), "attachment") {
		t.Errorf("%d %q %v", code, body, h)
	}
	if code, _, _ := d.do(t, http.MethodGet, at, "", nil); code != http.StatusNotFound {
		t.Error("the download works twice:", code)
	}
	late := ticket(token)
	if err := d.access.signOut(""); err != nil {
		t.Fatal(err)
	}
	if code, _, _ := d.do(t, http.MethodGet, late, "", nil); code != http.StatusNotFound {
		t.Error("the download outlives the session:", code)
	}
}

// echo is a program that writes its arguments.
func echo(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "rivulet")
	if err := os.WriteFile(name, []byte("#!/bin/sh\necho \"$@\"\n"), 0o700); err != nil { //nolint:gosec // it is a program
		t.Fatal(err)
	}
	return name
}

// What ends something is done only after a confirmation of exactly that.
func TestConfirmation(t *testing.T) {
	d := newDevice(t)
	token := d.token(t, Admin)
	form := url.Values{"user": {"anna"}}
	_, body, _ := d.do(t, http.MethodPost, "/api/do/kubeconfig-revoke", token, form)
	var ask result
	if err := json.Unmarshal([]byte(body), &ask); err != nil || !strings.Contains(ask.Confirm, "anna ends at once") || ask.Token == "" {
		t.Fatal(body, err)
	}
	for _, wrong := range []string{"yes", "", strings.Repeat("0", 16)} {
		form.Set("confirmed", wrong)
		d.do(t, http.MethodPost, "/api/do/kubeconfig-revoke", token, form)
	}
	form.Set("confirmed", ask.Token)
	form.Set("user", "ben") // another one than was confirmed
	d.do(t, http.MethodPost, "/api/do/kubeconfig-revoke", token, form)
	if done := d.did(); len(done) > 0 {
		t.Fatalf("done without a confirmation: %v", done)
	}
	form.Set("user", "anna")
	d.do(t, http.MethodPost, "/api/do/kubeconfig-revoke", token, form)
	if done := d.did(); len(done) != 1 || !strings.HasPrefix(done[0], "DELETE /v1/kubeconfigs/anna") {
		t.Errorf("done: %v", done)
	}
}

// What a neighbour calls itself and what it says never becomes markup.
func TestNamesAreNoMarkup(t *testing.T) {
	d := newDevice(t)
	token := d.token(t, Admin)
	for _, path := range []string{"/", "/map", "/fleet", "/peers/" + peerB, "/vclusters", "/people", "/invite", "/device", "/tour"} {
		code, body, _ := d.do(t, http.MethodGet, "/api/page"+path, token, nil)
		var page shown
		if err := json.Unmarshal([]byte(body), &page); err != nil || code != http.StatusOK {
			t.Fatal(path, code, body)
		}
		text := string(page.HTML)
		if strings.Contains(text, "\u202e") {
			t.Errorf("%s has a character that turns text around", path)
		}
		for z := html.NewTokenizer(strings.NewReader(text)); ; {
			kind := z.Next()
			if kind == html.ErrorToken {
				break
			}
			if kind != html.StartTagToken && kind != html.SelfClosingTagToken {
				continue
			}
			tag := z.Token()
			if slices.Contains([]string{"script", "img", "style", "iframe", "i", "object"}, tag.Data) {
				t.Errorf("%s has <%s>", path, tag.Data)
			}
			for _, a := range tag.Attr {
				if strings.HasPrefix(a.Key, "on") || a.Key == "style" || a.Key == "href" && !strings.HasPrefix(a.Val, "/") && !strings.HasPrefix(a.Val, "https://") {
					t.Errorf("%s has %s=%q", path, a.Key, a.Val)
				}
			}
		}
		if path == "/map" && !strings.Contains(text, "&lt;script&gt;") {
			t.Error("the name with markup is not on the map: the test shows nothing")
		}
	}
}

// Fifty viewers cost little more than one: 20 MB at most.
func TestFiftyViewers(t *testing.T) {
	d := newDevice(t)
	paths := []string{"/", "/map", "/vclusters", "/device", "/peers/" + peerB}
	open := func(n int, token string) (closeAll func()) {
		var bodies []io.Closer
		for i := range n {
			client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true}} //nolint:gosec // as above
			req, err := http.NewRequest(http.MethodGet, d.base+"/api/page"+paths[i%len(paths)]+"?live=1", nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer "+token)
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := bufio.NewReader(resp.Body).ReadString('\n'); err != nil {
				t.Fatal(i, err)
			}
			bodies = append(bodies, resp.Body)
		}
		return func() {
			for _, b := range bodies {
				b.Close()
			}
		}
	}
	used := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc + m.StackInuse
	}
	var tokens []string
	for range 5 { // people with a phone and a PC
		tokens = append(tokens, d.token(t, View))
	}
	one := open(1, tokens[0])
	defer one()
	before := used()
	for _, token := range tokens {
		defer open(10, token)()
	}
	grown := int64(used()) - int64(before)
	t.Logf("fifty viewers and their fifty browsers' ends: %.1f MB", float64(grown)/1e6)
	if grown > 20e6 {
		t.Errorf("fifty viewers need %.1f MB", float64(grown)/1e6)
	}
}

// Everything that a browser loads, compressed and not.
func TestSizeOfTheConsole(t *testing.T) {
	raw, packed := 0, 0
	for _, f := range static() {
		raw += len(f.raw)
		packed += len(f.packed)
		if f.kind == "" {
			t.Error("a file has no type")
		}
	}
	t.Logf("%d bytes, %d compressed", raw, packed)
	if raw > 100<<10 {
		t.Errorf("%d bytes", raw)
	}
}

// An administrator's browser sets the clock, after a question, to the time of the press that answers it.
func TestTheClockIsSetFromABrowser(t *testing.T) {
	d := newDevice(t)
	const status = "GET /v1/status"
	d.answer(status, json.RawMessage(strings.Replace(string(d.answers[status]), `"health":[`, `"health":[{"code":"clock-not-synchronized","severity":"info"},`, 1)))
	token := d.token(t, Admin)
	shows := func(r Role) bool {
		var page shown
		_, body, _ := d.do(t, http.MethodGet, "/api/page/device", d.token(t, r), nil)
		if err := json.Unmarshal([]byte(body), &page); err != nil {
			t.Fatal(body, err)
		}
		return strings.Contains(string(page.HTML), `data-do="clock" data-now=""`)
	}
	if !shows(Admin) || shows(Operate) {
		t.Errorf("the page Device has the button for an administrator: %v, for others: %v", shows(Admin), shows(Operate))
	}
	_, body, _ := d.do(t, http.MethodPost, "/api/do/clock", token, url.Values{"now": {"1900000000000"}})
	var ask result
	if err := json.Unmarshal([]byte(body), &ask); err != nil || !strings.Contains(ask.Confirm, "that of your browser") || len(d.did()) > 0 {
		t.Fatal(body, err)
	}
	d.do(t, http.MethodPost, "/api/do/clock", token, url.Values{"now": {"1900000004321"}, "confirmed": {ask.Token}})
	if done := d.did(); len(done) != 1 || done[0] != `POST /v1/clock {"now":"2030-03-17T17:46:44.321Z"}` {
		t.Errorf("done: %v", done)
	}
	if code, body, _ := d.do(t, http.MethodPost, "/api/do/clock", token, url.Values{"now": {"soon"}, "confirmed": {ask.Token}}); code == http.StatusOK || len(d.did()) > 0 {
		t.Errorf("a time that is none: %d %s", code, body)
	}
}
