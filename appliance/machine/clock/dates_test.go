package clock

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"rivulet/appliance/health"
)

const day = 24 * time.Hour

// authority issues certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t *testing.T) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotBefore: built.Add(-10 * 365 * day), NotAfter: built.Add(10 * 365 * day), IsCA: true, BasicConstraintsValid: true}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(raw)
	if err != nil {
		t.Fatal(err)
	}
	a := authority{cert, key, x509.NewCertPool()}
	a.pool.AddCert(cert)
	return a
}

func (a authority) issue(t *testing.T, name string, from, to time.Time) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, NotBefore: from, NotAfter: to,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key}
}

// registry is a real server, with a certificate and a clock of its own; it returns its port.
func registry(t *testing.T, cert tls.Certificate, now time.Time, age string) int {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", now.UTC().Format(http.TimeFormat))
		if age != "" {
			w.Header().Set("Age", age)
		}
		w.WriteHeader(http.StatusUnauthorized) // as registries answer strangers
	}))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	s.StartTLS()
	t.Cleanup(s.Close)
	return s.Listener.Addr().(*net.TCPAddr).Port
}

// behind is a device whose clock stays at a time that is long past, and which has hosts to ask.
func behind(t *testing.T, now time.Time, d Dates) (*Clock, *board, *health.Tracker) {
	t.Helper()
	b, h := newBoard(now), &health.Tracker{}
	c := New(Config{System: b, Built: built, Dates: d, Store: disk{}.saved(t, now), Health: h, Jumped: func(Jump) {}, Log: slog.New(slog.DiscardHandler)})
	if err := c.load(); err != nil {
		t.Fatal(err)
	}
	return c, b, h
}

// A device whose clock is months behind, in a network without NTP, takes the time from registries whose certificates
// begin later than its clock, if they and no impostor say it.
func TestRegistriesTellTheTime(t *testing.T) {
	ours, others := newAuthority(t), newAuthority(t)
	old := built.Add(20 * day) // by the device's clock
	// An answer: the authority, the validity and the date, from the device's time, and more.
	type answer struct {
		by             authority
		name           string
		from, to, date time.Duration
		age            string
	}
	good := answer{ours, "localhost", 90 * day, 180 * day, 120 * day, ""}
	but := func(change func(*answer)) answer { a := good; change(&a); return a }
	for name, tt := range map[string]struct {
		answers []answer
		want    time.Duration // the device's clock afterwards, from before
		says    string
	}{
		"two that agree":             {[]answer{good, but(func(a *answer) { a.date += 20 * time.Second })}, 120 * day, "registries agree with it: localhost"},
		"one alone":                  {[]answer{good}, 0, ""},
		"two that do not agree":      {[]answer{good, but(func(a *answer) { a.date += time.Hour })}, 0, "registries do not agree"},
		"a liar among three":         {[]answer{good, good, but(func(a *answer) { a.date += 30 * day })}, 120 * day, ""},
		"another name":               {[]answer{good, but(func(a *answer) { a.name = "evil.example" })}, 0, ""},
		"another authority":          {[]answer{good, but(func(a *answer) { a.by = others })}, 0, ""},
		"after the certificate":      {[]answer{good, but(func(a *answer) { a.to = 100 * day })}, 0, ""},
		"before the certificate":     {[]answer{good, but(func(a *answer) { a.from = 125 * day })}, 0, ""},
		"from a cache":               {[]answer{good, but(func(a *answer) { a.age = "7" })}, 0, ""},
		"decades from now":           {[]answer{good, but(func(a *answer) { a.date, a.to = 30*365*day, 40*365*day })}, 0, ""},
		"old keys, before the floor": {[]answer{{ours, "localhost", -90 * day, -day, -2 * day, ""}, {ours, "localhost", -90 * day, -day, -2 * day, ""}}, 0, ""},
		// What the owner of two old keys can do: not more than the later of their ends, which the device's clock would
		// reach by itself.
		"old keys, after the floor": {[]answer{{ours, "localhost", -90 * day, 9 * day, 8 * day, ""}, {ours, "localhost", -90 * day, 9 * day, 8 * day, ""}}, 8 * day, ""},
		"old keys, after their end": {[]answer{{ours, "localhost", -90 * day, 9 * day, 10 * day, ""}, {ours, "localhost", -90 * day, 9 * day, 10 * day, ""}}, 0, ""},
		"before the floor":          {[]answer{but(func(a *answer) { a.from, a.date = -90*day, -time.Minute*3 }), but(func(a *answer) { a.from, a.date = -90*day, -time.Minute*3 })}, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			d := Dates{Roots: ours.pool}
			for _, a := range tt.answers {
				cert := a.by.issue(t, a.name, old.Add(a.from), old.Add(a.to))
				d.Hosts = append(d.Hosts, fmt.Sprint("localhost:", registry(t, cert, old.Add(a.date), a.age)))
			}
			c, b, h := behind(t, old, d)
			c.queryAll(t.Context())
			c.check()
			c.correct()
			c.report()
			st := c.Status()
			if got := st.Now.Sub(old); (got-tt.want).Abs() > 30*time.Second || (len(b.sets) > 0) != (tt.want != 0) || (st.Source == FromHTTPS) != (tt.want != 0) {
				t.Errorf("it went on by %s, want %s; %+v", got, tt.want, st)
			}
			if st.Right() {
				t.Error("what registries say counts as confirmed: courses would be deleted by it")
			}
			if _, known := c.Reading(); known {
				t.Error("what registries say is passed on to peers")
			}
			if p := h.Problems(); len(p) != 1 || !strings.Contains(p[0].Text, tt.says) || !strings.Contains(p[0].Cure, "page Device") {
				t.Errorf("problems %v, want %q", p, tt.says)
			}
		})
	}
}

