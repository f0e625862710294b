package gateway

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime/debug"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"rivulet/fabric/gateway/gatewayproto"
	"rivulet/fabric/nft"
	"rivulet/fabric/reach"
	"rivulet/fabric/tunnel"
	"rivulet/fabric/wgkey"
	"rivulet/test/harness/await"
	"rivulet/test/harness/testns"
)

// The world of these tests has the real tunnel at home, with its TUN, in a room; a peer
// with one in another, and the gateway in a third, whose pods are on this machine's
// loopback:
//
//	home 192.168.77.1 ── 192.168.77.2 peer         10.42.255.254 each, seen as 10.201…
//	     192.168.78.1 ── 192.168.78.2 gateway      seen as 10.200…
type wired struct {
	home, there testns.Room
	gateway     *Gateway
	cfg         gatewayproto.Gateway
	tunnel      *tunnel.Controller // home's
}

func newWired(t *testing.T) *wired {
	t.Helper()
	w := &wired{home: testns.New(t), there: testns.New(t)}
	peer := testns.New(t)
	w.home.Cable("eth0", peer, "eth0")
	w.home.Cable("eth1", w.there, "eth0")
	give := func(r testns.Room, name, cidr string) { r.Do(func() error { return testns.Give(name, cidr) }) }
	give(w.home, "eth0", "192.168.77.1/24")
	give(peer, "eth0", "192.168.77.2/24")
	give(w.home, "eth1", "192.168.78.1/24")
	give(w.there, "eth0", "192.168.78.2/24")
	log := slog.New(slog.NewTextHandler(testWriter{t}, nil))
	homeKey, homePub := newKeys(t)
	peerKey, peerPub := newKeys(t)
	gateKey, gatePub := newKeys(t)
	address := netip.MustParseAddr("10.42.255.254")
	serve := func(r testns.Room, key wgkey.Private, peers ...tunnel.Peer) *tunnel.Controller {
		dir := t.TempDir()
		all := reach.Rules{Interface: "riv0", Own: address, Whole: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}}
		if _, err := nft.NewGuard(int(r.NS), log).Tables(reach.Table, reach.Family).Apply([]nft.Program{reach.Program(all)}); err != nil {
			t.Fatal(err)
		}
		c := tunnel.NewController(tunnel.ControllerConfig{
			Helper: testns.Program(t, r.NS, roleVar+"=tunnel"), Socket: filepath.Join(dir, "tunnel.sock"), PIDFile: filepath.Join(dir, "tunnel.pid"),
			LogFile: filepath.Join(dir, "tunnel.log"), Version: tunnel.HelperVersion, Log: log,
		})
		if err := c.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), long)
			defer cancel()
			if err := c.Stop(ctx); err != nil {
				t.Errorf("stop: %v", err)
			}
		})
		if err := c.Apply(t.Context(), tunnel.Config{PrivateKey: key, Port: 7442, Interface: "riv0", MTU: 1420, Address: address, ControlPort: 7442, PodCIDR: homePods, Peers: peers}); err != nil {
			t.Fatal(err)
		}
		return c
	}
	w.tunnel = serve(w.home, homeKey,
		tunnel.Peer{ID: "peer", PublicKey: peerPub, Endpoint: netip.MustParseAddrPort("192.168.77.2:7442"), LocalMappedCIDR: netip.MustParsePrefix("10.202.0.0/16"), PeerMappedCIDR: netip.MustParsePrefix("10.201.0.0/16")},
		tunnel.Peer{ID: "gateway", PublicKey: gatePub, LocalMappedCIDR: homePods, PeerMappedCIDR: seenAs})
	serve(peer, peerKey, tunnel.Peer{ID: "home", PublicKey: homePub, Endpoint: netip.MustParseAddrPort("192.168.77.1:7442"), LocalMappedCIDR: netip.MustParsePrefix("10.201.0.0/16"), PeerMappedCIDR: netip.MustParsePrefix("10.202.0.0/16")})
	var err error
	if w.gateway, err = New("127.0.0.1", log.With("side", "gateway")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.gateway.Close)
	w.cfg = gatewayproto.Gateway{Generation: 1, PrivateKey: gateKey.Text(), PublicKey: homePub.String(), Address: own, Prefix: seenAs, Home: homePods,
		UDP:  []netip.AddrPort{netip.MustParseAddrPort("192.168.78.1:7442")},
		Pods: map[netip.Addr]netip.Addr{seenPod: realPod}}
	peer.Do(func() error { // the one port of the peer's own that is open through the tunnel
		l, err := net.Listen("tcp", "10.42.255.254:7442")
		if err == nil {
			t.Cleanup(func() { l.Close() })
			go drain(l)
		}
		return err
	})
	return w
}

// drain answers each connection with one byte when the client has sent all, or, to a client that sends nothing, with as
// many bytes as a test moves.
func drain(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			n, _ := io.Copy(io.Discard, c)
			if n > 0 {
				c.Write([]byte{1})
				return
			}
			chunk := make([]byte, 256<<10)
			for sent := 0; sent < moved; sent += len(chunk) {
				if _, err := c.Write(chunk); err != nil {
					return
				}
			}
		}()
	}
}

