package tunnel

import (
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"rivulet/fabric/nft"
	"rivulet/test/harness/await"
)

// reachLimit leaves room for some handshakes that are lost, each tried again after 5 s,
// on a machine with much else to do.
const reachLimit = 30 * time.Second

func TestTwoClustersWithTheSamePodCIDR(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.apply(t)

	t.Run("TCP from a to b", func(t *testing.T) { stream(t, w.a.pod, w.b.pod, "10.200.0.7", "10.201.0.5", 2<<20) })
	t.Run("TCP from b to a", func(t *testing.T) { stream(t, w.b.pod, w.a.pod, "10.201.0.5", "10.200.0.7", 2<<20) })
	t.Run("a program on the node comes from the tunnel's address", func(t *testing.T) {
		stream(t, w.a.node, w.b.pod, "10.200.0.7", "10.201.255.254", 64<<10)
	})
	t.Run("UDP, whole and in fragments", func(t *testing.T) { datagrams(t, w, 64, 1300, 8000) })
	t.Run("ping", func(t *testing.T) { ping(t, w.a.pod, "10.200.0.7", 56); ping(t, w.b.pod, "10.201.0.5", 20000) })
	t.Run("a closed port is refused", func(t *testing.T) { refused(t, w.a.pod, "10.200.0.7:9") })
	t.Run("nothing was dropped", func(t *testing.T) {
		for _, d := range []*board{w.a, w.b} {
			if st, err := d.Status(t.Context()); err != nil || st.Dropped != 0 {
				t.Errorf("status %+v, %v: want no packet dropped", st, err)
			}
		}
	})
	t.Run("foreign addresses do not leave", func(t *testing.T) {
		w.a.node.must(func() error {
			c, err := net.DialUDP("udp4", &net.UDPAddr{IP: net.IPv4(192, 168, 77, 1)}, &net.UDPAddr{IP: net.IPv4(10, 200, 0, 7), Port: 9})
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = c.Write([]byte("x"))
			return err
		})
		await.True(t, reachLimit, "a packet counted as dropped", func() bool {
			st, err := w.a.Status(t.Context())
			return err == nil && st.Dropped > 0
		})
	})
}

// stream sends size random bytes, has them come back, and checks who the other
// side thinks it talks to.
func stream(t *testing.T, from, to *room, dst, seenAs string, size int) {
	t.Helper()
	l := to.listen(":8080")
	defer l.Close()
	seen := make(chan string, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			seen <- err.Error()
			return
		}
		defer c.Close()
		host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
		seen <- host
		_, _ = io.Copy(c, c)
	}()
	c, err := from.dial("tcp4", dst+":8080", reachLimit)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(3 * reachLimit))
	sent, got := sha256.New(), sha256.New()
	go func() {
		src := io.LimitReader(rand.NewChaCha8([32]byte{1}), int64(size))
		_, _ = io.Copy(io.MultiWriter(c, sent), src)
		_ = c.(*net.TCPConn).CloseWrite()
	}()
	n, err := io.Copy(got, c)
	if err != nil || n != int64(size) || string(sent.Sum(nil)) != string(got.Sum(nil)) {
		t.Fatalf("%d of %d bytes came back, %v, or they differ", n, size, err)
	}
	if who := <-seen; who != seenAs {
		t.Fatalf("the other side sees %s, want %s", who, seenAs)
	}
}

func datagrams(t *testing.T, w *world, sizes ...int) {
	t.Helper()
	echo := w.b.pod.packets(":5353")
	defer echo.Close()
	go func() {
		buf := make([]byte, 1<<16)
		for {
			n, from, err := echo.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = echo.WriteTo(buf[:n], from)
		}
	}()
	for _, checksum := range []bool{true, false} {
		c, err := w.a.pod.dial("udp4", "10.200.0.7:5353", reachLimit)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if !checksum {
			raw, _ := c.(*net.UDPConn).SyscallConn()
			_ = raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_NO_CHECK, 1) })
			if err != nil {
				t.Fatal(err)
			}
		}
		c.SetDeadline(time.Now().Add(reachLimit))
		for _, size := range sizes {
			out, in := make([]byte, size), make([]byte, 1<<16)
			out[size-1] = byte(size)
			if _, err := c.Write(out); err != nil {
				t.Fatal(err)
			}
			if n, err := c.Read(in); err != nil || string(in[:n]) != string(out) {
				t.Fatalf("%d bytes, checksum %v: %d came back, %v", size, checksum, n, err)
			}
		}
	}
}

