package reach

import (
	"io"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"rivulet/fabric/nft"
	"rivulet/test/harness/await"
	"rivulet/test/harness/testns"
)

// A device with two pods, and a peer at the other end of a cable that stands for the
// tunnel: 10.70.0.5 is a pod of ours that runs there, 10.70.0.6 anybody else of the peer.
func device(t testing.TB) (host, peer, own, other testns.Room) {
	host, peer, own, other = testns.New(t), testns.New(t), testns.New(t), testns.New(t)
	host.Router()
	host.Bridge("cni0", "10.42.0.1/24")
	host.Plug("cni0", "veth1", own, "10.42.0.5/24", "10.42.0.1")
	host.Plug("cni0", "veth2", other, "10.42.0.6/24", "10.42.0.1")
	host.Cable("riv0", peer, "eth0")
	host.Do(func() error { return testns.Give("riv0", "10.70.255.1/16") })
	peer.Do(func() error {
		for _, a := range []string{"10.70.0.5/16", "10.70.0.6/16"} {
			if err := testns.Give("eth0", a); err != nil {
				return err
			}
		}
		return testns.Route("10.42.0.0/16", "10.70.255.1")
	})
	for _, r := range []testns.Room{own, other, peer} {
		r.Listen("0.0.0.0:80")
		r.Listen("0.0.0.0:81")
	}
	return host, peer, own, other
}

var (
	ours   = netip.MustParseAddr("10.70.0.5")
	pod    = netip.MustParseAddr("10.42.0.5")
	second = netip.MustParseAddr("10.42.0.6")
	site   = netip.MustParsePrefix("10.70.0.0/16")
)

// Whoever comes by the tunnel reaches what the rules name, and nothing without them.
func TestWhoReachesWhat(t *testing.T) {
	host, peer, own, _ := device(t)
	ns := int(host.NS)
	for begun := time.Now(); !peer.Reaches("10.70.0.6", "10.42.0.5:80"); { // the links are up in a moment
		if time.Since(begun) > 10*time.Second {
			t.Fatal("the test itself does not work: nothing is reached without a table")
		}
	}
	try := func(what string, want map[[2]string]bool) {
		t.Helper()
		for pair, reached := range want {
			if got := peer.Reaches(pair[0], pair[1]); got != reached {
				t.Errorf("%s: %s to %s: %v, want %v", what, pair[0], pair[1], got, reached)
			}
		}
	}
	rules := tables(host)
	set := func(r Rules) { t.Helper(); set(t, rules, r) }
	host.Do(func() error { return Ensure("riv0", netip.Addr{}) })
	try("nothing said", map[[2]string]bool{{"10.70.0.5", "10.42.0.5:80"}: false, {"10.70.0.6", "10.42.0.6:80"}: false})
	if !own.Reaches("", "10.70.0.6:80") {
		t.Error("answers to what a pod began do not come")
	}
	set(Rules{Ours: []netip.Addr{ours}})
	host.Do(func() error { return Ensure("riv0", netip.Addr{}) }) // the tunnel starts again
	try("a pod of ours", map[[2]string]bool{{"10.70.0.5", "10.42.0.5:80"}: true, {"10.70.0.5", "10.42.0.6:81"}: true, {"10.70.0.6", "10.42.0.5:80"}: false})
	if standing, err := Standing(ns); err != nil || len(standing) != 1 || standing[0] != ours {
		t.Errorf("standing: %v %v", standing, err)
	}
	set(Rules{Tenants: []netip.Addr{pod}})
	try("a tenant here", map[[2]string]bool{{"10.70.0.6", "10.42.0.5:80"}: true, {"10.70.0.6", "10.42.0.6:80"}: false})
	set(Rules{Open: []Grant{{From: site, Pods: []netip.Addr{second}, Ports: []Port{{pod, 6, 80}}}}})
	try("opened", map[[2]string]bool{{"10.70.0.6", "10.42.0.5:80"}: true, {"10.70.0.6", "10.42.0.5:81"}: false, {"10.70.0.6", "10.42.0.6:81"}: true})
	set(Rules{Open: []Grant{{From: netip.MustParsePrefix("10.71.0.0/16"), Pods: []netip.Addr{pod}}}})
	try("opened to somebody else", map[[2]string]bool{{"10.70.0.6", "10.42.0.5:80"}: false})
	set(Rules{Whole: []netip.Prefix{site}})
	try("all of it is ours", map[[2]string]bool{{"10.70.0.6", "10.42.0.5:80"}: true})

	many := make([]netip.Addr, 0, 20000) // more than one message holds
	for a := range 20000 {
		many = append(many, netip.AddrFrom4([4]byte{10, 70, byte(a >> 8), byte(a)}))
	}
	begun := time.Now()
	set(Rules{Ours: many})
	t.Logf("20000 addresses took %s", time.Since(begun))
	if standing, err := Standing(ns); err != nil || len(standing) != len(many) {
		t.Errorf("%d of %d addresses are in force: %v", len(standing), len(many), err)
	}
}

