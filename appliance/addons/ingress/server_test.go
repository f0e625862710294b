package ingress

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"rivulet/appliance/health"
	"rivulet/fabric/httpserver"
	"rivulet/test/harness/await"
	"rivulet/test/harness/locks"
)

// page is the device's own, which answers for one host.
type page struct{ lent atomic.Bool }

func (p *page) Lend(lent bool) { p.lent.Store(lent) }

func (p *page) Offer(w http.ResponseWriter, r *http.Request) bool {
	if r.Host != "pi.local" {
		return false
	}
	io.WriteString(w, "the page")
	return true
}

// front is a server on ports of its own, with pods on loopback.
type front struct {
	*server
	t            *testing.T
	web, secure  int
	health       health.Tracker
	page         page
	stop         func()
	certificates *x509.CertPool
}

func newFront(t *testing.T, reaches func(netip.Addr) bool) *front {
	t.Helper()
	return newPatientFront(t, reaches, httpserver.Ingress.Stall)
}

// newPatientFront is newFront with another bound of silence.
func newPatientFront(t *testing.T, reaches func(netip.Addr) bool, stall time.Duration) *front {
	t.Helper()
	f := &front{t: t, web: locks.Ports(t, 1), secure: locks.Ports(t, 1), certificates: x509.NewCertPool()}
	f.server = newServer(Config{Page: &f.page, Reaches: reaches, Health: &f.health, Log: slog.New(slog.DiscardHandler), Ports: [2]int{f.web, f.secure}})
	f.server.bounds.Stall = stall
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); f.run(ctx) }()
	f.stop = func() { cancel(); <-done }
	t.Cleanup(f.stop)
	for _, port := range []int{f.web, f.secure} {
		await.NoError(t, t.Context(), 20*time.Second, "as it should be", func() error {
			c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
			if err == nil {
				c.Close()
			}
			return err
		})
	}
	return f
}

// serves makes the table: host a.example goes to these addresses, TLS by a Secret.
func (f *front) serves(h2c bool, addrs ...string) {
	f.t.Helper()
	b := &backend{name: "shop/web", h2c: h2c}
	for _, a := range addrs {
		b.endpoints = append(b.endpoints, &endpoint{addr: netip.MustParseAddrPort(a)})
	}
	made := newTable()
	made.put("a.example", route{to: b})
	secret := secretOf(f.t, "key", time.Now(), "a.example")
	cert, err := certificates{}.of(secret)
	if err != nil {
		f.t.Fatal(err)
	}
	f.certificates.AddCert(cert.Leaf)
	made.certs["a.example"] = cert
	f.table.Store(made)
}

// client asks the front for any host.
func (f *front) client() *http.Client {
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: f.certificates}, ForceAttemptHTTP2: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			port := f.web
			if strings.HasSuffix(address, ":443") {
				port = f.secure
			}
			return (&net.Dialer{}).DialContext(ctx, network, fmt.Sprintf("127.0.0.1:%d", port))
		}}
	f.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 20 * time.Second}
}

