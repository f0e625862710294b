package statuspage

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"rivulet/appliance/api"
	"rivulet/appliance/health"
	"rivulet/appliance/lifecycle"
	"rivulet/appliance/machine/clock"
	"rivulet/appliance/ui/summary"
	"rivulet/fabric/httpserver"
	"rivulet/fabric/peer"
	"rivulet/test/harness/await"
	"rivulet/test/harness/testns"
)

var update = flag.Bool("update", false, "write the golden pages anew")

var noon = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

func stages(list ...string) (out []lifecycle.Status) {
	for _, s := range list {
		f := strings.SplitN(s, "|", 3)
		out = append(out, lifecycle.Status{Name: f[0], State: lifecycle.State(f[1]), Detail: f[2]})
	}
	return out
}

// What a device shows on its way from power to peers.
func story() map[string]api.Status {
	first := api.Status{
		Name: "lab-1", ID: peer.ID(strings.Repeat("a", 32)), Version: "v1.2.3", Started: noon.Add(-3 * time.Second),
		Waiting: "clock: for a time that can be right",
		Stages:  stages("clock|Starting|for a time that can be right", "engine|Waiting|", "node|Waiting|", "fabric|Starting|"),
	}
	network := first
	network.Clock = clock.Status{Plausible: true}
	network.Addresses = []netip.Addr{netip.MustParseAddr("fe80::1"), netip.MustParseAddr("192.0.2.7")}
	network.StatusPage = "http://lab-1.local"
	network.Waiting = "engine: for the API server"
	network.DatastoreReady = true
	network.Stages = stages("clock|Ready|", "engine|Starting|for the API server", "node|Waiting|", "fabric|Ready|")
	failed := network
	failed.Waiting = "engine: dial tcp 127.0.0.1:6443: connect: connection refused (again in 4s)"
	failed.Stages = stages("clock|Ready|", "engine|Failed|dial tcp 127.0.0.1:6443: connect: connection refused; free the port (again in 4s)", "node|Waiting|", "fabric|Failed|EOF")
	failed.DatastoreReady = false
	ready := network
	ready.Ready, ready.Waiting = true, ""
	ready.Clock.Synchronized = true
	ready.Stages = stages("clock|Ready|", "engine|Ready|", "node|Ready|", "fabric|Ready|")
	ready.Pods = api.Pods{Home: 3, Away: 2, Tenants: 1}
	ready.Peers = []peer.View{{Record: peer.Record{Name: "lab-2"}, State: peer.Connected}, {Record: peer.Record{Name: "lab-3"}, State: peer.Lost},
		{Record: peer.Record{Name: "<script>alert(1)</script>"}, State: peer.Discovered}, {Record: peer.Record{Name: "enemy"}, State: peer.Denied}}
	ready.Health = []health.Problem{{Kind: *health.HostFirewall, Text: "nftables: conn.Receive: operation not permitted, token=abcdefghijklmnop", Cure: "see that the kernel has nf_tables"},
		{Kind: *health.Limits, Text: "8 watches are allowed", Cure: "allow more"}, {Kind: *health.Limits, Subject: "b", Text: "asking b: Get \"https://b\": dial tcp 192.0.2.9:7442: i/o timeout", Cure: "see that b is on"}}
	return map[string]api.Status{"first": first, "network": network, "failed": failed, "ready": ready}
}

