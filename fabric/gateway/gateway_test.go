package gateway

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"pgregory.net/rapid"

	"rivulet/fabric/gateway/gatewayproto"
	"rivulet/test/harness/await"
)

const long = time.Minute

// say writes, ends its direction, and returns all that comes back.
func say(t *testing.T, c halfCloser, what []byte) []byte {
	t.Helper()
	defer c.Close()
	c.SetDeadline(time.Now().Add(long))
	go func() {
		c.Write(what)
		c.CloseWrite()
	}()
	got, err := io.ReadAll(c)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestHomeReachesAPodByItsAddress(t *testing.T) {
	w := newWorld(t)
	w.stream()
	port := podEcho(t)
	c, err := w.dialHome(netip.AddrPortFrom(seenPod, port), long)
	if err != nil {
		t.Fatal(err)
	}
	// More than all buffers on the way hold, and each direction ends by itself.
	large := make([]byte, 8<<20)
	rand.Read(large)
	if got := say(t, c, large); sha256.Sum256(got) != sha256.Sum256(large) {
		t.Errorf("%d bytes came back as %d others", len(large), len(got))
	}

	u, err := w.home.dialUDP(homePod, netip.AddrPortFrom(seenPod, port))
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	for _, size := range []int{1, 500, 1200, 4000} { // the last one in fragments
		if got := ask(t, u, bytes.Repeat([]byte{7}, size)); len(got) != size {
			t.Errorf("a datagram of %d bytes was answered with %d", size, len(got))
		}
	}
	await.True(t, long, "the TCP flow is let go of", func() bool { return w.Status().Flows.TCP == 0 })
}

func ask(t *testing.T, c net.Conn, what []byte) []byte {
	t.Helper()
	buf := make([]byte, maxDatagram)
	for end := time.Now().Add(long); time.Now().Before(end); {
		c.Write(what)
		c.SetReadDeadline(time.Now().Add(2 * time.Second))
		if n, err := c.Read(buf); err == nil {
			return buf[:n]
		}
	}
	t.Fatal("no answer to a datagram")
	return nil
}

func TestHomeHearsWhatThePodSays(t *testing.T) {
	w := newWorld(t)
	w.stream()
	closed := netip.MustParseAddrPort(func() string { l := listen(t); defer l.Close(); return l.Addr().String() }()).Port()
	for name, to := range map[string]netip.AddrPort{
		"nobody listens there":       netip.AddrPortFrom(seenPod, closed),
		"not one of home's pods":     netip.AddrPortFrom(netip.MustParseAddr("10.200.3.8"), 80),
		"the gateway is no pod":      netip.AddrPortFrom(own, gatewayproto.ControlPort),
		"the gateway's loopback not": netip.AddrPortFrom(own, gatewayproto.StreamPort),
	} {
		if c, err := w.dialHome(to, long); err == nil || !strings.Contains(err.Error(), "refused") {
			t.Errorf("%s: %v, %v", name, c, err)
		}
	}
	if r := w.Status().Flows.Refused; r < 3 {
		t.Errorf("%d refused", r)
	}
}

func TestPodsReachServicesOfHome(t *testing.T) {
	w := newWorld(t)
	w.stream()
	from := w.echoAtHome()
	at := w.serve("tcp", netip.AddrPortFrom(homePod, 8080))
	c, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	large := make([]byte, 4<<20)
	rand.Read(large)
	if got := say(t, c.(*net.TCPConn), large); sha256.Sum256(got) != sha256.Sum256(large) {
		t.Errorf("%d bytes came back as %d others", len(large), len(got))
	}
	if who := next(t, from); who.Addr() != seenPod {
		t.Errorf("home sees the pod as %s, not %s", who.Addr(), seenPod)
	}

	u, err := net.Dial("udp", w.serve("udp", netip.AddrPortFrom(homePod, 53)))
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	if got := ask(t, u, []byte("who?")); string(got) != "who?" {
		t.Errorf("%q", got)
	}
	if who := next(t, from); who.Addr() != seenPod {
		t.Errorf("home sees the pod as %s, not %s", who.Addr(), seenPod)
	}

	// Whom home does not know is the gateway to it.
	w.cfg.Pods, w.cfg.Generation = nil, w.cfg.Generation+1
	w.apply()
	if c, err = net.Dial("tcp", at); err != nil {
		t.Fatal(err)
	}
	say(t, c.(*net.TCPConn), []byte("x"))
	if who := next(t, from); who.Addr() != own {
		t.Errorf("home sees a stranger as %s", who.Addr())
	}
}

// Endpoints that are not there cost a try, and one here is reached without home.
func TestServiceWithEndpointsInSeveralPlaces(t *testing.T) {
	w := newWorld(t)
	w.stream()
	w.echoAtHome()
	dead := netip.AddrPortFrom(homePod, 9)
	for name, ends := range map[string][]netip.AddrPort{
		"one is dead":              {dead, netip.AddrPortFrom(homePod, 80)},
		"here":                     {netip.AddrPortFrom(seenPod, podEcho(t))},
		"here, and a third place":  {netip.AddrPortFrom(seenPod, podEcho(t)), netip.MustParseAddrPort("10.77.0.1:80")},
		"home, and a third place":  {netip.AddrPortFrom(homePod, 80), netip.MustParseAddrPort("10.77.0.1:80")},
		"home and a pod here dead": {netip.AddrPortFrom(homePod, 80), netip.AddrPortFrom(seenPod, 9)},
	} {
		at := w.serve("tcp", ends...)
		for range 4 {
			c, err := net.Dial("tcp", at)
			if err != nil {
				t.Fatal(err)
			}
			if got := say(t, c.(*net.TCPConn), []byte(name)); string(got) != name {
				t.Errorf("%s: %q", name, got)
			}
		}
	}
	c, err := net.Dial("tcp", w.serve("tcp"))
	if err != nil {
		return // it was quick
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(long))
	if _, err := c.Read(make([]byte, 1)); err == nil || isTimeout(err) {
		t.Errorf("a Service without endpoints does not hang up: %v", err)
	}
}

// An endpoint whose node is gone costs a short wait, and not the limit of a connection.
func TestEndpointsThatDoNotAnswer(t *testing.T) {
	w := newWorld(t)
	w.stream()
	w.echoAtHome()
	lost := netip.AddrPortFrom(homePod, lostPort)
	for name, ends := range map[string][]netip.AddrPort{
		"one of two":          {lost, netip.AddrPortFrom(homePod, 80)},
		"two of three":        {lost, lost, netip.AddrPortFrom(homePod, 80)},
		"and another refuses": {lost, netip.AddrPortFrom(homePod, 9), netip.AddrPortFrom(homePod, 80)},
		"one is here":         {lost, netip.AddrPortFrom(seenPod, podEcho(t))},
	} {
		at := w.serve("tcp", ends...)
		for range 6 {
			begun := time.Now()
			c, err := net.Dial("tcp", at)
			if err != nil {
				t.Fatal(err)
			}
			if got := say(t, c.(*net.TCPConn), []byte(name)); string(got) != name {
				t.Errorf("%s: %q", name, got)
			}
			if took := time.Since(begun); took >= reachLimit {
				t.Errorf("%s: %s, as long as an endpoint may take", name, took)
			}
		}
	}
	await.True(t, long, "nothing is held for endpoints that did not answer", func() bool { return w.Status().Flows.TCP == 0 })
	c, err := net.Dial("tcp", w.serve("tcp", lost))
	if err != nil {
		return // it was quick
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(long))
	if _, err := c.Read(make([]byte, 1)); err == nil || isTimeout(err) {
		t.Errorf("a Service whose endpoint is gone does not hang up: %v", err)
	}
}

// A stream that is cut costs no connection: the next one takes it up.
func TestStreamIsCut(t *testing.T) {
	w := newWorld(t)
	cut := w.stream()
	port := podEcho(t)
	c, err := w.dialHome(netip.AddrPortFrom(seenPod, port), long)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	echo := func(s string) {
		t.Helper()
		c.SetDeadline(time.Now().Add(long))
		if _, err := c.Write([]byte(s)); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(s))
		if _, err := io.ReadFull(c, got); err != nil || string(got) != s {
			t.Fatalf("%q, %v", got, err)
		}
	}
	echo("before")
	cut()
	w.stream()
	echo("after")
	if st := w.Status(); !st.Connected || st.LastHandshake.IsZero() || st.Received == 0 {
		t.Errorf("the status says that home was not heard: %+v", st)
	}
}

