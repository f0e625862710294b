// Package attacker is a machine on a lab's LAN that means harm. It speaks what devices
// speak with code of its own: an Ed25519 identity and mutual TLS 1.3, the peering
// exchange, multicast DNS, and WireGuard in user space. What it sends is a map, a DNS
// message or a packet that a test may change before it goes out, so nothing that the
// product checks on its own side of the wire stands in the way.
//
//	a := attacker.New(t, lab, "mallory", "10.77.0.66")
//	p := a.Peer(ctx, "10.77.0.11")           a peer of device a, with a tunnel
//	twin := p.Twin(ctx, "lab")               a namespace there
//	p.Kubernetes()                           its API, as this consumer
//	p.Dial(ctx, "tcp", "10.42.0.7:80")       a packet to an address of the device
//
// An attack is a test in test/suites/hostile: it makes attackers of its own (each has its own
// address on the LAN), shows what they get, and leaves the devices as they were; what
// an attacker has at a device ends with `rivulet unpeer --force`, which Peer does at
// the end of the test.
package attacker

import (
	"bytes"
	"context"
	"crypto/ecdh"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base32"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"rivulet/test/harness/lab"
	"rivulet/test/harness/testns"
)

// Port is the control port and the tunnel's, TCP and UDP.
const Port = 7442

// Attacker is one machine with one identity.
type Attacker struct {
	ID   string
	Name string
	Addr netip.Addr // on the LAN
	// PodCIDR and TunnelAddress are what it tells of itself.
	PodCIDR       netip.Prefix
	TunnelAddress netip.Addr
	// WireGuardKey is what it tells as its key, base64. Peer needs the one it was born with.
	WireGuardKey string

	t        testing.TB
	room     testns.Room
	cert     tls.Certificate
	private  *ecdh.PrivateKey
	sequence atomic.Uint64
}

// New attaches a machine with the address (of the lab's LAN, /24) to the lab. It is
// gone with the test.
func New(t testing.TB, l *lab.Lab, name, addr string) *Attacker {
	t.Helper()
	room := testns.New(t)
	port := fmt.Sprintf("x%x", sha256.Sum256([]byte(t.Name()+name+addr)))[:12]
	if err := l.Attach(port, int(room.NS), addr+"/24"); err != nil {
		t.Fatal(err)
	}
	a := &Attacker{t: t, room: room, Name: name, Addr: netip.MustParseAddr(addr),
		PodCIDR: netip.MustParsePrefix("10.42.0.0/16"), TunnelAddress: netip.MustParseAddr("10.42.255.254")}
	a.NewIdentity()
	return a
}

// NewIdentity makes it somebody else, with other keys.
func (a *Attacker) NewIdentity() {
	a.t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	sum := sha256.Sum256(public)
	a.ID = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding).EncodeToString(sum[:20])
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{a.ID},
		NotAfter: time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC), BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	if err != nil {
		a.t.Fatal(err)
	}
	a.cert = tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private}
	if a.private, err = ecdh.X25519().GenerateKey(rand.Reader); err != nil {
		a.t.Fatal(err)
	}
	a.WireGuardKey = base64.StdEncoding.EncodeToString(a.private.PublicKey().Bytes())
	a.sequence.Store(uint64(time.Now().Unix()) << 24)
}

// Dial opens a connection from the LAN.
func (a *Attacker) Dial(ctx context.Context, network, addr string) (c net.Conn, err error) {
	return c, a.room.Try(func() (e error) {
		c, e = (&net.Dialer{}).DialContext(ctx, network, addr)
		return e
	})
}

// Alias gives the machine one more address on the LAN.
func (a *Attacker) Alias(addr string) {
	a.t.Helper()
	a.room.Do(func() error { return testns.Give("eth0", addr+"/24") })
}

// DialFrom opens a TCP connection from one of its addresses on the LAN.
func (a *Attacker) DialFrom(ctx context.Context, from, addr string) (c net.Conn, err error) {
	return c, a.room.Try(func() (e error) {
		c, e = (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).DialContext(ctx, "tcp", addr)
		return e
	})
}

// Listen takes TCP connections on the LAN.
func (a *Attacker) Listen(port int) (l net.Listener, err error) {
	return l, a.room.Try(func() (e error) {
		l, e = net.Listen("tcp", net.JoinHostPort(a.Addr.String(), fmt.Sprint(port)))
		return e
	})
}

// TLS is what it shows as a client and as a server: its certificate, and faith in all
// others.
func (a *Attacker) TLS() *tls.Config {
	return &tls.Config{Certificates: []tls.Certificate{a.cert}, InsecureSkipVerify: true, ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS13}
}

// HTTP is a client on the LAN, a new connection for each request.
func (a *Attacker) HTTP() *http.Client {
	return &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: a.TLS(), DialContext: a.Dial, DisableKeepAlives: true}}
}

// Message is what a well-behaved cluster would send next as POST /v1/peering: change
// it as you like.
func (a *Attacker) Message() map[string]any {
	return map[string]any{
		"versions": []int{1, 2}, "id": a.ID, "name": a.Name, "version": "v0.0.1", "wireguardKey": a.WireGuardKey,
		"tunnelPort": Port, "controlPort": Port, "tunnelAddress": a.TunnelAddress, "podCIDR": a.PodCIDR, "serviceCIDR": "10.43.0.0/16",
		"seeYouAs": "", "seenAs": "", "sequence": a.sequence.Add(1),
	}
}

// Reply is an answer to a peering message or to another request.
type Reply struct {
	Status int
	Body   []byte
	// Server is the ID of who has answered.
	Server string
	// Code is that of a refusal.
	Code string
}

func (r Reply) String() string { return fmt.Sprintf("%d %.300s", r.Status, r.Body) }

// Post sends a body to a path of a device's control port, on the LAN: JSON, or bytes as
// they are.
func (a *Attacker) Post(ctx context.Context, device, path string, body any) (Reply, error) {
	return do(ctx, a.HTTP(), http.MethodPost, "https://"+net.JoinHostPort(device, fmt.Sprint(Port))+path, body, nil)
}

func do(ctx context.Context, client *http.Client, method, url string, body any, header http.Header) (Reply, error) {
	var reader io.Reader
	switch b := body.(type) {
	case nil:
	case io.Reader:
		reader = b
	case []byte:
		reader = bytes.NewReader(b)
	default:
		text, err := json.Marshal(b)
		if err != nil {
			return Reply{}, err
		}
		reader = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, url, reader)
	if err != nil {
		return Reply{}, err
	}
	for k, v := range header {
		req.Header[k] = v
	}
	resp, err := client.Do(req)
	if err != nil {
		return Reply{}, err
	}
	defer resp.Body.Close()
	r := Reply{Status: resp.StatusCode}
	if resp.TLS != nil && len(resp.TLS.PeerCertificates) > 0 {
		if key, ok := resp.TLS.PeerCertificates[0].PublicKey.(ed25519.PublicKey); ok {
			sum := sha256.Sum256(key)
			r.Server = strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:20]))
		}
	}
	if r.Body, err = io.ReadAll(io.LimitReader(resp.Body, 16<<20)); err != nil {
		return r, err
	}
	var refusal struct{ Code any }
	if r.Status > 299 && json.Unmarshal(r.Body, &refusal) == nil {
		r.Code, _ = refusal.Code.(string)
	}
	return r, nil
}
