package gateway

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"rivulet/fabric/gateway/gatewayproto"
	"rivulet/test/harness/await"
)

func question(t *testing.T, name string, kind dnsmessage.Type, takes uint16) []byte {
	t.Helper()
	q := dnsmessage.Message{Header: dnsmessage.Header{ID: 77, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: kind, Class: dnsmessage.ClassINET}}}
	if takes > 0 {
		q.Additionals = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName("."), Type: dnsmessage.TypeOPT, Class: dnsmessage.Class(takes)}, Body: &dnsmessage.OPTResource{}}}
	}
	raw, err := q.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// told are the answers, in words.
func told(t *testing.T, raw []byte) (words []string, m dnsmessage.Message) {
	t.Helper()
	if err := m.Unpack(raw); err != nil {
		t.Fatalf("%x: %v", raw, err)
	}
	for _, a := range m.Answers {
		switch b := a.Body.(type) {
		case *dnsmessage.AResource:
			words = append(words, netip.AddrFrom4(b.A).String())
		case *dnsmessage.CNAMEResource:
			words = append(words, "is "+b.CNAME.String())
		case *dnsmessage.SRVResource:
			words = append(words, fmt.Sprintf("%d at %s", b.Port, b.Target))
		case *dnsmessage.PTRResource:
			words = append(words, b.PTR.String())
		}
	}
	return words, m
}

// A StatefulSet with one pod at home and one here, a Service that stands for another
// of home's, one that stands for a name of the world.
func peers() gatewayproto.Gateway {
	ip := netip.MustParseAddr
	port := gatewayproto.Port{Name: "peer", Protocol: "tcp", Port: 7000}
	return gatewayproto.Gateway{Pods: map[netip.Addr]netip.Addr{seenPod: realPod}, Services: []gatewayproto.Service{
		{Namespace: "shop", Name: "web", IP: ip("10.43.0.9"), Ports: []gatewayproto.Port{{Name: "http", Protocol: "tcp", Port: 80}, {Name: "dns", Protocol: "udp", Port: 53}}},
		{Namespace: "shop", Name: "db", IP: ip("10.43.0.10"), Headless: true, Hosts: []gatewayproto.Host{
			{Name: "db-0", Pod: homePod, IP: ip("10.43.0.11"), Ports: []gatewayproto.Port{port}},
			{Name: "db-1", Pod: seenPod, Ports: []gatewayproto.Port{port}},
			{Name: "db-2", Pod: ip("10.42.0.7"), Ports: []gatewayproto.Port{port}}, // whose address is still to come
		}},
		{Namespace: "shop", Name: "alias", External: "web.shop.svc.cluster.local"},
		{Namespace: "shop", Name: "mirror", External: "Files.Example.org."},
		{Namespace: "shop", Name: "round", External: "round.shop.svc.cluster.local"},
		{Namespace: "shop", Name: "number", External: "192.0.2.1"},
	}}
}

func TestNamesOfPodsAndPorts(t *testing.T) {
	const zone = ".shop.svc.cluster.local."
	for _, c := range []struct {
		name string
		kind dnsmessage.Type
		want string
		code dnsmessage.RCode
	}{
		{"db", dnsmessage.TypeA, "10.43.0.11 127.0.0.1", 0},
		{"db-0.db", dnsmessage.TypeA, "10.43.0.11", 0},
		{"DB-1.db", dnsmessage.TypeA, "127.0.0.1", 0},
		{"db-2.db", dnsmessage.TypeA, "", 0},
		{"db-3.db", dnsmessage.TypeA, "", dnsmessage.RCodeNameError},
		{"db-0.db", dnsmessage.TypeAAAA, "", 0},
		{"_peer._tcp.db", dnsmessage.TypeSRV, "7000 at db-0.db" + zone + " 7000 at db-1.db" + zone, 0},
		{"_peer._udp.db", dnsmessage.TypeSRV, "", dnsmessage.RCodeNameError},
		{"_http._tcp.web", dnsmessage.TypeSRV, "80 at web" + zone, 0},
		{"web", dnsmessage.TypeSRV, "80 at web" + zone + " 53 at web" + zone, 0},
		{"nobody", dnsmessage.TypeA, "", dnsmessage.RCodeNameError},
		{"alias", dnsmessage.TypeA, "is web" + zone + " 10.43.0.9", 0},
		{"alias", dnsmessage.TypeCNAME, "is web" + zone, 0},
		{"mirror", dnsmessage.TypeCNAME, "is files.example.org.", 0},
		{"number", dnsmessage.TypeA, "", dnsmessage.RCodeNameError},
		{"a.b.c.d.web", dnsmessage.TypeA, "", dnsmessage.RCodeNameError},
	} {
		raw, ours := Answer(peers(), question(t, c.name+zone, c.kind, 0))
		if !ours {
			t.Errorf("%s is not ours", c.name)
			continue
		}
		words, m := told(t, raw)
		if got := strings.Join(words, " "); got != c.want || m.RCode != c.code {
			t.Errorf("%s %s: %q, %s; want %q, %s", c.name, c.kind, got, m.RCode, c.want, c.code)
		}
		if c.kind == dnsmessage.TypeSRV && len(words) > 0 && len(m.Additionals) == 0 {
			t.Errorf("%s: no addresses beside", c.name)
		}
	}
	if _, m := told(t, first(Answer(peers(), question(t, "round"+zone, dnsmessage.TypeA, 0)))); m.RCode != dnsmessage.RCodeServerFailure {
		t.Errorf("a circle: %+v", m)
	}
	for at, want := range map[string]string{"11.0.43.10": "db-0.db" + zone, "1.0.0.127": "db-1.db" + zone, "9.0.43.10": "web" + zone} {
		if words, _ := told(t, first(Answer(peers(), question(t, at+".in-addr.arpa.", dnsmessage.TypePTR, 0)))); strings.Join(words, " ") != want {
			t.Errorf("%s: %v", at, words)
		}
	}
	for _, other := range []string{"1.0.43.10.in-addr.arpa.", "web.other.svc.cluster.local.", "svc.cluster.local.", "web.shop.svc.example.org."} {
		if _, ours := Answer(peers(), question(t, other, dnsmessage.TypePTR, 0)); ours {
			t.Errorf("%s is not ours", other)
		}
	}
}

