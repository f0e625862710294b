package statuspage

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"rivulet/appliance/addons/loadbalancer"
	"rivulet/appliance/ui/summary"
	"rivulet/fabric/discovery/mdns"
	"rivulet/fabric/netmon"
)

func newTestPage() *Page {
	log := slog.New(slog.DiscardHandler)
	own := []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16"), netip.MustParsePrefix("10.43.0.0/16"), netip.MustParsePrefix("100.127.0.0/16")}
	return NewPage(Device{LANs: netmon.New(log), Own: own, Log: log})
}

// Pods, Services, other nodes and what peers' pods are seen as never see the page;
// without a LAN only the device itself does.
func TestWhoSeesThePage(t *testing.T) {
	p := newTestPage()
	for addr, want := range map[string]bool{
		"127.0.0.1": true, "::1": true, "::ffff:127.0.0.1": true,
		"10.42.0.7": false, "::ffff:10.42.0.7": false, "10.43.0.10": false, "100.127.3.4": false, "10.200.0.7": false, "8.8.8.8": false, "2001:db8::1": false,
	} {
		if got := p.Admit(netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s: %v", addr, got)
		}
	}
}

// On a device of the image the page is there by itself, on somebody's PC it is not; the
// setting has the last word in both places.
func TestWhetherThereIsAPage(t *testing.T) {
	yes, no := true, false
	for _, tt := range []struct {
		image bool
		set   *bool
		want  bool
	}{{false, nil, false}, {true, nil, true}, {false, &yes, true}, {true, &no, false}} {
		p := newTestPage()
		p.Image = tt.image
		p.Configure(tt.set, false, []string{"lab-1"})
		if p.on != tt.want {
			t.Errorf("image %v, statusPage %v: on is %v", tt.image, tt.set, p.on)
		}
	}
}

func TestPortsThatThePageGivesAway(t *testing.T) {
	p := newTestPage()
	if p.Yields(loadbalancer.Port{Protocol: corev1.ProtocolTCP, Number: 80}) {
		t.Error("port 80 is given away while another program may have it")
	}
}

func TestANameIsShownOnceItIsKnown(t *testing.T) {
	p := newTestPage()
	for _, tt := range []struct {
		st   mdns.HostState
		want string
	}{{mdns.HostProbing, ""}, {mdns.HostOurs, "pi"}, {mdns.HostElsewhere, "pi"}, {mdns.HostProbing, ""}} {
		if p.named("pi", tt.st); p.name != tt.want {
			t.Errorf("%s: %q", tt.st, p.name)
		}
	}
}

// A request that came to a port which another part of the device has is answered by the
// page only if it is for the page, from somebody who may see it, and while the page is on.
func TestWhatThePageIsOffered(t *testing.T) {
	yes, no := true, false
	p := newTestPage()
	p = NewPage(Device{View: func() summary.View { return summary.View{} }, LANs: p.LANs, Own: p.Own, Log: p.Log})
	for _, tt := range []struct {
		on         *bool
		from, host string
		want       bool
	}{
		{&yes, "127.0.0.1:999", "lab-1.local", true}, {&yes, "127.0.0.1:999", "192.0.2.7", true}, {&yes, "127.0.0.1:999", "shop.example", false},
		{&yes, "10.42.0.7:999", "lab-1.local", false}, {&no, "127.0.0.1:999", "lab-1.local", false},
	} {
		p.Configure(tt.on, false, []string{"lab-1"})
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.RemoteAddr, r.Host = tt.from, tt.host
		w := httptest.NewRecorder()
		took := p.Offer(w, r)
		said, _ := io.ReadAll(w.Result().Body)
		if took != tt.want || (len(said) > 0) != tt.want {
			t.Errorf("%s asks for %s: taken %v, %d bytes", tt.from, tt.host, took, len(said))
		}
	}
}