func TestPagesOnTheWay(t *testing.T) {
	for name, st := range story() {
		body, err := Render(summary.Of(st, noon))
		if err != nil {
			t.Fatal(err)
		}
		golden := filepath.Join("testdata", name+".html")
		if *update {
			if err := os.WriteFile(golden, body, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if string(body) != string(want) {
			t.Errorf("%s is not what it was; look at it, then: go test ./appliance/ui/statuspage -update\n%s", name, body)
		}
		for _, never := range []string{"<script", "src=", "href=", "url(", "enemy", "abcdefghijklmnop"} {
			if strings.Contains(string(body), never) {
				t.Errorf("%s has %q in it", name, never)
			}
		}
	}
}

// The page of rivulet.local has every device of the LAN, with links to names that can be those of hosts.
func TestThePageOfTheLAN(t *testing.T) {
	st := story()["ready"]
	on := func(id, name string, state peer.State, found ...string) {
		st.Peers = append(st.Peers, peer.View{Record: peer.Record{ID: peer.ID(strings.Repeat(id, 32)), Name: name}, State: state, Found: found})
	}
	st.Peers = nil
	on("b", "brisk-otter", peer.Connected, "dns", "mdns")
	on("c", "<script>alert(1)</script>", peer.Discovered, "mdns")
	on("d", "x.evil.example/#", peer.Discovered, "mdns")
	on("e", "far-away", peer.Connected, "dns")
	on("f", "enemy", peer.Denied, "mdns")
	on("g", "", peer.Lost, "mdns")
	on("h", "brisk-otter", peer.Waiting, "mdns")
	body, err := RenderLAN(summary.Of(st, noon))
	if err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "lan.html")
	if *update {
		if err := os.WriteFile(golden, body, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(golden); err != nil || string(body) != string(want) {
		t.Errorf("%v: it is not what it was; look at it, then: go test ./appliance/ui/statuspage -update\n%s", err, body)
	}
	for _, never := range []string{"<script", "src=", "url(", "enemy", "far-away", `evil.example/#"`, `evil.example/#.local`} {
		if strings.Contains(string(body), never) {
			t.Errorf("it has %q in it", never)
		}
	}
	if n := strings.Count(string(body), `href="http://brisk-otter.local"`); n != 2 || strings.Count(string(body), "href=") != 3 {
		t.Errorf("links:\n%s", body)
	}
	for range 5000 {
		on("i", strings.Repeat("<", 5000), peer.Discovered, "mdns")
	}
	if body, err := RenderLAN(summary.Of(st, noon)); err != nil || len(body) > 512<<10 || !strings.Contains(string(body), "more: rivulet peers") {
		t.Errorf("%d bytes, %v", len(body), err)
	}
}

// The device's name comes first, and no colour says more than the words beside it.
func TestTheHeadOfThePage(t *testing.T) {
	for severity, want := range map[health.Severity]string{
		"": `"done">ready<`, health.Info: `"done">ready<`, health.Warning: `"warning">ready, with one problem<`, health.Error: `"warning">ready, with one problem<`,
	} {
		st := api.Status{Name: "lab-1", Ready: true}
		if severity != "" {
			st.Health = []health.Problem{{Kind: health.Kind{Severity: severity}, Text: "the disk is full"}}
		}
		body, err := Render(summary.Of(st, noon))
		if err != nil || !strings.Contains(string(body), `<p class=`+want) || !strings.Contains(string(body), "<title>lab-1: ready") {
			t.Errorf("%q: %v, want %s in\n%s", severity, err, want, body)
		}
	}
}

// What programs say stands under details, after what is written for the owner.
func TestErrorsOfProgramsAreDetails(t *testing.T) {
	details := regexp.MustCompile(`(?s)<details>.*?</details>`)
	for name, st := range story() {
		body, err := Render(summary.Of(st, noon))
		if err != nil {
			t.Fatal(err)
		}
		shown := details.ReplaceAllString(string(body), "")
		for _, program := range []string{"dial tcp", "i/o timeout", "connection refused", "EOF", "not permitted", "again in"} {
			if strings.Contains(shown, program) {
				t.Errorf("%s shows %q", name, program)
			}
		}
		if name == "ready" && !strings.Contains(shown, "8 watches are allowed") {
			t.Errorf("what is written for the owner is not shown:\n%s", shown)
		}
		if name == "failed" && (!strings.Contains(shown, "What to do: free the port") || !strings.Contains(string(body), "connection refused")) {
			t.Errorf("the cure or the details are missing:\n%s", body)
		}
	}
}

// A text for the owner is shown, though it begins with one word and a colon.
func TestWordsForTheOwnerAreNoDetails(t *testing.T) {
	for text, details := range map[string]bool{
		"taken: TCP 6443 (API server) by nginx (pid 5)": false, "missing: br_netfilter": false, "v1: it works, and Kubernetes is about to drop it": false,
		"enforce: the kernel shows no packets between pods of this device to the rules":           false,
		"engine: port 6443/tcp is taken by nginx (pid 5) (address already in use)":                false,
		"store: write /var/lib/rivulet/state.db: no space left on device":                         true,
		"enforce: nftables: conn.Receive: invalid argument":                                       true,
		"metrics: Get \"https://127.0.0.1:10250\": x509: certificate signed by unknown authority": true,
		"update: mount: exit status 32":                                                           true,
	} {
		v := summary.Of(api.Status{Health: []health.Problem{{Kind: *health.Ports, Text: text, Cure: "mend it"}}}, noon)
		if p := v.Problems[0]; p.Text+p.Details != text || (p.Details != "") != details {
			t.Errorf("%q: shown %q, details %q", text, p.Text, p.Details)
		}
	}
}

// Whatever strangers and errors there are, the page stays small.
func TestThePageIsBounded(t *testing.T) {
	st := story()["ready"]
	for i := range 5000 {
		st.Peers = append(st.Peers, peer.View{Record: peer.Record{Name: strings.Repeat("<", 5000)}, State: peer.Discovered})
		st.Health = append(st.Health, health.Problem{Kind: *health.HostFirewall, Subject: fmt.Sprint(i), Text: strings.Repeat("&\n", 9000), Cure: strings.Repeat("é", 9000)})
	}
	body, err := Render(summary.Of(st, noon))
	if err != nil || len(body) > 256<<10 {
		t.Errorf("%d bytes, %v", len(body), err)
	}
	if !strings.Contains(string(body), "more: rivulet peers") || !strings.Contains(string(body), "more: rivulet status") {
		t.Error("what is left out is not told")
	}
}

// world is a server in a network namespace of its own.
type world struct {
	t    *testing.T
	room testns.Room
	srv  *Server
	made atomic.Int32

	mu   sync.Mutex
	said error
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, room: testns.New(t)}
	w.room.Do(func() error { return testns.Give("lo", "192.0.2.1/32") })
	w.srv = New(Config{
		View:  func() summary.View { w.made.Add(1); return summary.Of(story()["ready"], noon) },
		Admit: func(a netip.Addr) bool { return a.Unmap().IsLoopback() },
		Names: func() []string { return []string{"lab-1"} },
		Report: func(err error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.said = err
		},
		Log: slog.New(slog.DiscardHandler),
	})
	return w
}

func (w *world) run() {
	ctx, cancel := context.WithCancel(w.t.Context())
	tried, done := make(chan struct{}, 100), make(chan struct{})
	go func() {
		defer close(done)
		w.room.Do(func() error {
			w.srv.Run(ctx, func() {
				select {
				case tried <- struct{}{}:
				default:
				}
			})
			return nil
		})
	}()
	w.t.Cleanup(func() { cancel(); <-done })
	<-tried
}

func (w *world) problem() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.said == nil {
		return ""
	}
	return w.said.Error()
}

// ask sends one request; status 0 is a connection that was refused or cut.
func (w *world) ask(method, addr, host, path string) (status int, header http.Header, body string) {
	w.t.Helper()
	w.room.Do(func() error {
		c, err := net.DialTimeout("tcp", addr, 10*time.Second)
		if err != nil {
			return nil
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(30 * time.Second))
		fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", method, path, host)
		r, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: method})
		if err != nil {
			return nil
		}
		raw, err := io.ReadAll(r.Body)
		status, header, body = r.StatusCode, r.Header, string(raw)
		return err
	})
	return status, header, body
}

func TestServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.run()
	if code, _, _ := w.ask("GET", "127.0.0.1:80", "lab-1.local", "/"); code != 0 {
		t.Fatalf("a page that is off answers %d", code)
	}
	w.srv.Switch(true)
	await.True(w.t, time.Minute, "the page is on both ports", func() bool { return w.srv.Holds(WebPort) && w.srv.Holds(Port) })
	for _, tt := range []struct {
		method, addr, host, path string
		want                     int
	}{
		{"GET", "127.0.0.1:80", "lab-1.local", "/", 200}, {"GET", "127.0.0.1:80", "LAB-1.local.", "/", 200}, {"GET", "127.0.0.1:80", "lab-1", "/", 200},
		{"GET", "127.0.0.1:7480", "192.0.2.1:7480", "/", 200}, {"GET", "127.0.0.1:80", "[fe80::1]", "/", 200}, {"HEAD", "127.0.0.1:80", "localhost", "/", 200},
		{"GET", "127.0.0.1:80", "rivulet.local", "/", 200}, {"GET", "127.0.0.1:80", "RIVULET.local.:80", "/", 200}, {"GET", "127.0.0.1:80", "rivulet", "/", 421},
		{"GET", "127.0.0.1:80", "evil.example", "/", 421}, {"GET", "127.0.0.1:80", "lab-1.local.evil.example", "/", 421},
		{"GET", "127.0.0.1:80", "lab-1.local", "/v1/status", 404}, {"GET", "127.0.0.1:80", "lab-1.local", "/../../etc/passwd", 404},
		{"POST", "127.0.0.1:80", "lab-1.local", "/", 405}, {"DELETE", "127.0.0.1:80", "lab-1.local", "/", 405},
		{"GET", "192.0.2.1:80", "lab-1.local", "/", 0}, // comes from 192.0.2.1, which is not admitted
	} {
		code, header, body := w.ask(tt.method, tt.addr, tt.host, tt.path)
		if code != tt.want {
			t.Errorf("%s %s at %s as %s: %d, want %d", tt.method, tt.path, tt.addr, tt.host, code, tt.want)
		}
		if code != 0 && !strings.HasPrefix(header.Get("Content-Security-Policy"), "default-src 'none'") {
			t.Errorf("%s as %s: headers %v", tt.path, tt.host, header)
		}
		head := "<h1>lab-1</h1>"
		if hostOf(tt.host) == "rivulet.local" {
			head = "<h1>Rivulet on this LAN</h1>"
		}
		if shows := strings.Contains(body, head); shows != (code == 200 && tt.method == "GET") {
			t.Errorf("%s %s as %s: body %q", tt.method, tt.path, tt.host, body)
		}
	}
	if got := w.srv.URL("lab-1.local"); got != "http://lab-1.local" {
		t.Errorf("URL %s", got)
	}
	w.srv.Switch(false)
	await.True(w.t, time.Minute, "the page is off", func() bool { return !w.srv.Holds(WebPort) && !w.srv.Holds(Port) })
	if got := w.srv.URL("lab-1.local"); got != "" {
		t.Errorf("URL %s of a page that is off", got)
	}
}