func first(raw []byte, _ bool) []byte { return raw }

func askOne(ctx context.Context, network, server string, question []byte, limit time.Duration) []byte {
	d := net.Dialer{Timeout: limit}
	c, err := d.DialContext(ctx, network, server)
	if err != nil {
		return nil
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(limit))
	if network == "tcp" {
		if writeFramed(c, question) != nil {
			return nil
		}
		answer, _ := readFramed(c)
		return answer
	}
	if _, err := c.Write(question); err != nil {
		return nil
	}
	buf := make([]byte, maxDatagram)
	for {
		n, err := c.Read(buf)
		if err != nil {
			return nil
		}
		if n >= 2 && len(question) >= 2 && buf[0] == question[0] && buf[1] == question[1] {
			return buf[:n]
		}
	}
}

func readFramed(r io.Reader) ([]byte, error) {
	var n [2]byte
	if _, err := io.ReadFull(r, n[:]); err != nil {
		return nil, err
	}
	b := make([]byte, binary.BigEndian.Uint16(n[:]))
	_, err := io.ReadFull(r, b)
	return b, err
}

func writeFramed(w io.Writer, b []byte) error {
	_, err := w.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...))
	return err
}

func TestALongAnswerIsCut(t *testing.T) {
	cfg := gatewayproto.Gateway{Services: []gatewayproto.Service{{Namespace: "shop", Name: "db", Headless: true}}}
	for i := range 100 {
		cfg.Services[0].Hosts = append(cfg.Services[0].Hosts, gatewayproto.Host{Name: fmt.Sprintf("db-%d", i), IP: netip.AddrFrom4([4]byte{10, 43, 1, byte(i)})})
	}
	for _, takes := range []uint16{0, 600, 4096} {
		raw := first(Answer(cfg, question(t, "db.shop.svc.cluster.local.", dnsmessage.TypeA, takes)))
		if words, m := told(t, raw); !m.Truncated || len(raw) > min(max(int(takes), plain), datagram) || len(words) >= 100 {
			t.Errorf("%d taken: %d bytes, %+v", takes, len(raw), m.Header)
		}
	}
	cfg.Services[0].Hosts = cfg.Services[0].Hosts[:50]
	if words, m := told(t, first(Answer(cfg, question(t, "db.shop.svc.cluster.local.", dnsmessage.TypeA, 4096)))); m.Truncated || len(words) != 50 {
		t.Errorf("%d, %+v", len(words), m.Header)
	}
}

// What a Service of home stands for is asked of the campus's DNS, over both transports.
func TestAServiceThatStandsForAName(t *testing.T) {
	w := newWorld(t)
	w.cfg.Services, w.cfg.Generation = peers().Services[3:4], w.cfg.Generation+1
	w.apply()
	answer := func(raw []byte) []byte {
		var m dnsmessage.Message
		if m.Unpack(raw) != nil {
			return nil
		}
		m.Response = true
		if q := m.Questions[0]; q.Name.String() == "files.example.org." && q.Type == dnsmessage.TypeA {
			m.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 60}, Body: &dnsmessage.AResource{A: [4]byte{192, 0, 2, 7}}}}
		} else if q.Type == dnsmessage.TypeA {
			m.RCode = dnsmessage.RCodeNameError
		}
		raw, _ = m.Pack()
		return raw
	}
	// The campus's DNS: over UDP all of its answers are cut.
	l := listen(t)
	u, err := net.ListenPacket("udp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { u.Close() })
	go func() {
		buf := make([]byte, plain)
		for {
			n, from, err := u.ReadFrom(buf)
			if err != nil {
				return
			}
			buf[2], buf[3] = 0x83, 0x80
			u.WriteTo(buf[:n], from)
		}
	}()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if q, err := readFramed(c); err == nil {
				_ = writeFramed(c, answer(q))
			}
			c.Close()
		}
	}()
	own := listen(t)
	addr := own.Addr().String()
	own.Close()
	go w.ServeDNS(t.Context(), addr, []string{l.Addr().String()})
	for _, network := range []string{"udp", "tcp"} {
		var raw []byte
		await.True(t, long, "DNS answers", func() bool {
			raw = askOne(t.Context(), network, addr, question(t, "mirror.shop.svc.cluster.local.", dnsmessage.TypeA, 0), 10*time.Second)
			return raw != nil
		})
		if words, m := told(t, raw); strings.Join(words, " ") != "is files.example.org. 192.0.2.7" || m.ID != 77 {
			t.Errorf("%s: %v %+v", network, words, m)
		}
	}
}