// UDP: who is not home, or has another key, is not heard; that is WireGuard's. Here:
// a stream to somebody else is refused.
func TestStreamOfAStranger(t *testing.T) {
	w := newWorld(t)
	l := listen(t)
	near, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	far, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	other := newWorld(t)
	other.far.Accept(far, nil)
	if err := w.tunnel.Begin(t.Context(), near, w.state.Load().home); err == nil {
		t.Error("a stranger's stream was taken")
	}
}

func TestPortsOpenAndClose(t *testing.T) {
	w := newWorld(t)
	at := w.serve("tcp", netip.AddrPortFrom(homePod, 80))
	if _, err := net.Dial("tcp", at); err != nil {
		t.Fatal(err)
	}
	w.cfg.Services, w.cfg.Generation = nil, w.cfg.Generation+1
	w.apply()
	await.True(t, long, "the port of a Service that is gone is closed", func() bool {
		_, err := net.Dial("tcp", at)
		return err != nil
	})
	taken := listen(t)
	port := netip.MustParseAddrPort(taken.Addr().String()).Port()
	w.cfg.Services = []gatewayproto.Service{{Namespace: "a", Name: "b", Ports: []gatewayproto.Port{{Protocol: "tcp", Listen: port}}}}
	if err := w.Apply(w.cfg); err == nil {
		if port < gatewayproto.FirstPort || port > gatewayproto.LastPort {
			t.Error("a port that is none for Services was opened")
		}
	}
}