// A time service and peers are believed before registries.
func TestRegistriesComeLast(t *testing.T) {
	a, old := newAuthority(t), built.Add(20*day)
	d := Dates{Roots: a.pool}
	for range 2 {
		d.Hosts = append(d.Hosts, fmt.Sprint("localhost:", registry(t, a.issue(t, "localhost", old.Add(90*day), old.Add(180*day)), old.Add(120*day), "")))
	}
	for name, change := range map[string]func(*Clock, *board){
		"NTP": func(_ *Clock, b *board) { b.disc.Synchronized = true },
		"a peer": func(c *Clock, _ *board) {
			c.Received("id", "pi", old.Add(5*time.Second), true, time.Millisecond)
		},
	} {
		c, b, _ := behind(t, old, d)
		c.queryAll(t.Context())
		change(c, b)
		c.check()
		c.correct()
		if len(b.sets) > 0 || c.lost() {
			t.Errorf("%s: set to %v, asked again: %v", name, b.sets, c.lost())
		}
	}
}

// Registries are asked some minutes after the start, and again, and not while a time service keeps the clock.
func TestWhenRegistriesAreAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBoard(today)
		asked := &counter{}
		b.dates, b.log = Dates{Hosts: []string{"%"}}, slog.New(asked) // a name that needs no network to fail
		v := switchOn(t, b, disk{})
		want := func(after time.Duration, n int64) {
			t.Helper()
			v.after(after)
			if got := asked.n.Load(); got != n {
				t.Errorf("asked %d times, want %d", got, n)
			}
		}
		want(queryAfter-time.Second, 0)
		want(2*time.Second, 1)
		want(queryAgain, 2)
		b.set(today.Add(day), true)
		want(3*queryAgain, 2)
		b.set(today.Add(2*day), false)
		want(queryAgain, 3)
		v.switchOff()
	})
}

// counter counts the hosts that did not tell the time.
type counter struct{ n atomic.Int64 }

func (*counter) Enabled(context.Context, slog.Level) bool { return true }
func (c *counter) WithAttrs([]slog.Attr) slog.Handler     { return c }
func (c *counter) WithGroup(string) slog.Handler          { return c }
func (c *counter) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "a registry does not tell the time" {
		c.n.Add(1)
	}
	return nil
}

// proxy is one that connects to registries by their names; with a certificate it is one of https://. It keeps the
// passwords that it is given.
func proxy(t *testing.T, names map[string]int, cert *tls.Certificate) (addr string, given func() []string) {
	t.Helper()
	var mu sync.Mutex
	var all []string
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		all = append(all, r.Header.Get("Proxy-Authorization"))
		mu.Unlock()
		there, err := net.Dial("tcp", fmt.Sprint("127.0.0.1:", names[r.URL.Hostname()]))
		if r.Method != http.MethodConnect || err != nil {
			http.Error(w, "no", http.StatusBadGateway)
			return
		}
		here, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		fmt.Fprint(here, "HTTP/1.1 200 OK\r\n\r\n")
		splice(here, buffered.Reader, there)
	}))
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	if cert != nil {
		s.TLS = &tls.Config{Certificates: []tls.Certificate{*cert}}
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	return fmt.Sprint("localhost:", s.Listener.Addr().(*net.TCPAddr).Port), func() []string { mu.Lock(); defer mu.Unlock(); return all }
}

