package fabric

import (
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"rivulet/fabric/httpserver"
	"rivulet/fabric/pairing"
	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
)

// descriptors makes room for n connections and returns for how many there is: each
// has two ends in this process.
func descriptors(t *testing.T, n int) int {
	var have syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &have); err != nil {
		t.Fatal(err)
	}
	old := have
	if want := uint64(n + 2000); have.Cur < want {
		have.Cur, have.Max = want, max(want, have.Max)
		if syscall.Setrlimit(syscall.RLIMIT_NOFILE, &have) != nil {
			have.Cur, have.Max = old.Max, old.Max
			if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &have); err != nil {
				t.Fatal(err)
			}
		}
		t.Cleanup(func() { _ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &old) })
	}
	return min(n, int(have.Cur)-1000)
}

// One machine holds ten thousand connections to the control port, in every way to say
// nothing or nonsense. Peers do not notice, a newcomer becomes a peer, and what is
// held in memory stays small.
func TestSiege(t *testing.T) {
	w := newWorld(t)
	a := w.cluster(1, "a")
	b := w.cluster(2, "b")
	a.awaitState(b, peer.Connected)
	b.awaitState(a, peer.Connected)
	addr := fmt.Sprintf("127.0.0.1:%d", a.cfg.Port)
	stranger, err := rpc.NewIdentity(newKey(77), "stranger")
	if err != nil {
		t.Fatal(err)
	}
	before, routines := inUse(), runtime.NumGoroutine()
	lost := make(chan struct{})
	watch := make(chan struct{})
	go func() {
		defer close(watch)
		for {
			select {
			case <-lost:
				return
			default:
			}
			if s := a.view(b).State; s != peer.Connected {
				t.Errorf("b is %s", s)
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	}()

	n := descriptors(t, 10_000)
	noise := make([]byte, 4096)
	rand.Read(noise)
	slow := func(c net.Conn) {} // filled in below
	ways := []func(net.Conn){
		func(net.Conn) {},                                            // says nothing
		func(c net.Conn) { c.Write([]byte{0x16}) },                   // the beginning of a handshake
		func(c net.Conn) { c.Write([]byte{0x16, 3, 1, 2, 0, 1}) },    // a little more of it
		func(c net.Conn) { c.Write(noise) },                          // noise
		func(c net.Conn) { io.WriteString(c, "GET / HTTP/1.1\r\n") }, // another protocol
		func(c net.Conn) { slow(c) },
	}
	handshakes := 0
	slow = func(c net.Conn) { // a proper handshake, and then a request that never ends
		if handshakes++; handshakes > 200 {
			return
		}
		tc := tls.Client(c, rpc.ClientTLS(stranger, ""))
		c.SetDeadline(time.Now().Add(10 * time.Second))
		if tc.Handshake() != nil {
			return
		}
		if handshakes%2 == 0 {
			io.WriteString(tc, "POST "+pairing.Path+" HTTP/1.1\r\nHost: x\r\nX: "+strings.Repeat("x", 100))
		} else {
			io.WriteString(tc, "POST "+pairing.Path+" HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n{")
		}
	}
	var held []net.Conn
	defer func() {
		for _, c := range held {
			c.Close()
		}
	}()
	for i := range n {
		c, err := net.DialTimeout("tcp", addr, 10*time.Second)
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		held = append(held, c)
		ways[i%len(ways)](c)
	}
	t.Logf("%d connections are held by one machine", len(held))
	if got := runtime.NumGoroutine() - routines; got > 20*httpserver.Strangers.Conns.PerSource {
		t.Errorf("%d goroutines more", got)
	}
	if grown := int64(inUse()) - int64(before); grown > 32<<20 {
		t.Errorf("%d MiB more are in use", grown>>20)
	}
	c := w.cluster(3, "c") // comes from the very address of the siege
	a.awaitState(c, peer.Connected)
	seen := a.view(b).LastSeen
	a.await("word from b", func() bool { return a.view(b).LastSeen.After(seen) })
	close(lost)
	<-watch

	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: rpc.ClientTLS(stranger, "")}}
	resp, err := client.Get("https://" + addr + "/v1/ping")
	if err != nil {
		t.Fatalf("after the siege: %v", err)
	}
	resp.Body.Close()
}

// inUse is what the process has of memory for what it does, not what it could give back.
func inUse() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}

