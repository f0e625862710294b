package attacker

import (
	"context"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"

	"golang.zx2c4.com/wireguard/device"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"rivulet/test/harness/await"
	"rivulet/test/harness/silence"
)

// Peer is the attacker as the peer of one device.
type Peer struct {
	*Attacker
	Device string // its address on the LAN
	Server string // its ID
	// As is the prefix under which the device sees the attacker, See the one that the
	// attacker has chosen for the device's pods.
	As, See netip.Prefix
	// Pods and Tunnel are the device's own prefix and address in the tunnel.
	Pods   netip.Prefix
	Tunnel netip.Addr

	inner  *inner
	server []byte // certificate, DER
}

// Options of a peer.
type Options struct {
	// See is what the device's pods are seen as; 10.99.0.0/16 without.
	See netip.Prefix
	// Change changes each message of the exchange before it is sent.
	Change func(map[string]any)
	// Serve answers what the device asks this attacker as its provider; nil answers pings only.
	Serve http.Handler
	// Silent leaves out the control port inside the tunnel: no ping is answered.
	Silent bool
}

// answer is what of the device's message counts.
type answer struct {
	ID            string       `json:"id"`
	WireGuardKey  string       `json:"wireguardKey"`
	TunnelPort    uint16       `json:"tunnelPort"`
	TunnelAddress netip.Addr   `json:"tunnelAddress"`
	PodCIDR       netip.Prefix `json:"podCIDR"`
	SeeYouAs      netip.Prefix `json:"seeYouAs"`
	SeenAs        netip.Prefix `json:"seenAs"`
	Sequence      uint64       `json:"sequence"`
}

// RefusedError is what TryPeer returns when the device does not want it.
type RefusedError struct{ Reply }

func (e *RefusedError) Error() string { return "refused: " + e.String() }

// Peer is TryPeer; a refusal ends the test.
func (a *Attacker) Peer(ctx context.Context, device string, o Options) *Peer {
	a.t.Helper()
	p, err := a.TryPeer(ctx, device, o)
	if err != nil {
		a.t.Fatal(err)
	}
	return p
}

// TryPeer runs the exchange with a device and opens the tunnel.
func (a *Attacker) TryPeer(ctx context.Context, device string, o Options) (*Peer, error) {
	if !o.See.IsValid() {
		o.See = netip.MustParsePrefix("10.99.0.0/16")
	}
	p := &Peer{Attacker: a, Device: device, See: o.See}
	var last answer
	for range 6 {
		m := a.Message()
		if last.Sequence > 0 {
			m["seeYouAs"], m["seenAs"], m["heard"] = p.See, last.SeeYouAs, last.Sequence
		}
		if o.Change != nil {
			o.Change(m)
		}
		r, err := a.Post(ctx, device, "/v1/peering", m)
		if err != nil {
			return nil, err
		}
		if r.Status != http.StatusOK {
			return nil, &RefusedError{r}
		}
		p.Server = r.Server
		if err := json.Unmarshal(r.Body, &last); err != nil {
			return nil, err
		}
		if last.SeenAs == p.See {
			break
		}
	}
	if last.SeenAs != p.See {
		return nil, fmt.Errorf("attacker: %s does not repeat the prefix: %+v", device, last)
	}
	p.As, p.Pods, p.Tunnel = last.SeeYouAs, last.PodCIDR, last.TunnelAddress
	if err := p.open(last, o); err != nil {
		return nil, err
	}
	return p, nil
}

// open makes the tunnel, a network stack inside it, and a control port there.
func (p *Peer) open(their answer, o Options) error {
	inner, err := newInner()
	if err != nil {
		return err
	}
	dev := device.NewDevice(inner, &bind{room: p.room}, &device.Logger{Verbosef: device.DiscardLogf, Errorf: slog.NewLogLogger(slog.Default().Handler(), slog.LevelError).Printf})
	p.t.Cleanup(dev.Close)
	key, err := hexKey(their.WireGuardKey)
	if err != nil {
		return err
	}
	if err := dev.IpcSet(fmt.Sprintf("private_key=%s\nlisten_port=%d\npublic_key=%s\nendpoint=%s\nallowed_ip=%s\npersistent_keepalive_interval=5\n",
		hex.EncodeToString(p.private.Bytes()), Port, key, net.JoinHostPort(p.Device, fmt.Sprint(their.TunnelPort)), p.See)); err != nil {
		return err
	}
	if err := dev.Up(); err != nil {
		return err
	}
	p.inner = inner
	if o.Silent {
		return nil
	}
	l, err := inner.listen(netip.AddrPortFrom(p.Own(p.TunnelAddress), Port))
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/ping", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	if o.Serve != nil {
		mux.Handle("/", o.Serve)
	}
	server := &http.Server{Handler: mux, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
	p.t.Cleanup(func() { server.Close() })
	go server.Serve(tls.NewListener(l, p.TLS()))
	return nil
}

// Own is an address of the attacker's pod CIDR as the device sees it.
func (p *Peer) Own(addr netip.Addr) netip.Addr { return mapped(addr, p.PodCIDR, p.As) }

// At is an address of the device's pod CIDR as the attacker sees it; others stay.
func (p *Peer) At(addr netip.Addr) netip.Addr { return mapped(addr, p.Pods, p.See) }

func mapped(addr netip.Addr, from, to netip.Prefix) netip.Addr {
	if !from.Contains(addr) {
		return addr
	}
	a, b := addr.As4(), to.Addr().As4()
	for i := range a {
		host := byte(0xff)
		if bits := to.Bits() - 8*i; bits >= 8 {
			host = 0
		} else if bits > 0 {
			host = 0xff >> bits
		}
		a[i] = a[i]&host | b[i]
	}
	return netip.AddrFrom4(a)
}

