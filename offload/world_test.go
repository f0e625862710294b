package offload

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"rivulet/appliance/addons/volumes"
	"rivulet/fabric/changes"
	"rivulet/fabric/httpserver"
	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
	"rivulet/offload/offer"
	"rivulet/offload/policy"
	"rivulet/test/harness/apiserver"
	"rivulet/test/harness/faulty"
)

// device is one cluster of a test: a real API server, and a fabric whose tunnel
// is the loopback interface.
type device struct {
	*apiserver.Server
	name     string
	identity rpc.Identity
	fabric   *loopback
	offload  *Offload
	stop     func()
	volumes  string // the folder of its volumes
	local    *volumes.Local
	missing  time.Duration // Config.Missing
	images   func() (map[string][]string, error)
	share    atomic.Pointer[offer.Share]  // Config.Share; nil lends everything
	nodes    atomic.Pointer[policy.Nodes] // Config.Nodes
	test     *testing.T                   // the whole story; subtests end too early
	warnings *warnings
	calls    *faulty.Calls // of this device's own API server
}

var (
	podCIDR = netip.MustParsePrefix("10.42.0.0/16")
	control = netip.MustParseAddrPort("10.42.255.254:7442")
)

// loopback is a fabric without a tunnel.
type loopback struct {
	identity rpc.Identity
	routes   *http.ServeMux

	stall stall
	mute  mute

	mu    sync.Mutex
	cut   bool
	conns map[net.Conn]struct{}
	links []peer.Link
	gone  []peer.ID // former peers
	// unlinked is why no peer has a tunnel, empty if they have.
	unlinked string
	certs    map[peer.ID][]byte
	signal   changes.Signal
	// passed takes connections for the API server.
	passed func(net.Conn)
}

// world starts two clusters, a and b, that are peers of each other. The arguments are
// for b's engine. Stories wait more than they work, share nothing, and run beside each other.
func world(t *testing.T, provider ...string) (a, b *device) {
	t.Helper()
	t.Parallel()
	return faultyWorld(t, &faulty.Calls{}, &faulty.Calls{}, provider...)
}

// faultyWorld is a world in which calls of the two to their own API servers may fail.
func faultyWorld(t *testing.T, ofA, ofB *faulty.Calls, provider ...string) (a, b *device) {
	t.Helper()
	var devices []*device
	both := append(profiling(), "--kube-controller-manager-arg=pvclaimbinder-sync-period=1s") // when it looks again for a claim's volume
	for i, s := range apiserver.StartEach(t, both, append(provider, both...)) {
		name := string(rune('a' + i))
		_, key, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		identity, err := rpc.NewIdentity(key, name)
		if err != nil {
			t.Fatal(err)
		}
		f := &loopback{identity: identity, routes: http.NewServeMux(), certs: map[peer.ID][]byte{},
			conns: map[net.Conn]struct{}{}}
		folder := t.TempDir()
		devices = append(devices, &device{test: t, warnings: &warnings{}, volumes: folder, local: volumes.NewLocal(folder, name+"-node"), Server: s, name: name, identity: identity, fabric: f, calls: []*faulty.Calls{ofA, ofB}[i]})
	}
	a, b = devices[0], devices[1]
	for _, d := range devices {
		d.start()
	}
	a.meet(t, b, "10.77.0.0/16", "10.88.0.0/16")
	b.meet(t, a, "10.88.0.0/16", "10.77.0.0/16")
	return a, b
}

// twin is the name that a namespace of d gets at its providers.
func (d *device) twin(home string) string { return home + "-" + d.name + "-" + d.identity.ID.Short() }

func (d *device) start() {
	t := d.test
	d.fabric.newRoutes()
	home := rest.CopyConfig(d.Config)
	home.Wrap(d.calls.Wrap)
	o, err := New(Config{
		Home: home, ClusterID: string(d.identity.ID), ClusterName: func() string { return d.name }, NodeName: d.name,
		NodeIP: netip.MustParseAddr("127.0.0.1"), PodCIDR: podCIDR, Control: control,
		ServerTLSDir: d.TLSDir, Peers: d.fabric, Missing: d.missing, Parting: 10 * time.Second, Images: d.images, Volumes: d.local, Shares: d.shares, Nodes: d.chosen, Log: slog.New(slog.NewTextHandler(testWriter{t, d.warnings}, nil)).With("cluster", d.name),
	})
	if err != nil {
		t.Fatal(err)
	}
	d.offload = o
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = o.Run(ctx) // ends with ctx
	}()
	var once sync.Once
	d.stop = func() { once.Do(func() { cancel(); <-done }) }
	t.Cleanup(d.stop)
}

func (d *device) shares() offer.Shares {
	if s := d.share.Load(); s != nil {
		return offer.Shares{Peers: *s}
	}
	return offer.Shares{}
}

func (d *device) chosen() policy.Nodes {
	if n := d.nodes.Load(); n != nil {
		return *n
	}
	return policy.Nodes{}
}

// lend is the user's change of share in the configuration.
func (d *device) lend(s offer.Share) {
	d.share.Store(&s)
	d.offload.ShareChanged()
}