func ping(t *testing.T, from *room, dst string, size int) {
	t.Helper()
	var c *icmp.PacketConn
	from.must(func() (err error) { c, err = icmp.ListenPacket("ip4:icmp", "0.0.0.0"); return err })
	defer c.Close()
	msg, err := (&icmp.Message{Type: ipv4.ICMPTypeEcho, Body: &icmp.Echo{ID: 77, Seq: 1, Data: make([]byte, size)}}).Marshal(nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.WriteTo(msg, &net.IPAddr{IP: net.ParseIP(dst)}); err != nil {
		t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(reachLimit))
	buf := make([]byte, 1<<16)
	for {
		n, who, err := c.ReadFrom(buf)
		if err != nil {
			t.Fatalf("ping %s with %d bytes: %v", dst, size, err)
		}
		m, err := icmp.ParseMessage(1, buf[:n])
		if err == nil && m.Type == ipv4.ICMPTypeEchoReply && who.String() == dst && n == len(msg) {
			return
		}
	}
}

// refused wants the far pod's "port unreachable" to arrive at the socket that asked.
func refused(t *testing.T, from *room, dst string) {
	t.Helper()
	c, err := from.dial("udp4", dst, reachLimit)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(reachLimit))
	if _, err := c.Write([]byte("anybody?")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Fatalf("%v, want connection refused", err)
	}
}

// A peer reaches pods and the control port; it reaches nothing else of the node,
// whichever of the node's addresses in the pod CIDR it tries.
func TestPeersDoNotReachTheNode(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.apply(t)
	for _, at := range []string{":10250", ":6443", ":7442"} {
		answer(w.b.node.listen(at))
	}
	answer(w.b.pod.listen(":80"))
	nodePort(t, w.b.node, 30080, netip.MustParseAddrPort("10.42.0.7:80"))

	reach := func(from *room, addr string, limit time.Duration) bool {
		c, err := from.dial("tcp4", addr, limit)
		if err != nil {
			if timeout, ok := errors.AsType[net.Error](err); !ok || !timeout.Timeout() {
				t.Errorf("%s: %v, want silence", addr, err)
			}
			return false
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(reachLimit))
		b, err := io.ReadAll(c)
		return err == nil && string(b) == "here"
	}
	for name, from := range map[string]*room{"pod": w.a.pod, "node": w.a.node} {
		for _, addr := range []string{"10.200.0.7:80", "10.200.255.254:7442"} {
			if !reach(from, addr, reachLimit) {
				t.Errorf("%s of a does not reach %s", name, addr)
			}
		}
	}
	// The way there works: now what is not answered in the window is not let in. All are
	// asked at once, beside what may be reached.
	const window = 2 * time.Second
	var asked sync.WaitGroup
	for name, from := range map[string]*room{"pod": w.a.pod, "node": w.a.node} {
		for _, addr := range []string{"10.200.255.254:10250", "10.200.255.254:30080", "10.200.0.1:7442", "10.200.0.1:6443", "10.200.0.1:10250", "10.200.0.1:30080"} {
			asked.Go(func() {
				if reach(from, addr, window) {
					t.Errorf("%s of a reaches %s", name, addr)
				}
			})
		}
		asked.Go(func() {
			if !reach(from, "10.200.0.7:80", window) {
				t.Errorf("not judged: %s of a does not reach a pod within the time of what it may not reach", name)
			}
		})
	}
	asked.Wait()
	// The node itself, and its pods, are not kept from any of it.
	for _, addr := range []string{"10.42.0.1:10250", "10.42.0.1:30080", "10.42.255.254:6443"} {
		if !reach(w.b.pod, addr, reachLimit) {
			t.Errorf("b's own pod does not reach %s", addr)
		}
	}
}

func answer(l net.Listener) {
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("here"))
			c.Close()
		}
	}()
}

// nodePort does what kube-proxy does for a NodePort of the pod.
func nodePort(t *testing.T, node *room, port uint16, pod netip.AddrPort) {
	t.Helper()
	c, err := nftables.New(nftables.WithNetNSFd(int(node.ns)))
	if err != nil {
		t.Fatal(err)
	}
	table := c.AddTable(&nftables.Table{Name: "kube-proxy", Family: nftables.TableFamilyIPv4})
	chain := c.AddChain(&nftables.Chain{Name: "prerouting", Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest})
	post := c.AddChain(&nftables.Chain{Name: "postrouting", Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource})
	nft.Rule(c, chain, nft.TCPPort(port), []expr.Any{
		&expr.Immediate{Register: 1, Data: pod.Addr().AsSlice()},
		&expr.Immediate{Register: 2, Data: binaryutil.BigEndian.PutUint16(pod.Port())},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1, RegProtoMin: 2},
	})
	nft.Rule(c, post, nft.TCPPort(pod.Port()), []expr.Any{&expr.Masq{}})
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
}
