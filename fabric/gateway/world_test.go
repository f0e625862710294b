package gateway

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"

	"rivulet/fabric/gateway/gatewayproto"
	"rivulet/fabric/tunnel"
	"rivulet/fabric/wgkey"
)

// The world of these tests: home is a network stack too, whose pods are what it is
// told to do with connections; the pods here are sockets on the loopback.
var (
	homePods = netip.MustParsePrefix("10.42.0.0/16")
	homePod  = netip.MustParseAddr("10.42.0.5")
	seenAs   = netip.MustParsePrefix("10.200.0.0/16")
	own      = netip.MustParseAddr("10.200.255.254")
	seenPod  = netip.MustParseAddr("10.200.3.7")
	realPod  = netip.MustParseAddr("127.0.0.1")
)

type world struct {
	t    *testing.T
	home *netstack
	far  *tunnel.Userspace // home's end
	*Gateway
	cfg gatewayproto.Gateway
}

func newWorld(t *testing.T) *world {
	t.Helper()
	log := slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelDebug}))
	w := &world{t: t}
	var err error
	if w.home, err = newNetstack(func(netip.Addr) bool { return true }); err != nil {
		t.Fatal(err)
	}
	w.far = tunnel.NewUserspace(w.home, log.With("side", "home"))
	t.Cleanup(w.far.Close)
	if w.Gateway, err = New("127.0.0.1", log.With("side", "gateway")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	w.port = freeUDP(t)
	homeKey, homePub := newKeys(t)
	private, public := newKeys(t)
	if err := w.far.Apply(tunnel.Config{
		PrivateKey: homeKey, Port: freeUDP(t), Interface: "netstack", MTU: MTU, Address: netip.MustParseAddr("10.42.255.254"),
		PodCIDR: homePods, Peers: []tunnel.Peer{{ID: "campus", PublicKey: public, LocalMappedCIDR: homePods, PeerMappedCIDR: seenAs}},
	}); err != nil {
		t.Fatal(err)
	}
	w.cfg = gatewayproto.Gateway{
		Generation: 1, PrivateKey: private.Text(), PublicKey: homePub.String(), Address: own, Prefix: seenAs, Home: homePods,
		Pods: map[netip.Addr]netip.Addr{seenPod: realPod},
	}
	w.apply()
	return w
}

func (w *world) apply() {
	w.t.Helper()
	if err := w.Apply(w.cfg); err != nil {
		w.t.Fatal(err)
	}
}

// stream joins the two as the API server would, and returns what cuts it.
func (w *world) stream() (cut func()) {
	w.t.Helper()
	l := listen(w.t)
	near, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		w.t.Fatal(err)
	}
	far, err := l.Accept()
	if err != nil {
		w.t.Fatal(err)
	}
	w.far.Accept(far, nil)
	if err := w.tunnel.Begin(w.t.Context(), near, w.state.Load().home); err != nil {
		w.t.Fatal(err)
	}
	return func() { near.Close(); far.Close() }
}

// lostPort is one at which home's pods do not answer, as those of a node that is gone.
const lostPort = 10

// echoAtHome has every connection to home's pods answered with what it says. from
// gets who asked.
func (w *world) echoAtHome() (from chan netip.AddrPort) {
	from = make(chan netip.AddrPort, 100)
	w.home.onTCP(func(who, to netip.AddrPort, a *arrival) {
		switch to.Port() {
		case 9:
			a.refuse()
			return
		case lostPort:
			a.ignore()
			return
		}
		c, err := a.accept()
		if err != nil {
			return
		}
		from <- who
		defer c.Close()
		io.Copy(c, c)
		c.CloseWrite()
	})
	w.home.onUDP(func(who, to netip.AddrPort, accept func() (*gonet.UDPConn, error)) {
		c, err := accept()
		if err != nil {
			return
		}
		from <- who
		go func() {
			defer c.Close()
			buf := make([]byte, maxDatagram)
			for {
				n, err := c.Read(buf)
				if err != nil {
					return
				}
				c.Write(buf[:n])
			}
		}()
	})
	return from
}

// podEcho is a pod here that answers with what it hears, on TCP and UDP.
func podEcho(t *testing.T) (port uint16) {
	t.Helper()
	l := listen(t)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				io.Copy(c, c)
				c.(*net.TCPConn).CloseWrite()
			}()
		}
	}()
	u, err := net.ListenPacket("udp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { u.Close() })
	go func() {
		buf := make([]byte, maxDatagram)
		for {
			n, from, err := u.ReadFrom(buf)
			if err != nil {
				return
			}
			u.WriteTo(buf[:n], from)
		}
	}()
	return netip.MustParseAddrPort(l.Addr().String()).Port()
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// serve makes a Service of one port and returns where pods here reach it.
func (w *world) serve(protocol string, ends ...netip.AddrPort) string {
	w.t.Helper()
	listen := uint16(gatewayproto.FirstPort)
	for _, s := range w.cfg.Services {
		listen = max(listen, s.Ports[0].Listen+1)
	}
	for ; !free(protocol, listen); listen++ {
	}
	w.cfg.Generation++
	w.cfg.Services = append(w.cfg.Services, gatewayproto.Service{
		Namespace: "shop", Name: fmt.Sprint("web", listen), IP: netip.MustParseAddr("10.43.0.9"),
		Ports: []gatewayproto.Port{{Protocol: protocol, Port: 80, Listen: listen, Endpoints: ends}},
	})
	w.apply()
	return fmt.Sprintf("127.0.0.1:%d", listen)
}

func free(protocol string, port uint16) bool {
	at := fmt.Sprintf("127.0.0.1:%d", port)
	if protocol == "udp" {
		c, err := net.ListenPacket("udp", at)
		if err == nil {
			c.Close()
		}
		return err == nil
	}
	l, err := net.Listen("tcp", at)
	if err == nil {
		l.Close()
	}
	return err == nil
}

func freeUDP(t *testing.T) uint16 {
	t.Helper()
	c, err := net.ListenPacket("udp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return uint16(c.LocalAddr().(*net.UDPAddr).Port)
}

func newKeys(t *testing.T) (wgkey.Private, wgkey.Public) {
	t.Helper()
	k, err := wgkey.Generate()
	if err != nil {
		t.Fatal(err)
	}
	return k, k.Public()
}

// dialHome is a pod of home's that connects to a pod here.
func (w *world) dialHome(to netip.AddrPort, limit time.Duration) (*stackConn, error) {
	ctx, cancel := context.WithTimeout(w.t.Context(), limit)
	defer cancel()
	return w.home.dialTCP(ctx, homePod, to)
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	if testing.Verbose() {
		fmt.Printf("%s: %s", w.t.Name(), p)
	}
	return len(p), nil
}

func do(t *testing.T, method, url, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(raw)
}