func TestWhatCannotBe(t *testing.T) {
	w := newWorld(t)
	for name, spoil := range map[string]func(*gatewayproto.Gateway){
		"overlaps":  func(c *gatewayproto.Gateway) { c.Home = netip.MustParsePrefix("10.0.0.0/8") },
		"is not in": func(c *gatewayproto.Gateway) { c.Address = homePod },
		"a key is":  func(c *gatewayproto.Gateway) { c.PrivateKey = "" },
		"32 bytes":  func(c *gatewayproto.Gateway) { c.PublicKey = "AAAA" },
		"neither tcp": func(c *gatewayproto.Gateway) {
			c.Services = []gatewayproto.Service{{Ports: []gatewayproto.Port{{Protocol: "sctp", Listen: 20000}}}}
		},
		"is another's": func(c *gatewayproto.Gateway) {
			p := gatewayproto.Port{Protocol: "tcp", Listen: 20000}
			c.Services = []gatewayproto.Service{{Ports: []gatewayproto.Port{p, p}}}
		},
		"not one for Se": func(c *gatewayproto.Gateway) {
			c.Services = []gatewayproto.Service{{Ports: []gatewayproto.Port{{Protocol: "tcp", Listen: 22}}}}
		},
	} {
		bad := w.cfg
		spoil(&bad)
		if err := w.Apply(bad); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A mounted Secret is a minute old: it does not undo what was told since.
func TestOldFile(t *testing.T) {
	w := newWorld(t)
	w.cfg.Generation = 5
	w.apply()
	path := filepath.Join(t.TempDir(), "config.json")
	write := func(generation int64, zone string) {
		cfg := w.cfg
		cfg.Generation, cfg.Zone = generation, zone
		raw, err := json.Marshal(cfg)
		if err == nil {
			err = os.WriteFile(path+".new", raw, 0o600)
		}
		if err == nil {
			err = os.Rename(path+".new", path)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	write(4, "old")
	go w.FollowFile(t.Context(), path)
	write(6, "new")
	await.True(t, long, "the new file is in force", func() bool { return w.state.Load().cfg.Zone == "new" })
	write(3, "old")
	w.cfg.Generation = 7
	w.apply()
	if z := w.state.Load().cfg.Zone; z != "" {
		t.Errorf("zone %q", z)
	}
}

func TestNames(t *testing.T) {
	w := newWorld(t)
	w.serve("tcp", netip.AddrPortFrom(homePod, 80))
	name := w.cfg.Services[0].Name
	// The campus's DNS: it says NXDOMAIN to all, and that it was it.
	campus, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer campus.Close()
	go func() {
		buf := make([]byte, 512)
		for {
			n, from, err := campus.ReadFrom(buf)
			if err != nil {
				return
			}
			buf[2], buf[3] = 0x81, 0x83
			campus.WriteTo(buf[:n], from)
		}
	}()
	at := listen(t)
	addr := at.Addr().String()
	at.Close()
	go w.ServeDNS(t.Context(), addr, []string{campus.LocalAddr().String()})
	query := func(network, name string, kind dnsmessage.Type) (m dnsmessage.Message) {
		t.Helper()
		q := dnsmessage.Message{Header: dnsmessage.Header{ID: 77, RecursionDesired: true},
			Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: kind, Class: dnsmessage.ClassINET}}}
		raw, err := q.Pack()
		if err != nil {
			t.Fatal(err)
		}
		var answer []byte
		await.True(t, long, "DNS answers", func() bool {
			answer = askOne(t.Context(), network, addr, raw, 5*time.Second)
			return answer != nil
		})
		if err := m.Unpack(answer); err != nil {
			t.Fatal(err)
		}
		return m
	}
	for _, network := range []string{"udp", "tcp"} {
		m := query(network, strings.ToUpper(name)+".shop.svc.cluster.local.", dnsmessage.TypeA)
		if len(m.Answers) != 1 || m.Answers[0].Body.(*dnsmessage.AResource).A != [4]byte{10, 43, 0, 9} {
			t.Errorf("%s: %+v", network, m)
		}
	}
	if m := query("udp", name+".shop.svc.cluster.local.", dnsmessage.TypeAAAA); m.RCode != dnsmessage.RCodeSuccess || len(m.Answers) != 0 {
		t.Errorf("AAAA: %+v", m)
	}
	for _, other := range []string{name + ".", "other.shop.svc.cluster.local.", "example.org.", "x." + name + ".shop.svc.cluster.local."} {
		if m := query("udp", other, dnsmessage.TypeA); m.RCode != dnsmessage.RCodeNameError {
			t.Errorf("%s was not asked of the campus: %+v", other, m)
		}
	}
	campus.Close()
	if m := query("udp", "example.org.", dnsmessage.TypeA); m.RCode != dnsmessage.RCodeServerFailure {
		t.Errorf("without the campus's DNS: %+v", m)
	}
}

// Whatever comes in as a question, nothing breaks, and what is answered was asked.
func TestAnyQuestion(t *testing.T) {
	cfg := gatewayproto.Gateway{Services: []gatewayproto.Service{{Namespace: "shop", Name: "web", IP: netip.MustParseAddr("10.43.0.9")}}}
	rapid.Check(t, func(rt *rapid.T) {
		raw := rapid.SliceOfN(rapid.Byte(), 0, 80).Draw(rt, "raw")
		if rapid.Bool().Draw(rt, "a question") {
			m := dnsmessage.Message{Header: dnsmessage.Header{ID: rapid.Uint16().Draw(rt, "id")}, Questions: []dnsmessage.Question{{
				Name: dnsmessage.MustNewName(rapid.SampledFrom([]string{"web.shop.svc.cluster.local.", "shop.svc.cluster.local.", "svc.cluster.local.", "a."}).Draw(rt, "name")),
				Type: dnsmessage.Type(rapid.Uint16().Draw(rt, "type")), Class: dnsmessage.ClassINET}}}
			raw, _ = m.Pack()
		}
		answer, ok := Answer(cfg, raw)
		if !ok {
			return
		}
		var q, a dnsmessage.Message
		if q.Unpack(raw) != nil || a.Unpack(answer) != nil {
			rt.Fatalf("%x answered with %x", raw, answer)
		}
		if a.ID != q.ID || len(a.Questions) != 1 || a.Questions[0] != q.Questions[0] || !strings.HasSuffix(q.Questions[0].Name.String(), "shop.svc.cluster.local.") {
			rt.Fatalf("%+v answered with %+v", q, a)
		}
	})
}

func TestControl(t *testing.T) {
	w := newWorld(t)
	l := listen(t)
	go w.ServeControl(t.Context(), l)
	put := func(body string) (int, string) {
		t.Helper()
		return do(t, "PUT", "http://"+l.Addr().String()+"/v1/config", body)
	}
	w.cfg.Generation = 9
	good, _ := json.Marshal(w.cfg)
	if code, body := put(string(good)); code != 204 {
		t.Errorf("%d %s", code, body)
	}
	if code, body := put("{"); code != 400 || !strings.Contains(body, "unreadable") {
		t.Errorf("%d %s", code, body)
	}
	if code, body := put("{}"); code != 422 || !strings.Contains(body, "is not in") {
		t.Errorf("%d %s", code, body)
	}
	var st gatewayproto.Status
	_, body := do(t, "GET", "http://"+l.Addr().String()+"/v1/status", "")
	if err := json.Unmarshal([]byte(body), &st); err != nil || !st.Configured || st.Digest != Digest(w.cfg) || st.Version != Version {
		t.Errorf("%s, %v", body, err)
	}
}

func next[T any](t *testing.T, from chan T) (who T) {
	t.Helper()
	select {
	case who := <-from:
		return who
	case <-time.After(long):
		t.Fatal("nobody has come")
		return who
	}
}

// A connection that was cut off looks cut off at its other end, in both directions and also when the gateway ends: what
// came until then is not taken for the whole.
func TestACutIsNoEnd(t *testing.T) {
	w := newWorld(t)
	w.stream()
	atHome, pods := make(chan *stackConn, 1), make(chan *net.TCPConn, 1)
	w.home.onTCP(func(_, _ netip.AddrPort, a *arrival) {
		if c, err := a.accept(); err == nil {
			atHome <- c
		}
	})
	service := w.serve("tcp", netip.AddrPortFrom(homePod, 8080))
	l := listen(t)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			pods <- c.(*net.TCPConn)
		}
	}()
	toHome := func() (client, server halfCloser) {
		c, err := net.Dial("tcp", service)
		if err != nil {
			t.Fatal(err)
		}
		return c.(*net.TCPConn), next(t, atHome)
	}
	fromHome := func() (client, server halfCloser) {
		c, err := w.dialHome(netip.AddrPortFrom(seenPod, netip.MustParseAddrPort(l.Addr().String()).Port()), long)
		if err != nil {
			t.Fatal(err)
		}
		return c, next(t, pods)
	}
	// half sends the beginning of an answer.
	half := func(client, server halfCloser) {
		t.Helper()
		if _, err := server.Write([]byte("half")); err != nil {
			t.Fatal(err)
		}
		client.SetReadDeadline(time.Now().Add(long))
		if _, err := io.ReadFull(client, make([]byte, 4)); err != nil {
			t.Fatal(err)
		}
	}
	cut := func(what string, c halfCloser) {
		t.Helper()
		c.SetReadDeadline(time.Now().Add(long))
		_, err := c.Read(make([]byte, 1))
		if err == nil || errors.Is(err, io.EOF) || isTimeout(err) {
			t.Errorf("%s: %v, want a reset", what, err)
		}
		c.Close()
	}
	for what, dial := range map[string]func() (client, server halfCloser){"a pod here asks home": toHome, "home asks a pod here": fromHome} {
		client, server := dial()
		half(client, server)
		abort(server)
		cut(what+", and the answer is cut off", client)

		client, server = dial()
		half(client, server)
		abort(client)
		cut(what+", and is gone", server)
	}
	here, there := toHome()
	half(here, there)
	await.True(t, long, "one flow is left", func() bool { return w.Status().Flows.TCP == 1 })
	w.Close()
	cut("the gateway ends", here)
}
