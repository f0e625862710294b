package dns

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	miekg "github.com/miekg/dns"

	"rivulet/test/harness/locks"
)

func resolvConf(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func TestServers(t *testing.T) {
	own := func(a netip.Addr) bool { return a.String() == "10.43.0.10" }
	for _, c := range []struct {
		name, first, second string
		want                []string
	}{
		{"the LAN's", "nameserver 192.168.1.1\nnameserver 2001:db8::1\nsearch lan\n", "nameserver 9.9.9.9\n", []string{"192.168.1.1:53", "[2001:db8::1]:53"}},
		{"systemd-resolved's stub", "nameserver 127.0.0.53\noptions edns0\n", "nameserver 192.168.1.1\n", []string{"127.0.0.54:53", "192.168.1.1:53"}},
		{"systemd-resolved's stub alone", "nameserver 127.0.0.53\n", "", []string{"127.0.0.54:53"}},
		{"its stub, and it asks the cluster", "nameserver 127.0.0.53\n", "nameserver 10.43.0.10\nnameserver 192.168.1.1\n", []string{"192.168.1.1:53"}},
		{"its stub, and it asks the cluster alone", "nameserver 127.0.0.53\n", "nameserver 10.43.0.10\n", nil},
		{"Pi-hole beside systemd-resolved", "nameserver 127.0.0.1\n", "nameserver 192.168.1.1\n", []string{"127.0.0.1:53"}},
		{"Pi-hole, and resolved asks the cluster", "nameserver 127.0.0.1\n", "nameserver 10.43.0.10\nnameserver 192.168.1.1\n", []string{"192.168.1.1:53"}},
		{"a resolver here, and another", "nameserver 127.0.0.1\nnameserver 192.168.1.1\n", "", []string{"127.0.0.1:53", "192.168.1.1:53"}},
		{"a local resolver without systemd", "nameserver 127.0.0.1\n", "", []string{"127.0.0.1:53"}},
		{"ourselves", "nameserver 10.43.0.10\n", "", nil},
		{"none", "# nothing\n", "", nil},
		{"rubbish", "nameserver router.lan\nnameserver\n\x00\n", "", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			first, second := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")
			resolvConf(t, first, c.first)
			if c.second != "" {
				resolvConf(t, second, c.second)
			}
			if got := servers([]string{first, second}, own); !slices.Equal(got, c.want) {
				t.Fatalf("got %v, want %v", got, c.want)
			}
		})
	}
}

// answering is an upstream server on loopback that gives every name one address.
func answering(t *testing.T, ip, addr string) string {
	t.Helper()
	return serving(t, ip, func(w miekg.ResponseWriter, r *miekg.Msg) {
		m := new(miekg.Msg)
		m.SetReply(r)
		m.Answer = []miekg.RR{&miekg.A{Hdr: miekg.RR_Header{Name: r.Question[0].Name, Rrtype: miekg.TypeA, Class: miekg.ClassINET, Ttl: 600}, A: net.ParseIP(addr)}}
		w.WriteMsg(m)
	})
}

func serving(t *testing.T, ip string, handle miekg.HandlerFunc) string {
	t.Helper()
	conn, err := net.ListenPacket("udp", ip+":0")
	if err != nil {
		t.Fatal(err)
	}
	server := &miekg.Server{PacketConn: conn, Handler: handle}
	ended := make(chan struct{})
	started := make(chan struct{})
	server.NotifyStartedFunc = func() { close(started) }
	go func() { defer close(ended); server.ActivateAndServe() }()
	<-started
	t.Cleanup(func() { server.Shutdown(); <-ended })
	return conn.LocalAddr().String()
}

// narrow is a router while the Internet is out: it knows the LAN, says so of names that there are not, and is silent on
// everything else.
func narrow(t *testing.T) string {
	t.Helper()
	return serving(t, "127.0.0.1", func(w miekg.ResponseWriter, r *miekg.Msg) {
		m := new(miekg.Msg)
		m.SetReply(r)
		switch name := r.Question[0].Name; {
		case name == "nas.lan.":
			m.Answer = []miekg.RR{&miekg.A{Hdr: miekg.RR_Header{Name: name, Rrtype: miekg.TypeA, Class: miekg.ClassINET, Ttl: 600}, A: net.ParseIP("192.168.1.5")}}
		case strings.HasSuffix(name, ".lan."):
			m.Rcode = miekg.RcodeNameError
			m.Ns = []miekg.RR{&miekg.SOA{Hdr: miekg.RR_Header{Name: "lan.", Rrtype: miekg.TypeSOA, Class: miekg.ClassINET, Ttl: 3600}, Ns: "lan.", Mbox: "lan.", Minttl: 3600}}
		default:
			return
		}
		w.WriteMsg(m)
	})
}