// Dial opens a connection through the tunnel to an address of the device, as the
// device itself calls it: a pod's, or the tunnel's own.
func (p *Peer) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		return nil, err
	}
	return p.DialFrom(ctx, p.Own(p.TunnelAddress), network, to)
}

// DialFrom is Dial from any address, as the device sees it: one of p.As, or a forged one.
func (p *Peer) DialFrom(ctx context.Context, from netip.Addr, network string, to netip.AddrPort) (net.Conn, error) {
	to = netip.AddrPortFrom(p.At(to.Addr()), to.Port())
	if network == "udp" {
		return p.inner.dialUDP(from, to)
	}
	return p.inner.dialTCP(ctx, from, to)
}

// Packet sends an IPv4 packet through the tunnel as it is.
func (p *Peer) Packet(ctx context.Context, raw []byte) error {
	select {
	case p.inner.raw <- raw:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Reached dials addresses of the device through the tunnel, all at once, and returns those that are reached; what is
// refused has been, too. The control port has to answer in the same time; where it does not nothing is shown, and the
// test fails.
func (p *Peer) Reached(ctx context.Context, addrs ...string) []string {
	p.t.Helper()
	return p.reached(ctx, addrs, func(ctx context.Context, addr string) error {
		return hangUp(p.Dial(ctx, "tcp", addr))
	})
}

// ReachedFrom is Reached for one address, from several as the device sees them, and returns those.
func (p *Peer) ReachedFrom(ctx context.Context, to netip.AddrPort, from ...netip.Addr) []string {
	p.t.Helper()
	var names []string
	for _, a := range from {
		names = append(names, a.String())
	}
	return p.reached(ctx, names, func(ctx context.Context, from string) error {
		return hangUp(p.DialFrom(ctx, netip.MustParseAddr(from), "tcp", to))
	})
}

func (p *Peer) reached(ctx context.Context, tries []string, dial func(context.Context, string) error) []string {
	p.t.Helper()
	control := func(ctx context.Context) error { return hangUp(p.Dial(ctx, "tcp", p.Control())) }
	reached, err := silence.Beside(ctx, control, tries, func(ctx context.Context, try string) bool {
		err := dial(ctx, try)
		return err == nil || ctx.Err() == nil && !errors.Is(err, context.DeadlineExceeded)
	})
	if err != nil {
		p.t.Fatalf("the control port in the tunnel of %s: %v", p.Name, err)
	}
	return reached
}

func hangUp(c net.Conn, err error) error {
	if err == nil {
		c.Close()
	}
	return err
}

// Control is the address of the device's control port in the tunnel.
func (p *Peer) Control() string { return netip.AddrPortFrom(p.Tunnel, Port).String() }

// Client is an HTTP client of the control port inside the tunnel, with HTTP/1.1 and as
// many connections as requests.
func (p *Peer) Client() *http.Client {
	return &http.Client{Transport: &http.Transport{TLSClientConfig: p.TLS(), DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return p.Dial(ctx, "tcp", p.Control())
	}}}
}

// Do sends a request to the control port inside the tunnel.
func (p *Peer) Do(ctx context.Context, method, path string, body any, header http.Header) (Reply, error) {
	client := p.Client()
	defer client.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	return do(ctx, client, method, "https://"+p.Control()+path, body, header)
}

// Config is that of a client of the device's Kubernetes API as this consumer.
func (p *Peer) Config(ctx context.Context) (*rest.Config, error) {
	if p.server == nil {
		raw, err := p.Dial(ctx, "tcp", p.Control())
		if err != nil {
			return nil, err
		}
		c := tls.Client(raw, p.TLS())
		defer c.Close()
		if err := c.HandshakeContext(ctx); err != nil {
			return nil, err
		}
		p.server = c.ConnectionState().PeerCertificates[0].Raw
	}
	key, err := pkcs8(p.cert.PrivateKey)
	if err != nil {
		return nil, err
	}
	return &rest.Config{
		Host: "https://" + p.Control() + "/k8s", QPS: 500, Burst: 1000, Timeout: time.Minute,
		TLSClientConfig: rest.TLSClientConfig{ServerName: p.Server,
			CertData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.cert.Certificate[0]}), KeyData: key,
			CAData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.server})},
		Dial: func(ctx context.Context, _, _ string) (net.Conn, error) { return p.Dial(ctx, "tcp", p.Control()) },
	}, nil
}

// Kubernetes is a client of the device's Kubernetes API as this consumer.
func (p *Peer) Kubernetes(ctx context.Context) kubernetes.Interface {
	p.t.Helper()
	cfg, err := p.Config(ctx)
	if err != nil {
		p.t.Fatal(err)
	}
	c, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		p.t.Fatal(err)
	}
	return c
}

// Twin has the device make the twin of a namespace, and returns its name once its
// rights and its quota are there.
func (p *Peer) Twin(ctx context.Context, home string) string {
	p.t.Helper()
	var twin struct{ Name string }
	await.NoError(p.t, ctx, time.Minute, "a twin of "+home, func() error {
		r, err := p.Do(ctx, http.MethodPut, "/v1/namespaces/"+home, nil, nil)
		if err != nil || r.Status >= 300 || json.Unmarshal(r.Body, &twin) != nil || twin.Name == "" {
			return fmt.Errorf("%v %w", r, err)
		}
		return nil
	})
	return twin.Name
}