func splice(here net.Conn, from *bufio.Reader, there net.Conn) {
	defer here.Close()
	go func() {
		defer there.Close()
		_, _ = io.Copy(there, from)
	}()
	_, _ = io.Copy(here, there)
}

// Behind a proxy the registries are asked by it; one that is not the one of the settings gets no password.
func TestRegistriesByAProxy(t *testing.T) {
	a, old := newAuthority(t), built.Add(20*day)
	names := map[string]int{}
	for _, name := range []string{"a.example", "b.example"} {
		names[name] = registry(t, a.issue(t, name, old.Add(90*day), old.Add(180*day)), old.Add(120*day), "")
	}
	genuine := a.issue(t, "localhost", old.Add(90*day), old.Add(180*day))
	other := newAuthority(t).issue(t, "localhost", old.Add(90*day), old.Add(180*day))
	for name, tt := range map[string]struct {
		scheme string
		cert   *tls.Certificate
		works  bool
	}{"http": {"http", nil, true}, "https": {"https", &genuine, true}, "https, of a stranger": {"https", &other, false}} {
		t.Run(name, func(t *testing.T) {
			addr, given := proxy(t, names, tt.cert)
			for _, v := range []string{"HTTPS_PROXY", "https_proxy"} {
				t.Setenv(v, tt.scheme+"://user:secret@"+addr)
			}
			t.Setenv("NO_PROXY", "")
			t.Setenv("no_proxy", "")
			c, _, _ := behind(t, old, Dates{Hosts: []string{"a.example", "b.example"}, Roots: a.pool})
			if agreed := c.queryAll(t.Context()); agreed != tt.works {
				t.Errorf("they agree: %v", agreed)
			}
			c.correct()
			if got := c.Status().Now.Sub(old); tt.works != (got > 100*day) {
				t.Errorf("it went on by %s", got)
			}
			if got := given(); tt.works != (len(got) == 2) || tt.works && !strings.HasPrefix(got[0], "Basic ") {
				t.Errorf("the proxy was given %q", got)
			}
		})
	}
}

// An administrator sets the clock, ahead and back, but not before the build, or what a time service has said, and not
// against one. Of registries that have said something else nothing is left.
func TestSetByAnAdministrator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, d := newBoard(today), disk{}.saved(t, today.Add(-time.Hour))
		v := switchOn(t, b, d)
		now := today.Add(100 * day)
		if err := v.SetTo(now); err != nil {
			t.Fatal(err)
		}
		v.after(checkEvery)
		v.wantTime(now.Add(checkEvery), FromAdmin)
		if len(v.jumps) != 1 || (v.jumps[0].By-100*day).Abs() > time.Minute {
			t.Errorf("jumps %v", v.jumps)
		}
		if v.Status().Right() {
			t.Error("it counts as confirmed")
		}
		v.Clock.mu.Lock()
		for _, name := range []string{"a", "b"} {
			v.Clock.dates[name] = sample{name: name, synchronized: true, bootTime: now.Add(50 * day).Add(-v.Clock.sys.Boot()), at: v.Clock.sys.Boot()}
		}
		v.Clock.mu.Unlock()
		if now = today.Add(time.Hour); v.SetTo(now) != nil {
			t.Error("what an administrator has set too far is not set back")
		}
		v.after(2 * correctEvery)
		if got := v.Status().Now.Sub(now); got > 3*correctEvery {
			t.Errorf("%s later than set", got)
		}
		now = v.Status().Now
		for _, to := range []time.Time{built.Add(-day), built.AddDate(30, 0, 0)} {
			if err := v.SetTo(to); err == nil || !strings.Contains(err.Error(), "cannot be") {
				t.Errorf("%s: %v", to, err)
			}
		}
		b.set(b.Now(), true)
		v.after(checkEvery)
		if err := v.SetTo(now.Add(day)); err == nil || !strings.Contains(err.Error(), "time service") {
			t.Error(err)
		}
		b.set(b.Now(), false)
		if err := v.SetTo(today); err == nil || !strings.Contains(err.Error(), "cannot be") {
			t.Errorf("before what a time service has said: %v", err)
		}
		b.mu.Lock()
		b.forbids = true
		b.mu.Unlock()
		if err := v.SetTo(now.Add(day)); err == nil || !strings.Contains(err.Error(), "date -s") {
			t.Error(err)
		}
		v.switchOff()
		after := switchOn(t, newBoard(time.Unix(0, 0)), d) // a power cut at once: it was saved
		after.after(patience)
		if got := after.Status().Now; got.Before(now) {
			t.Errorf("it starts at %s", got)
		}
		after.switchOff()
	})
}