// The names of the LAN go on while the Internet is out, and nothing is remembered for long, also that there is no such name.
func TestTheLANWithoutTheInternet(t *testing.T) {
	t.Parallel()
	u := newUpstream(nil, nil, nil, slog.New(slog.DiscardHandler))
	u.looked = time.Now().Add(time.Hour)
	u.use([]string{narrow(t), locks.Address(t)}, false) // the second is on the Internet
	defer u.use(nil, false)
	for i := range 4 {
		if addr, code := u.resolve(fmt.Sprintf("%d.example.org.", i)); addr != "" || code != miekg.RcodeServerFailure {
			t.Fatalf("%q, code %d", addr, code)
		}
	}
	for _, name := range []string{"nas.lan.", "no.lan.", "a.lan.", "b.lan.", "c.lan.", "d.lan."} {
		m := new(miekg.Msg)
		m.SetQuestion(name, miekg.TypeA)
		c := &client{}
		if _, err := u.ServeDNS(t.Context(), c, m); err != nil || c.answer == nil || len(c.answer.Answer)+len(c.answer.Ns) != 1 {
			t.Fatalf("%s: %v, %v", name, c.answer, err)
		}
		if ttl := slices.Concat(c.answer.Answer, c.answer.Ns)[0].Header().Ttl; ttl == 0 || ttl > remembered {
			t.Errorf("%s is remembered for %d s", name, ttl)
		}
	}
}

type client struct {
	miekg.ResponseWriter
	answer *miekg.Msg
}

func (c *client) WriteMsg(m *miekg.Msg) error { c.answer = m; return nil }
func (c *client) RemoteAddr() net.Addr        { return &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)} }
func (c *client) LocalAddr() net.Addr         { return c.RemoteAddr() }

// resolve asks the handler for an address; it returns "" and the code if there is none.
func (u *upstream) resolve(name string) (string, int) {
	m := new(miekg.Msg)
	m.SetQuestion(name, miekg.TypeA)
	c := &client{}
	code, _ := u.ServeDNS(context.Background(), c, m)
	if c.answer == nil || len(c.answer.Answer) == 0 {
		return "", code
	}
	return c.answer.Answer[0].(*miekg.A).A.String(), code
}

func TestUpstreamFollowsTheNetwork(t *testing.T) {
	one, err := newForward([]string{answering(t, "127.0.0.1", "192.0.2.1")})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = one.OnShutdown() }()
	file := filepath.Join(t.TempDir(), "resolv.conf")
	lan := netip.MustParsePrefix("192.168.1.0/24")
	u := newUpstream([]string{file}, func(netip.Addr) bool { return false }, func() []netip.Prefix { return []netip.Prefix{lan} }, slog.New(slog.DiscardHandler))
	now := time.Now()

	if h := u.handler(now); h != nil {
		t.Fatal("a server without a resolv.conf")
	}
	start := time.Now()
	if addr, code := u.resolve("example.org."); code != miekg.RcodeServerFailure || time.Since(start) > time.Second {
		t.Fatalf("without upstream: %q, code %d after %v", addr, code, time.Since(start))
	}
	resolvConf(t, file, "nameserver 192.0.2.53\n")
	if u.handler(now.Add(fresh/2)) != nil {
		t.Fatal("looked again too soon")
	}
	first := u.handler(now.Add(2 * fresh))
	if first == nil || !slices.Equal(u.servers, []string{"192.0.2.53:53"}) {
		t.Fatalf("servers %v", u.servers)
	}
	resolvConf(t, file, "nameserver 192.0.2.53\nsearch lan\n")
	if u.handler(now.Add(4*fresh)) != first {
		t.Fatal("the cache was thrown away though the servers are the same")
	}
	lan = netip.MustParsePrefix("10.7.0.0/16")
	if u.handler(now.Add(5*fresh)) == first {
		t.Fatal("answers of another network are kept, since its server has the same address")
	}
	resolvConf(t, file, "nameserver 192.0.2.54\n")
	if u.handler(now.Add(6*fresh)) == first || !slices.Equal(u.servers, []string{"192.0.2.54:53"}) {
		t.Fatalf("servers %v", u.servers)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if u.handler(now.Add(8*fresh)) != nil {
		t.Fatal("the old servers are asked though resolv.conf is gone")
	}
}

func TestUpstreamAnswersCachesAndFailsFast(t *testing.T) {
	u := newUpstream(nil, nil, nil, slog.New(slog.DiscardHandler))
	u.looked = time.Now().Add(time.Hour) // the files are not looked at here
	u.use([]string{answering(t, "127.0.0.1", "192.0.2.1")}, false)
	if addr, code := u.resolve("example.org."); addr != "192.0.2.1" {
		t.Fatalf("%q, code %d", addr, code)
	}
	if len(u.servers) != 1 || u.forward == nil {
		t.Fatal("no forwarder")
	}
	// Nothing listens on this port any more: connection refused.
	dead := locks.Address(t)
	u.use([]string{dead}, false)
	start := time.Now()
	if addr, code := u.resolve("example.org."); addr != "" || code != miekg.RcodeServerFailure || time.Since(start) > time.Second {
		t.Fatalf("a dead upstream: %q, code %d after %v", addr, code, time.Since(start))
	}
	u.use([]string{answering(t, "127.0.0.1", "192.0.2.2")}, false)
	if addr, code := u.resolve("example.org."); addr != "192.0.2.2" {
		t.Fatalf("after the change: %q, code %d", addr, code)
	}
	u.use(nil, false)
}