// meet lets d know other, under a prefix.
func (d *device) meet(t *testing.T, other *device, remote, as string) {
	t.Helper()
	f := d.fabric
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := rpc.NewServer(httpserver.Peers, other.identity, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		other.fabric.mu.Lock()
		routes := other.fabric.routes
		other.fabric.mu.Unlock()
		if r.URL.Query().Get("watch") != "" {
			w = f.mute.wrap(w)
		}
		routes.ServeHTTP(w, r)
	}), slog.New(slog.DiscardHandler))
	go server.ServeTLS(l, "", "")
	t.Cleanup(func() { _ = server.Close() })
	f.mu.Lock()
	defer f.mu.Unlock()
	f.certs[other.identity.ID] = other.identity.CertPEM
	f.links = append(f.links, peer.Link{ID: other.identity.ID, Name: other.name, Addr: l.Addr().(*net.TCPAddr).AddrPort(),
		PeerCIDR: podCIDR, PeerMappedCIDR: netip.MustParsePrefix(remote), LocalMappedCIDR: netip.MustParsePrefix(as), State: peer.Connected})
	f.signal.Notify()
}

// setCut cuts or heals all of the device's ways out.
func (f *loopback) setCut(cut bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cut = cut
	if cut {
		for c := range f.conns {
			_ = c.Close()
		}
		clear(f.conns)
	}
}

func (f *loopback) unpeer() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range f.links {
		f.gone = append(f.gone, l.ID)
	}
	f.links = nil
	f.signal.Notify()
}

// Departed are those that were peers.
func (f *loopback) Departed() []peer.ID {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]peer.ID(nil), f.gone...)
}

// setRoles switches directions of the one peer.
func (f *loopback) setRoles(noBorrow, noLend bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.links[0].NoBorrow, f.links[0].NoLend = noBorrow, noLend
	f.signal.Notify()
}

// setState is what the fabric finds out about the one peer.
func (f *loopback) setState(s peer.State) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.links[0].State = s
	f.signal.Notify()
}

func (f *loopback) Gateways() []netip.Prefix { return nil }
func (f *loopback) Nodes() []peer.Record     { return nil }

// newRoutes forgets what was served, as a process that starts again.
func (f *loopback) newRoutes() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.routes = http.NewServeMux()
}

func (f *loopback) Link(id peer.ID) (peer.Link, bool) {
	for _, l := range f.Links() {
		if l.ID == id {
			return l, true
		}
	}
	return peer.Link{}, false
}

func (f *loopback) Links() []peer.Link {
	linked, _ := f.Peerings()
	return linked
}

// Peerings has the peers without a tunnel, too: see setUnlinked.
func (f *loopback) Peerings() (linked []peer.Link, others []peer.Unlinked) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.unlinked != "" {
		for _, l := range f.links {
			others = append(others, peer.Unlinked{Link: peer.Link{ID: l.ID, Name: l.Name, State: peer.Connecting}, Why: f.unlinked})
		}
		return nil, others
	}
	return append([]peer.Link(nil), f.links...), nil
}

// setUnlinked makes the records of all peers incomplete for a reason, or complete again.
func (f *loopback) setUnlinked(why string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unlinked = why
	f.signal.Notify()
}

func (f *loopback) Changed() (<-chan struct{}, func()) { return f.signal.Changed() }

func (f *loopback) TLS(id peer.ID) ([]byte, []byte, []byte, string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.identity.CertPEM, f.identity.KeyPEM, f.certs[id], string(id), nil
}

func (f *loopback) Client(id peer.ID) (*http.Client, string, error) {
	for _, l := range f.Links() {
		if l.ID == id {
			return &http.Client{Transport: &http.Transport{TLSClientConfig: rpc.ClientTLS(f.identity, id), DialContext: f.Dial, ForceAttemptHTTP2: true}},
				"https://" + l.Addr.String(), nil
		}
	}
	return nil, "", errors.New("no such peer")
}

func (f *loopback) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cut {
		return nil, errors.New("the link is cut")
	}
	c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	c = f.stall.wrap(c)
	f.conns[c] = struct{}{}
	return c, nil
}

func (f *loopback) Handle(pattern string, h http.Handler) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.routes.Handle(pattern, h)
}

// Pass keeps the handler, for tests to call: there is no tunnel to come out of.
func (f *loopback) Pass(h func(net.Conn), names ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.passed = h
}

type testWriter struct {
	t *testing.T
	w *warnings
}

func (w testWriter) Write(p []byte) (int, error) {
	line := string(p[:len(p)-1])
	w.t.Log(line)
	if strings.Contains(line, " level=WARN ") || strings.Contains(line, " level=ERROR ") {
		w.w.mu.Lock()
		defer w.w.mu.Unlock()
		w.w.lines = append(w.w.lines, line)
	}
	return len(p), nil
}

// warnings are what a device has logged as one, or as an error.
type warnings struct {
	mu    sync.Mutex
	lines []string
}

func (w *warnings) count() int { return len(w.since(0)) }

func (w *warnings) since(from int) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.lines[from:])
}