func (f *front) get(url string, change func(*http.Request)) (*http.Response, string) {
	f.t.Helper()
	r, err := http.NewRequestWithContext(f.t.Context(), http.MethodGet, url, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	if change != nil {
		change(r)
	}
	answer, err := f.client().Do(r)
	if err != nil {
		f.t.Fatal(err)
	}
	defer answer.Body.Close()
	raw, err := io.ReadAll(answer.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	return answer, string(raw)
}

func anywhere(netip.Addr) bool { return true }

func pod(t *testing.T, h http.HandlerFunc) string {
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// A pod learns who asks, for which host, and nothing that the client made up.
func TestWhatAPodIsTold(t *testing.T) {
	f := newFront(t, anywhere)
	got := make(chan *http.Request, 1)
	f.serves(false, pod(t, func(w http.ResponseWriter, r *http.Request) { got <- r }))
	lies := func(r *http.Request) {
		for _, name := range []string{"X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded-Port", "X-Forwarded-Prefix", "Forwarded", "X-Real-Ip", "X_Forwarded_For", "x-forwarded_user", "X_Real_IP", "Keep-Alive", "Proxy-Authorization"} {
			r.Header[name] = []string{"192.0.2.66"}
		}
		r.Header.Set("Connection", "X-Secret")
		r.Header.Set("X-Secret", "hop")
		r.Header.Set("X-Kept", "yes")
	}
	for url, proto := range map[string]string{"http://a.example/x/y?q=1;2": "http", "https://a.example/x/y?q=1;2": "https"} {
		answer, _ := f.get(url, func(r *http.Request) {
			lies(r)
			if proto == "https" {
				r.Header.Del("Connection") // HTTP/2 has none
				r.Header.Del("Keep-Alive")
				r.Header.Del("X-Secret")
			}
		})
		if answer.StatusCode != http.StatusOK {
			t.Fatal(answer.Status)
		}
		if want := map[string]int{"http": 1, "https": 2}[proto]; answer.ProtoMajor != want {
			t.Errorf("%s to the client over HTTP/%d", proto, answer.ProtoMajor)
		}
		r := <-got
		if r.Host != "a.example" || r.URL.Path != "/x/y" || r.URL.RawQuery != "q=1;2" || r.Header.Get("X-Kept") != "yes" || r.Header.Get("X-Secret") != "" {
			t.Errorf("%s %s %v", r.Host, r.URL, r.Header)
		}
		want := map[string]string{"X-Forwarded-For": "127.0.0.1", "X-Forwarded-Host": "a.example", "X-Forwarded-Proto": proto, "X-Real-Ip": "127.0.0.1"}
		for name, values := range r.Header {
			if text := strings.Join(values, ","); want[name] != "" && text != want[name] || want[name] == "" && strings.Contains(text, "192.0.2.66") {
				t.Errorf("%s: %q of %q", proto, text, name)
			}
		}
		for name := range want {
			if r.Header.Get(name) == "" {
				t.Errorf("%s: no %s", proto, name)
			}
		}
	}
}

func TestWhatIsNotPassedOn(t *testing.T) {
	f := newFront(t, anywhere)
	calls := atomic.Int32{}
	f.serves(false, pod(t, func(http.ResponseWriter, *http.Request) { calls.Add(1) }))
	for _, c := range []struct {
		raw  string
		want int
	}{
		{"GET / HTTP/1.1\r\nHost: b.example\r\n\r\n", 404},
		{"GET / HTTP/1.1\r\nHost: pi.local\r\n\r\n", 200},
		{"GET /a/../b HTTP/1.1\r\nHost: a.example\r\n\r\n", 400},
		{"GET /a/%2e%2e/b HTTP/1.1\r\nHost: a.example\r\n\r\n", 400},
		{"GET /a/..%2fb HTTP/1.1\r\nHost: a.example\r\n\r\n", 400},
		{"GET /a/..%5cb HTTP/1.1\r\nHost: a.example\r\n\r\n", 400},
		{"TRACE / HTTP/1.1\r\nHost: a.example\r\n\r\n", 405},
		{"CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\n", 405},
		{"GET / HTTP/1.1\r\n\r\n", 400},
		{"GET / HTTP/1.1\r\nHost: a.example\r\nX: " + strings.Repeat("x", httpserver.Ingress.Header+8<<10) + "\r\n\r\n", 431},
		{"POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx", 400},
		{"POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: xchunked\r\n\r\nx", 501},
	} {
		conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", f.web))
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(conn, c.raw) // it may be hung up on
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || answer.StatusCode != c.want {
			t.Errorf("%.60q: %v %v, want %d", c.raw, answer, err, c.want)
		}
		conn.Close()
	}
	if n := calls.Load(); n > 0 {
		t.Errorf("%d requests came to a pod", n)
	}
}

// An address that leads to the device is not connected to, whoever wrote it down.
func TestOnlyPodsAreReached(t *testing.T) {
	var asked atomic.Int32
	f := newFront(t, func(netip.Addr) bool { asked.Add(1); return false })
	calls := atomic.Int32{}
	f.serves(false, pod(t, func(http.ResponseWriter, *http.Request) { calls.Add(1) }))
	if answer, _ := f.get("http://a.example/", nil); answer.StatusCode != http.StatusBadGateway || calls.Load() > 0 || asked.Load() == 0 {
		t.Errorf("%s, %d calls, %d times looked", answer.Status, calls.Load(), asked.Load())
	}
}

// A pod that is gone costs nobody an answer, also of a request with a body; one that was
// sent something gets it once.
func TestAnotherPodIsTried(t *testing.T) {
	f := newFront(t, anywhere)
	gone := fmt.Sprintf("127.0.0.1:%d", locks.Ports(t, 1))
	calls := atomic.Int32{}
	f.serves(false, gone, pod(t, func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		io.Copy(w, r.Body)
	}))
	for range 4 {
		answer, err := f.client().Post("http://a.example/", "text/plain", strings.NewReader("hello"))
		if err != nil {
			t.Fatal(err)
		}
		raw, _ := io.ReadAll(answer.Body)
		answer.Body.Close()
		if answer.StatusCode != http.StatusOK || string(raw) != "hello" {
			t.Errorf("%s %q", answer.Status, raw)
		}
	}
	calls.Store(0)
	hangup := pod(t, func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		c, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			c.Close()
		}
	})
	f.serves(false, hangup, hangup)
	answer, err := f.client().Post("http://a.example/", "text/plain", strings.NewReader("pay"))
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusBadGateway || calls.Load() != 1 {
		t.Errorf("%s after %d calls", answer.Status, calls.Load())
	}
	f.serves(false)
	if answer, _ := f.get("http://a.example/", nil); answer.StatusCode != http.StatusServiceUnavailable || answer.Header.Get("Retry-After") == "" {
		t.Error(answer.Status)
	}
}