// A peer comes from ten addresses of its own, with its own certificate, and holds what it
// gets. It gets its share; another peer and its pods have theirs.
func TestOnePeersShareOfTheControlPort(t *testing.T) {
	before := httpserver.Peers
	httpserver.Peers.Conns.PerPeer, httpserver.Peers.Conns.Peers = 20, 60
	defer func() { httpserver.Peers = before }()
	w := newWorld(t)
	a, b, c := w.cluster(1, "a"), w.cluster(2, "b"), w.cluster(3, "c")
	prefixes := map[*cluster]netip.Prefix{}
	for i, p := range []*cluster{b, c} {
		a.awaitState(p, peer.Connected)
		p.awaitState(a, peer.Connected)
		a.await("both to have the same prefixes", func() bool {
			here, there := a.view(p), p.view(a)
			return here.PeerMappedCIDR == there.LocalMappedCIDR && here.LocalMappedCIDR == there.PeerMappedCIDR
		})
		prefixes[p] = netip.PrefixFrom(netip.AddrFrom4([4]byte{127, byte(78 + i), 0, 0}), 16)
	}
	// On loopback, so that a peer's addresses are there. An exchange that has begun already writes
	// what was agreed.
	onLoopback := func() {
		a.members.mu.Lock()
		defer a.members.mu.Unlock()
		for p, prefix := range prefixes {
			m := a.members.all[string(p.cfg.Identity.ID)]
			if rec := m.Record(); rec.PeerMappedCIDR != prefix {
				rec.PeerMappedCIDR = prefix
				a.pin(m, rec)
			}
		}
	}
	passed := make(chan net.Conn, 1000)
	a.Pass(func(c net.Conn) { passed <- c }, "kubernetes.default.svc")
	addr := netip.AddrPortFrom(inTunnel, a.cfg.Port).String()
	dial := func(as *cluster, n int, name string) (*tls.Conn, error) {
		onLoopback()
		from := prefixes[as].Addr().As4()
		from[3] = byte(n%10 + 1)
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: from[:]}, Timeout: 10 * time.Second}
		raw, err := d.Dial("tcp", addr)
		if err != nil {
			return nil, err
		}
		t.Cleanup(func() { raw.Close() })
		raw.SetDeadline(time.Now().Add(10 * time.Second))
		config := rpc.ClientTLS(as.cfg.Identity, "")
		config.ServerName = name
		return tls.Client(raw, config), nil
	}
	// hold asks once and keeps the connection.
	hold := func(as *cluster, n int) (*tls.Conn, error) {
		conn, err := dial(as, n, "")
		if err == nil {
			_, err = io.WriteString(conn, "GET /v1/ping HTTP/1.1\r\nHost: x\r\n\r\n")
		}
		if err == nil {
			_, err = conn.Read(make([]byte, 4096))
		}
		return conn, err
	}
	alive := func(c net.Conn) bool {
		c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		_, err := c.Read(make([]byte, 1))
		var timeout net.Error
		return errors.As(err, &timeout) && timeout.Timeout()
	}
	var held []*tls.Conn
	for n := range 100 {
		if conn, err := hold(b, n); err == nil {
			held = append(held, conn)
		}
	}
	open := 0
	for _, conn := range held {
		if alive(conn) {
			open++
		}
	}
	if open == 0 || open > 20 {
		t.Errorf("one peer holds %d of 100 connections, want 20 at most", open)
	}
	for n := range 15 {
		if _, err := hold(c, n); err != nil {
			t.Fatalf("another peer's connection %d is refused: %v", n, err)
		}
	}
	// Pods at b, which prove nothing, have a share of their own, too.
	for n := range 100 {
		if conn, err := dial(b, n, "kubernetes.default.svc"); err == nil {
			go conn.Handshake() //nolint:errcheck // nobody answers
		}
	}
	a.await("pods at b to be passed", func() bool { return len(passed) > 0 })
	fromC, err := dial(c, 1, "kubernetes.default.svc")
	if err != nil {
		t.Fatal(err)
	}
	go fromC.Handshake() //nolint:errcheck // nobody answers
	a.await("a pod at c to be passed", func() bool {
		for len(passed) > 0 {
			if p := <-passed; prefixes[c].Contains(p.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()) {
				return true
			}
		}
		return false
	})
	seen := a.view(c).LastSeen
	a.await("word from c", func() bool { return a.view(c).LastSeen.After(seen) })
}
