package statuspage

import (
	"context"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"rivulet/appliance/addons/loadbalancer"
	"rivulet/appliance/lifecycle"
	"rivulet/appliance/ui/summary"
	"rivulet/fabric/changes"
	"rivulet/fabric/discovery/mdns"
	"rivulet/fabric/netmon"
)

// Device is the input of a page. All fields must be set.
type Device struct {
	View func() summary.View
	LANs *netmon.Monitor
	// Own are the networks without visitors: pods, Services, nodes.
	Own    []netip.Prefix
	MDNS   *mdns.Source // announces the device's name
	Image  bool         // a device of the image, where the page is on by default
	Report func(error)  // called when the page cannot listen; nil is success
	Log    *slog.Logger
}

// Page is the status page of a device, and its name on the LAN.
type Page struct {
	Device
	server *Server

	mu       sync.Mutex
	on       bool     // the page
	announce bool     // the name is announced, for the page or another listener of the device
	names    []string // allowed names on the LAN, the best first
	name     string   // present name; empty while unknown
	changed  chan struct{}
}

// NewPage returns a page that is off until Configure.
func NewPage(d Device) *Page {
	p := &Page{Device: d, changed: make(chan struct{}, 1)}
	p.server = New(Config{View: d.View, Admit: p.Admit, Names: p.hostNames, Report: d.Report, Log: d.Log})
	return p
}

// Configure takes the setting, whose nil is the default of the machine, whether the device's name is announced without
// the page, too, and the allowed names on the LAN, the best first.
func (p *Page) Configure(set *bool, announce bool, names []string) {
	on := p.Image
	if set != nil {
		on = *set
	}
	p.mu.Lock()
	same := p.on == on && p.announce == (on || announce) && slices.Equal(p.names, names)
	p.on, p.announce, p.names = on, on || announce, names
	p.mu.Unlock()
	if same {
		return
	}
	p.server.Switch(on)
	changes.Poke(p.changed)
}

// Admit accepts this device itself and hosts on a link of its LANs: no pod, no peer through the tunnel, no host behind
// a router.
func (p *Page) Admit(from netip.Addr) bool {
	from = from.Unmap()
	for _, own := range p.Own {
		if own.Contains(from) {
			return false
		}
	}
	lans := p.LANs.LANs()
	return from.IsLoopback() || lans.Own(from) || lans.OnLink(from)
}

// Called reports whether host, of a request, is a name of the device or an address.
func (p *Page) Called(host string) bool { return p.server.called(host) }

// hostNames are the names by which the page may be requested.
func (p *Page) hostNames() []string {
	out := []string{}
	if h, err := os.Hostname(); err == nil {
		out = append(out, h)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return append(out, p.names...)
}

// URL is the page's address for a browser on the LAN; by IP address while no name is known; empty without either.
func (p *Page) URL() string {
	if host := p.Host(); host != "" {
		return p.server.URL(host)
	}
	return ""
}

// Host is what a browser on the LAN calls the device: its name there, or an IPv4 address while no name is known; empty
// without either.
func (p *Page) Host() string {
	p.mu.Lock()
	host := p.name
	p.mu.Unlock()
	if host != "" {
		return host + ".local"
	}
	for _, a := range p.Addresses() {
		if a.Is4() {
			return a.String()
		}
	}
	return ""
}

// OnByDefault reports whether the page is on without a setting.
func (p *Page) OnByDefault() bool { return p.Image }

// Lend gives port 80 to another component of the device, or takes it back.
func (p *Page) Lend(lent bool) { p.server.Lend(lent) }

// Offer answers a request to a lent port if it is for the page and from an admitted host; otherwise it returns false
// and writes nothing.
func (p *Page) Offer(w http.ResponseWriter, r *http.Request) bool {
	p.mu.Lock()
	on := p.on
	p.mu.Unlock()
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if !on || err != nil || !p.Admit(from.Addr()) || !p.server.serves(r.Host) {
		return false
	}
	p.server.ServeHTTP(w, r)
	return true
}

// Addresses are the device's own on its LANs.
func (p *Page) Addresses() (out []netip.Addr) {
	for _, lan := range p.LANs.LANs() {
		for _, a := range lan.Addrs {
			out = append(out, a.Addr().Unmap())
		}
	}
	return out
}

// Yields reports whether the page leaves a port to a Service: kube-proxy redirects its traffic, and the page is on its
// other port.
func (p *Page) Yields(port loadbalancer.Port) bool {
	return port.Protocol == corev1.ProtocolTCP && port.Number == WebPort && p.server.Holds(WebPort)
}

// Run serves the page, and announces the device's name on the LAN while it is used.
func (p *Page) Run(ctx context.Context, stage *lifecycle.Stage) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { p.keepName(ctx, p.MDNS) })
	p.server.Run(ctx, stage.Ready)
	return nil
}

// keepName announces the name while it is used, and follows changes of it. While the page is on the device is one of
// those that share SharedName.
func (p *Page) keepName(ctx context.Context, lan *mdns.Source) {
	for ctx.Err() == nil {
		p.mu.Lock()
		page, announce, names := p.on, p.announce, p.names
		p.mu.Unlock()
		round, stop := context.WithCancel(ctx)
		var wg sync.WaitGroup
		if announce {
			wg.Go(func() { lan.Host(round, names, p.named) }) //nolint:errcheck // retries until it is ended
		}
		if page {
			wg.Go(func() { lan.Host(round, []string{SharedName}, func(string, mdns.HostState) {}) }) //nolint:errcheck // as above
		}
		select {
		case <-ctx.Done():
		case <-p.changed:
		}
		stop()
		wg.Wait()
		p.named("", mdns.HostProbing)
	}
}

func (p *Page) named(name string, st mdns.HostState) {
	if st == mdns.HostProbing {
		name = ""
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.name = name
}
