package statuspage

import (
	"log/slog"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"rivulet/appliance/addons/loadbalancer"
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
		if got := p.admit(netip.MustParseAddr(addr)); got != want {
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
		p.Configure(tt.set, []string{"lab-1"})
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