// moved is how many bytes a comparison of speeds moves in each of its rounds, of which the best counts: others use this
// machine, too. A measurement takes more.
var moved, rounds = 2 << 20, 3

func init() {
	if os.Getenv(profilesVar) != "" {
		moved, rounds = 64<<20, 15
	}
}

// dial connects from home.
func (w *wired) dial(t *testing.T, to string) (c *net.TCPConn) {
	t.Helper()
	await.True(t, long, "a connection to "+to, func() bool {
		w.home.Do(func() error {
			d := net.Dialer{Timeout: 3 * time.Second}
			if one, err := d.DialContext(context.Background(), "tcp", to); err == nil {
				c = one.(*net.TCPConn)
			}
			return nil
		})
		return c != nil
	})
	c.SetDeadline(time.Now().Add(2 * long))
	return c
}

// send is how long the bytes take from home to the address, in one TCP connection.
func (w *wired) send(t *testing.T, to string, bytes int) time.Duration {
	t.Helper()
	c := w.dial(t, to)
	defer c.Close()
	start := time.Now()
	chunk := make([]byte, 256<<10)
	for sent := 0; sent < bytes; sent += len(chunk) {
		if _, err := c.Write(chunk); err != nil {
			t.Fatal(err)
		}
	}
	c.CloseWrite()
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	return time.Since(start)
}

// fetch is how long the moved bytes take from the address to home.
func (w *wired) fetch(t *testing.T, to string) time.Duration {
	t.Helper()
	c := w.dial(t, to)
	defer c.Close()
	start := time.Now()
	c.CloseWrite()
	if n, err := io.Copy(io.Discard, struct{ io.Reader }{c}); err != nil || n != int64(moved) {
		t.Fatalf("%d bytes: %v", n, err)
	}
	return time.Since(start)
}

// path is the kind of the path in use.
func (w *wired) path() string {
	st, err := w.gateway.tunnel.Status()
	if err != nil || len(st.Peers) == 0 || len(st.Peers[0].Paths) == 0 || !st.Peers[0].Paths[0].Used {
		return ""
	}
	return string(st.Peers[0].Paths[0].Kind)
}

// speeds checks that bytes pass the gateway as they are, and compares how fast they do, both ways, with what passes the
// tunnel to a peer, whose stack is the kernel's. With RIVULET_TEST_PROFILES=DIR it measures, and writes profiles of this
// process, gateway and load, and of home's tunnel. `make bench` has the figures between devices.
func (w *wired) speeds(t *testing.T) {
	t.Helper()
	sink := listen(t)
	go drain(sink)
	at := netip.AddrPortFrom(seenPod, netip.MustParseAddrPort(sink.Addr().String()).Port()).String()
	some := make([]byte, 1<<20)
	_, _ = rand.NewChaCha8([32]byte{2}).Read(some) // never fails
	if got := say(t, w.dial(t, netip.AddrPortFrom(seenPod, podEcho(t)).String()), some); sha256.Sum256(got) != sha256.Sum256(some) {
		t.Errorf("%d bytes came back as %d others", len(some), len(got))
	}
	mbit := func(d time.Duration) float64 { return float64(moved) * 8 / d.Seconds() / 1e6 }
	for _, way := range []struct {
		name string
		move func(string) time.Duration
	}{
		{"from home", func(to string) time.Duration { return w.send(t, to, moved) }},
		{"to home", func(to string) time.Duration { return w.fetch(t, to) }},
	} {
		lan, campus := time.Duration(1<<62), time.Duration(1<<62)
		slowest := time.Duration(0)
		var used cpu
		stop := profiled(t, strings.ReplaceAll(t.Name()+" "+way.name, " ", "-"))
		for range rounds {
			lan = min(lan, way.move("10.201.255.254:7442"))
			before := w.cpu(t)
			took := way.move(at)
			campus, slowest = min(campus, took), max(slowest, took)
			used.add(w.cpu(t), before)
		}
		stop()
		gb := float64(rounds) * float64(moved) / 1e9
		t.Logf("%s: a peer %.0f Mbit/s, a pod behind the gateway %.0f Mbit/s: %.2f, at least %.0f; CPU s/GB: gateway and load %.2f, home's tunnel %.2f",
			way.name, mbit(lan), mbit(campus), lan.Seconds()/campus.Seconds(), mbit(slowest), used.gateway/gb, used.tunnel/gb)
		if campus > 20*lan {
			t.Errorf("%s: the gateway is slower than a twentieth of the tunnel to a peer", way.name)
		}
	}
}

// cpu is the CPU time of this process, which is the gateway and the load, and of home's tunnel, s.
type cpu struct{ gateway, tunnel float64 }

func (c *cpu) add(now, before cpu) {
	c.gateway += now.gateway - before.gateway
	c.tunnel += now.tunnel - before.tunnel
}