// An upgraded connection passes bytes both ways, and ends when Ingresses are switched off.
func TestUpgrades(t *testing.T) {
	f := newFront(t, anywhere)
	f.serves(false, pod(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "websocket" || r.Header.Get("Connection") != "Upgrade" {
			t.Errorf("the pod was asked with %v", r.Header)
		}
		c, b, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
		io.Copy(c, b)
	}))
	conn, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", f.secure), &tls.Config{RootCAs: f.certificates, ServerName: "a.example", NextProtos: []string{"http/1.1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	io.WriteString(conn, "GET /ws HTTP/1.1\r\nHost: a.example\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\r\n")
	in := bufio.NewReader(conn)
	answer, err := http.ReadResponse(in, nil)
	if err != nil || answer.StatusCode != http.StatusSwitchingProtocols {
		t.Fatal(answer, err)
	}
	for _, line := range []string{"one\n", "two\n"} {
		io.WriteString(conn, line) // read below
		if got, err := in.ReadString('\n'); got != line {
			t.Fatalf("%q, %v", got, err)
		}
	}
	f.stop()
	if _, err := in.ReadByte(); err == nil {
		t.Error("it goes on after the end")
	}
	if f.page.lent.Load() {
		t.Error("the page did not get its port back")
	}
}

// A name without a certificate gets none, so that no browser is asked to believe another's.
func TestCertificatesBySNI(t *testing.T) {
	f := newFront(t, anywhere)
	f.serves(false, pod(t, func(http.ResponseWriter, *http.Request) {}))
	for name, want := range map[string]bool{"a.example": true, "A.EXAMPLE": true, "b.example": false, "": false} {
		conn, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", f.secure), &tls.Config{InsecureSkipVerify: true, ServerName: name}) //nolint:gosec // what is looked at is whether there is one
		if (err == nil) != want {
			t.Errorf("%q: %v", name, err)
		}
		if err == nil {
			conn.Close()
		}
	}
	if _, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", f.secure), &tls.Config{InsecureSkipVerify: true, ServerName: "a.example", MaxVersion: tls.VersionTLS11}); err == nil { //nolint:gosec // it has to be refused
		t.Error("TLS 1.1")
	}
}

// HTTP/2 goes through to a pod that speaks it without TLS, trailers included, as gRPC needs.
func TestHTTP2ToAPod(t *testing.T) {
	f := newFront(t, anywhere)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "Grpc-Status")
		fmt.Fprint(w, r.Proto)
		io.Copy(w, r.Body)
		w.Header().Set("Grpc-Status", "0")
	}))
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	t.Cleanup(s.Close)
	f.serves(true, s.Listener.Addr().String())
	posted, err := f.client().Post("https://a.example/", "application/grpc", strings.NewReader("hello"))
	if err != nil {
		t.Fatal(err)
	}
	defer posted.Body.Close()
	if raw, err := io.ReadAll(posted.Body); string(raw) != "HTTP/2.0hello" || err != nil {
		t.Errorf("%q, %v", raw, err)
	}
	if answer, body := f.get("https://a.example/", nil); answer.ProtoMajor != 2 || body != "HTTP/2.0" || answer.Trailer.Get("Grpc-Status") != "0" {
		t.Errorf("%s %q %v", answer.Proto, body, answer.Trailer)
	}
}