// A page is made once in two seconds, however many ask.
func TestAskingOftenCostsLittle(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.srv.Switch(true)
	w.run()
	begun := time.Now()
	for range 100 {
		if code, _, _ := w.ask("GET", "127.0.0.1:80", "lab-1", "/"); code != 200 {
			t.Fatalf("answered %d", code)
		}
	}
	if most := 2 + int32(time.Since(begun)/pageLife); w.made.Load() > most {
		t.Errorf("made %d times for 100 visitors in %s, want at most %d", w.made.Load(), time.Since(begun), most)
	}
}

// Silent visitors cannot keep others out for ever.
func TestVisitorsWhoSayNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.srv.Switch(true)
	w.run()
	for range httpserver.StatusPage.Most {
		w.room.Do(func() error {
			c, err := net.Dial("tcp", "127.0.0.1:80")
			if err == nil {
				t.Cleanup(func() { c.Close() })
			}
			return err
		})
	}
	if code, _, _ := w.ask("GET", "127.0.0.1:80", "lab-1", "/"); code != 200 {
		t.Errorf("answered %d", code)
	}
}

// Another program has port 80: the page goes on where it can, says so, and is back
// when the port is free.
func TestAPortThatIsTaken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var other net.Listener
	w.room.Do(func() (err error) { other, err = net.Listen("tcp", ":80"); return err })
	w.srv.Switch(true)
	w.run()
	for _, part := range []string{"port 80/tcp is taken", "the page is on port 7480", "; free the port, or set statusPage: false"} {
		if !strings.Contains(w.problem(), part) {
			t.Errorf("said %q, want %q in it", w.problem(), part)
		}
	}
	if got := w.srv.URL("lab-1.local"); got != "http://lab-1.local:7480" || w.srv.Holds(WebPort) {
		t.Errorf("URL %s", got)
	}
	if code, _, _ := w.ask("GET", "127.0.0.1:7480", "lab-1.local:7480", "/"); code != 200 {
		t.Errorf("port 7480 answers %d", code)
	}
	other.Close()
	await.True(w.t, time.Minute, "port 80 is taken back", func() bool { return w.srv.Holds(WebPort) && w.problem() == "" })
	if code, _, _ := w.ask("GET", "127.0.0.1:80", "lab-1.local", "/"); code != 200 {
		t.Errorf("port 80 answers %d", code)
	}
}

func TestNoPortAtAll(t *testing.T) {
	w := newWorld(t)
	for _, p := range []string{":80", ":7480"} {
		w.room.Do(func() error {
			l, err := net.Listen("tcp", p)
			if err == nil {
				t.Cleanup(func() { l.Close() })
			}
			return err
		})
	}
	w.srv.Switch(true)
	w.run()
	if said := w.problem(); !strings.Contains(said, "there is no page; ") {
		t.Errorf("said %q", said)
	}
}

// A port that is lent is free for another part of the device, and comes back; the page is
// on its other port meanwhile, and nothing is wrong.
func TestAPortThatIsLent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.srv.Switch(true)
	w.run()
	await.True(w.t, time.Minute, "the page is on both ports", func() bool { return w.srv.Holds(WebPort) && w.srv.Holds(Port) })
	w.srv.Lend(true)
	await.True(w.t, time.Minute, "port 80 is free", func() bool { return !w.srv.Holds(WebPort) })
	var other net.Listener
	w.room.Do(func() (err error) { other, err = net.Listen("tcp", ":80"); return err })
	if got := w.srv.URL("lab-1.local"); got != "http://lab-1.local:7480" {
		t.Errorf("URL %s", got)
	}
	w.mu.Lock()
	said := w.said
	w.mu.Unlock()
	if said != nil {
		t.Errorf("a port that is lent is a problem: %v", said)
	}
	other.Close()
	w.srv.Lend(false)
	await.True(w.t, time.Minute, "the page is on both ports again", func() bool { return w.srv.Holds(WebPort) && w.srv.Holds(Port) })
}
