package appliance

import (
	"context"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"rivulet/appliance/glance"
	"rivulet/appliance/health"
	"rivulet/appliance/lifecycle"
	"rivulet/appliance/loadbalancer"
	"rivulet/appliance/statuspage"
	"rivulet/fabric/discovery/mdns"
	"rivulet/fabric/netmon"
	"rivulet/systemd"
)

const cPage = "status-page"

// page is the status page and the name under which the LAN finds it.
type page struct {
	server *statuspage.Server
	lans   *netmon.Monitor
	image  bool // this is a device of the image

	mu      sync.Mutex
	on      bool
	names   []string // the device may have on the LAN, the best first
	name    string   // it has; empty while that is not known
	changed chan struct{}
}

func (s *System) newPage() *page {
	_, err := os.Stat(systemd.ImageMark)
	p := &page{lans: s.lans, image: err == nil, changed: make(chan struct{}, 1)}
	p.server = statuspage.New(statuspage.Config{
		View:   func() glance.View { return glance.Of(s.Status(), time.Now()) },
		Admit:  p.admit,
		Names:  p.called,
		Report: func(err error) { s.health.Report(health.StatusPage, err) },
		Log:    s.cfg.Log.With("component", cPage),
	})
	p.configure(s.settings.Now().Config.StatusPage, s.hostNames())
	return p
}

// hostNames are what the device may be called on the LAN. The second is its own
// whoever else has the first, and the same after every start.
func (s *System) hostNames() []string {
	return []string{s.name(), s.name() + "-" + s.id.ID().Short()}
}

// configure takes the setting; nil is what the machine is.
func (p *page) configure(set *bool, names []string) {
	on := p.image
	if set != nil {
		on = *set
	}
	p.mu.Lock()
	same := p.on == on && slices.Equal(p.names, names)
	p.on, p.names = on, names
	p.mu.Unlock()
	if same {
		return
	}
	p.server.Switch(on)
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// admit lets in this device itself and what is on a link of its LANs: no pod, no
// peer through the tunnel, nobody through a router.
func (p *page) admit(from netip.Addr) bool {
	from = from.Unmap()
	for _, own := range []netip.Prefix{podCIDR, serviceCIDR, nodeRange} {
		if own.Contains(from) {
			return false
		}
	}
	lans := p.lans.LANs()
	return from.IsLoopback() || lans.Own(from) || lans.OnLink(from)
}

// called are the names by which the page may be asked for.
func (p *page) called() []string {
	out := []string{}
	if h, err := os.Hostname(); err == nil {
		out = append(out, h)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return append(out, p.names...)
}

// url is where a browser on the LAN finds the page; by address as long as no name is known.
func (p *page) url() string {
	p.mu.Lock()
	host := p.name
	p.mu.Unlock()
	if host != "" {
		return p.server.URL(host + ".local")
	}
	for _, a := range p.addresses() {
		if a.Is4() {
			return p.server.URL(a.String())
		}
	}
	return ""
}

func (p *page) addresses() (out []netip.Addr) {
	for _, lan := range p.lans.LANs() {
		for _, a := range lan.Addrs {
			out = append(out, a.Addr().Unmap())
		}
	}
	return out
}

// addresses are the device's own on its LANs.
func (s *System) addresses() []netip.Addr { return s.page.addresses() }

// yields reports whether the page leaves a port to a Service: kube-proxy draws its
// traffic away, and the page is on its other port.
func (p *page) yields(port loadbalancer.Port) bool {
	return port.Protocol == corev1.ProtocolTCP && port.Number == statuspage.WebPort && p.server.Holds(statuspage.WebPort)
}

// runPage serves the page, and the device's name on the LAN while there is one.
func (s *System) runPage(ctx context.Context, stage *lifecycle.Stage) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { s.page.keepName(ctx, s.sources.mdns) })
	s.page.server.Run(ctx, stage.Ready)
	return nil
}

// keepName answers for the name while the page is on, and for another when it changes.
func (p *page) keepName(ctx context.Context, lan *mdns.Source) {
	for ctx.Err() == nil {
		p.mu.Lock()
		on, names := p.on, p.names
		p.mu.Unlock()
		round, stop := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() {
			defer close(done)
			if on {
				lan.Host(round, names, p.named) //nolint:errcheck // it tries until it is told to end
			}
		}()
		select {
		case <-ctx.Done():
		case <-p.changed:
		}
		stop()
		<-done
		p.named("", mdns.HostProbing)
	}
}

func (p *page) named(name string, st mdns.HostState) {
	if st == mdns.HostProbing {
		name = ""
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.name = name
}