// One client with connections without number does not keep others out.
func TestOneClientHoldsItsShare(t *testing.T) {
	f := newFront(t, anywhere)
	f.serves(false)
	dial := func(from string) net.Conn {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: 10 * time.Second}
		c, err := d.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", f.web))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	var held []net.Conn
	for range 2 * httpserver.Ingress.Conns.Strangers {
		c := dial("127.0.0.2")
		defer c.Close()
		held = append(held, c)
	}
	good := dial("127.0.0.3")
	defer good.Close()
	good.SetDeadline(time.Now().Add(10 * time.Second))
	io.WriteString(good, "GET / HTTP/1.1\r\nHost: pi.local\r\n\r\n") // read below
	answer, err := http.ReadResponse(bufio.NewReader(good), nil)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Errorf("%v %v", answer, err)
	}
	open := 0
	for _, c := range slices.Backward(held) {
		c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		if _, err := c.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
			open++
		}
	}
	if open > httpserver.Ingress.Conns.PerSource {
		t.Errorf("one client has %d connections", open)
	}
}

// A client that falls silent in the middle of a request, or leaves an answer, is hung up
// on, and its pod is done with it; one that is slow is not.
func TestSilenceEnds(t *testing.T) {
	f := newPatientFront(t, anywhere, 300*time.Millisecond)
	ended := make(chan error, 1)
	f.serves(false, pod(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			_, err := io.Copy(io.Discard, r.Body)
			ended <- err
			return
		}
		var err error
		for chunk := make([]byte, 1<<20); err == nil; {
			_, err = w.Write(chunk)
		}
		ended <- err
	}))
	dial := func(asks string) net.Conn {
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", f.web))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, asks); err != nil {
			t.Fatal(err)
		}
		return c
	}
	over := func(what string) {
		t.Helper()
		select {
		case err := <-ended:
			if err == nil {
				t.Errorf("%s: the pod saw nothing of it", what)
			}
		case <-time.After(20 * time.Second):
			t.Errorf("%s: the pod still waits", what)
		}
	}
	silent := dial("POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 100\r\n\r\nbegun")
	defer silent.Close()
	over("a request that stops")
	deaf := dial("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n")
	defer deaf.Close()
	over("an answer that nobody takes")
	slow := dial("POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 10\r\n\r\n")
	defer slow.Close()
	for range 10 {
		time.Sleep(100 * time.Millisecond) // a client that is slow
		if _, err := io.WriteString(slow, "x"); err != nil {
			t.Fatal(err)
		}
	}
	if answer, err := http.ReadResponse(bufio.NewReader(slow), nil); err != nil || answer.StatusCode != http.StatusOK {
		t.Errorf("a slow client: %v %v", answer, err)
	}
	if err := <-ended; err != nil {
		t.Errorf("a slow client: %v", err)
	}
}

// The bounds of one request are not those of the next in its connection: an answer comes
// after a pause, and a pod may think longer than a client may be silent.
func TestAConnectionLastsLongerThanItsBounds(t *testing.T) {
	f := newPatientFront(t, anywhere, 200*time.Millisecond)
	f.serves(false, pod(t, func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(2 * f.server.bounds.Stall) // a pod that thinks
		io.WriteString(w, "late")
	}))
	client := f.client()
	for _, url := range []string{"http://a.example/", "http://b.example/", "http://a.example/", "https://a.example/", "https://a.example/"} {
		time.Sleep(2 * f.server.bounds.Stall) // a client that rests
		answer, err := client.Get(url)
		if err != nil {
			t.Fatal(url, err)
		}
		raw, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if want := map[bool]string{true: "late", false: "no Ingress has this host and path\n"}[strings.Contains(url, "a.example")]; string(raw) != want || err != nil {
			t.Errorf("%s: %q, %v", url, raw, err)
		}
	}
}

// A port that another program has is a problem with a cure; it is served within seconds
// once it is free.
func TestAPortThatIsTaken(t *testing.T) {
	other, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	taken := other.Addr().(*net.TCPAddr).Port
	var tracker health.Tracker
	s := newServer(Config{Page: &page{}, Reaches: anywhere, Health: &tracker, Log: slog.New(slog.DiscardHandler), Ports: [2]int{taken, locks.Ports(t, 1)}})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); s.run(ctx) }()
	problems := func(want int) func() error {
		return func() error {
			found := tracker.Problems()
			if len(found) != want {
				return fmt.Errorf("%v", found)
			}
			for _, p := range found {
				if !strings.Contains(p.Text, fmt.Sprintf("port %d/tcp is taken by ", taken)) || p.Cure == "" {
					return fmt.Errorf("%v", p)
				}
			}
			return nil
		}
	}
	await.NoError(t, t.Context(), 20*time.Second, "as it should be", problems(1))
	other.Close()
	await.NoError(t, t.Context(), 20*time.Second, "as it should be", problems(0))
	await.NoError(t, t.Context(), 20*time.Second, "as it should be", func() error {
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", taken))
		if err == nil {
			c.Close()
		}
		return err
	})
	cancel()
	<-done
}