// A connection stops with what allowed it, in both directions, even when conntrack has
// forgotten it, and what we began goes on.
func TestWhatEndsEndsConnections(t *testing.T) {
	host, peer, own, _ := device(t)
	opened := Rules{Open: []Grant{{From: site, Ports: []Port{{pod, 6, 90}}}}}
	rules := tables(host)
	set(t, rules, opened)
	theirs, served := join(t, peer, own, "10.42.0.5:90")
	begun, there := join(t, own, peer, "10.70.0.6:91")
	if !passes(theirs, served) || !passes(served, theirs) || !passes(begun, there) {
		t.Fatal("opened, and nothing passes")
	}
	set(t, rules, Rules{})
	if passes(theirs, served) || passes(served, theirs) {
		t.Error("closed, and the connection goes on")
	}
	if !passes(begun, there) || !passes(there, begun) {
		t.Error("a connection of our own ended with it")
	}
	host.Do(func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) })
	if passes(served, theirs) || passes(theirs, served) {
		t.Error("closed, and the connection begins anew from this side")
	}
}

// Pods of this cluster at two peers reach each other by addresses of this cluster, and see each other under these; nobody
// else of these peers does, and it ends with either pod.
func TestPodsAtTwoPeersMeetHere(t *testing.T) {
	host, peer, _, _ := device(t)
	host.Do(func() error { return testns.Give("riv0", "10.71.255.1/16") })
	peer.Do(func() error { return testns.Give("eth0", "10.71.0.6/16") }) // a third cluster, behind the same tunnel
	theirs := netip.MustParseAddr("10.71.0.6")
	through := map[netip.Addr]netip.Addr{ours: netip.MustParseAddr("10.42.248.5"), theirs: netip.MustParseAddr("10.42.248.6")}
	rules := tables(host)
	both := Rules{Ours: []netip.Addr{ours, theirs}, Through: through}
	set(t, rules, both)
	var near, far net.Conn
	meet := func() {
		t.Helper()
		var l net.Listener
		peer.Do(func() (err error) { l, err = net.Listen("tcp", "10.71.0.6:90"); return err })
		defer l.Close()
		await.NoError(t, t.Context(), 10*time.Second, "the connection", func() error {
			return peer.Try(func() (err error) {
				d := net.Dialer{Timeout: time.Second, LocalAddr: &net.TCPAddr{IP: net.ParseIP("10.70.0.5")}}
				near, err = d.Dial("tcp", "10.42.248.6:90")
				return err
			})
		})
		var err error
		if far, err = l.Accept(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { near.Close(); far.Close() })
	}
	meet()
	if from := far.RemoteAddr().(*net.TCPAddr).IP.String(); from != "10.42.248.5" || !passes(near, far) || !passes(far, near) {
		t.Errorf("the pod is seen as %s", from)
	}
	if peer.Reaches("10.70.0.6", "10.42.248.6:80") {
		t.Error("another pod of the peer's reaches it")
	}
	for what, less := range map[string]Rules{"the sender": {Ours: []netip.Addr{theirs}, Through: through}, "the receiver": {Ours: []netip.Addr{ours}, Through: through}} {
		set(t, rules, less)
		if passes(near, far) || passes(far, near) {
			t.Errorf("%s is not this cluster's any more, and the connection goes on", what)
		}
		set(t, rules, both)
		meet()
	}
}

func join(t testing.TB, from, to testns.Room, addr string) (near, far net.Conn) {
	t.Helper()
	var l net.Listener
	to.Do(func() (err error) { l, err = net.Listen("tcp", addr); return err })
	t.Cleanup(func() { l.Close() })
	from.Do(func() (err error) { near, err = net.DialTimeout("tcp", addr, 3*time.Second); return err })
	far, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { near.Close(); far.Close() })
	return near, far
}

func passes(from, to net.Conn) bool {
	limit := time.Now().Add(time.Second)
	_ = from.SetWriteDeadline(limit)
	_ = to.SetReadDeadline(limit)
	if _, err := from.Write([]byte("x")); err != nil {
		return false
	}
	_, err := io.ReadFull(to, make([]byte, 1))
	return err == nil
}

// What a packet pays: round trips of a pod that runs away, in rounds that take turns.
func BenchmarkRoundTrip(b *testing.B) {
	host, peer, own, _ := device(b)
	rules := tables(host)
	full := Rules{Interface: "riv0", Ours: []netip.Addr{netip.MustParseAddr("10.70.0.6")}}
	for a := range 5000 {
		full.Ours = append(full.Ours, netip.AddrFrom4([4]byte{10, 71, byte(a >> 8), byte(a)}))
		full.Tenants = append(full.Tenants, netip.AddrFrom4([4]byte{10, 43, byte(a >> 8), byte(a)}))
	}
	near, far := join(b, peer, own, "10.42.0.5:92")
	go io.Copy(far, far)
	took := map[string]time.Duration{}
	buf := make([]byte, 1)
	rounds := 0
	for b.Loop() {
		for _, with := range []string{"without", "with"} {
			if with == "with" {
				set(b, rules, full)
			} else if _, err := rules.Apply(nil); err != nil {
				b.Fatal(err)
			}
			begun := time.Now()
			for range 2000 {
				if _, err := near.Write(buf); err != nil {
					b.Fatal(err)
				}
				if _, err := io.ReadFull(near, buf); err != nil {
					b.Fatal(err)
				}
			}
			took[with] += time.Since(begun)
		}
		rounds++
	}
	for with, d := range took {
		b.ReportMetric(float64(d.Nanoseconds())/float64(2000*rounds), "ns/trip-"+with)
	}
}

func tables(host testns.Room) *nft.Tables {
	return nft.NewGuard(int(host.NS), slog.New(slog.DiscardHandler)).Tables(Table, Family)
}

func set(t testing.TB, all *nft.Tables, r Rules) {
	t.Helper()
	r.Interface = "riv0"
	all.Forget()
	if _, err := all.Apply([]nft.Program{Program(r)}); err != nil {
		t.Fatal(err)
	}
}