func (w *wired) cpu(t *testing.T) cpu {
	t.Helper()
	st, err := w.tunnel.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return cpu{gateway: spent(t, os.Getpid()), tunnel: spent(t, st.PID)}
}

// spent is the CPU time of a process, from its statistics in ticks of 10 ms.
func spent(t *testing.T, pid int) float64 {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	f := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
	user, err1 := strconv.Atoi(f[11])
	system, err2 := strconv.Atoi(f[12])
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	return float64(user+system) / 100
}

const profilesVar = "RIVULET_TEST_PROFILES"

// profiled writes a CPU profile of this process, if they are wanted, until the returned function is called.
func profiled(t *testing.T, name string) func() {
	t.Helper()
	dir := os.Getenv(profilesVar)
	if dir == "" {
		return func() {}
	}
	f, err := os.Create(filepath.Join(dir, name+".pprof"))
	if err != nil {
		t.Fatal(err)
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		t.Fatal(err)
	}
	return func() { pprof.StopCPUProfile(); f.Close() }
}

// The gateway finds home by UDP, without any stream.
func TestGatewayOverUDP(t *testing.T) {
	w := newWired(t)
	w.there.Do(func() error { return w.gateway.Apply(w.cfg) })
	await.True(t, long, "the gateway reaches home by UDP", func() bool { return w.path() == "direct" })
	w.speeds(t)
}

// A stream is the only path: home's end of a connection is handed to the tunnel, as that of a port-forward is.
func TestGatewayOverStream(t *testing.T) {
	w := newWired(t)
	w.cfg.UDP, w.cfg.StreamsOnly = nil, true
	w.there.Do(func() error { return w.gateway.Apply(w.cfg) })
	w.stream(t)
	w.speeds(t)
}

// stream opens the stream and waits until it is the path.
func (w *wired) stream(t *testing.T) {
	t.Helper()
	l := listen(t)
	near, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	far, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.tunnel.HandOver(far, nil); err != nil {
		t.Fatal(err)
	}
	far.Close()
	if err := w.gateway.tunnel.Begin(t.Context(), near, w.gateway.state.Load().home); err != nil {
		t.Fatal(err)
	}
	await.True(t, long, "the gateway reaches home by the stream", func() bool { return w.path() == "stream" })
}

// While bytes pass in packets of any size by the stream, UDP becomes the path, which has an MTU: all of them arrive.
func TestGatewayChangesPath(t *testing.T) {
	w := newWired(t)
	udp := w.cfg.UDP
	w.cfg.UDP, w.cfg.StreamsOnly = nil, true
	w.there.Do(func() error { return w.gateway.Apply(w.cfg) })
	w.stream(t)
	c := w.dial(t, netip.AddrPortFrom(seenPod, podEcho(t)).String())
	defer c.Close()
	rnd := func() io.Reader { return rand.NewChaCha8([32]byte{1}) }
	sent, got := sha256.New(), sha256.New()
	var stop atomic.Bool
	var wrote int64
	done := make(chan error, 1)
	go func() {
		var err error
		for from := rnd(); err == nil && (!stop.Load() || wrote < 8<<20); wrote += 64 << 10 {
			_, err = io.CopyN(io.MultiWriter(c, sent), from, 64<<10)
		}
		done <- errors.Join(err, c.CloseWrite())
	}()
	go func() {
		await.True(t, long, "some bytes have passed by the stream", func() bool { return w.cpu(t).tunnel > 0.1 })
		w.cfg.Generation++
		w.cfg.UDP, w.cfg.StreamsOnly = udp, false
		w.there.Do(func() error { return w.gateway.Apply(w.cfg) })
		await.True(t, long, "UDP is the path", func() bool { return w.path() == "direct" })
		stop.Store(true)
	}()
	n, err := io.Copy(got, struct{ io.Reader }{c})
	if err := errors.Join(err, <-done); err != nil || n != wrote {
		t.Fatalf("%d bytes of %d came back: %v", n, wrote, err)
	}
	if !bytes.Equal(sent.Sum(nil), got.Sum(nil)) {
		t.Error("other bytes came back")
	}
}

const roleVar = "GATEWAY_TEST_ROLE"

func TestMain(m *testing.M) {
	testns.Enter()
	if os.Getenv(roleVar) == "tunnel" {
		log := slog.New(slog.NewTextHandler(os.Stderr, nil))
		debug.SetMemoryLimit(128 << 20) // as on a machine of 2 GB and more
		if dir := os.Getenv(profilesVar); dir != "" {
			f, err := os.Create(filepath.Join(dir, fmt.Sprintf("tunnel-%d.pprof", os.Getpid())))
			if err == nil {
				err = pprof.StartCPUProfile(f)
			}
			if err != nil {
				log.Error("profile", "error", err)
			}
		}
		if err := tunnel.NewServer(tunnel.HelperVersion, log).Serve(context.Background(), os.Args[2]); err != nil {
			log.Error("serve", "error", err)
			os.Exit(1)
		}
		pprof.StopCPUProfile() // if there is one
		os.Exit(0)
	}
	os.Exit(m.Run())
}
