package mdns

import (
	"net/netip"
	"testing"
	"time"

	"rivulet/fabric/discovery"
	"rivulet/fabric/discovery/discoverytest"
	"rivulet/test/harness/testlan"
)

func TestContract(t *testing.T) {
	traits := discoverytest.Traits{
		Names: true, Prompt: 5 * time.Second, Expiry: quick.Expire + 3*time.Second, Addrs: [2]string{"192.0.2.21", "192.0.2.22"},
	}
	discoverytest.Run(t, traits, func(t *testing.T) discoverytest.Stage {
		t.Parallel()
		lan := testlan.New(t)
		s := &stage{lan: lan, watcher: newDevice(t, lan, 0, "quick"), other: newDevice(t, lan, 1, "quick")}
		s.watcher.SetAddr("192.0.2.10/24")
		return s
	})
}

// A LAN without a DHCP server and without a router: IPv6 link-local is all there is.
func TestContractLinkLocal(t *testing.T) {
	traits := discoverytest.Traits{
		Names: true, Prompt: 8 * time.Second, Expiry: quick.Expire + 3*time.Second, Addrs: [2]string{"fe80::21%eth0", "fe80::22%eth0"},
	}
	discoverytest.Run(t, traits, func(t *testing.T) discoverytest.Stage {
		t.Parallel()
		lan := testlan.New(t)
		s := &stage{lan: lan, watcher: newDevice(t, lan, 0, "quick"), other: newDevice(t, lan, 1, "quick")}
		s.watcher.SetAddr6("fe80::10/64")
		return s
	})
}

// stage announces over real multicast; a new address is one that DHCP might give.
type stage struct {
	lan            *testlan.LAN
	watcher, other *device
	at             netip.AddrPort
	name           string
}

func (s *stage) Events() <-chan discovery.Event { return s.watcher.events }
func (s *stage) Goodbye()                       { s.at = netip.AddrPort{}; s.other.send(discovery.Announcement{}) }
func (s *stage) Die()                           { s.other.proc.Kill() }

func (s *stage) Announce(at netip.AddrPort, name string) {
	if at.Addr() != s.at.Addr() {
		s.other.move(at.Addr())
	}
	if at.Port() != s.at.Port() || name != s.name {
		s.other.announce(name, at.Port())
	}
	s.at, s.name = at, name
}

func (s *stage) Second(at netip.AddrPort, name string) {
	third := newDevice(s.watcher.t, s.lan, 2, "quick")
	third.move(at.Addr())
	third.announce(name, at.Port())
}

func (d *device) move(to netip.Addr) {
	if to.Is4() {
		d.SetAddr(to.String() + "/24")
	} else {
		d.SetAddr6(to.WithZone("").String() + "/64")
	}
}

func is(kind discovery.Kind, addr string) func(discovery.Event) bool {
	return func(e discovery.Event) bool {
		return e.Kind == kind && len(e.Entry.Addrs) > 0 && e.Entry.Addrs[0].Addr().String() == addr
	}
}

// A device is found within three seconds with the timing of the product, from
// either side, whoever was there first.
func TestFirstSight(t *testing.T) {
	t.Parallel()
	lan := testlan.New(t)
	a := newDevice(t, lan, 0, "default")
	a.SetAddr("192.0.2.1/24")
	a.announce("a", 7442)
	b := newDevice(t, lan, 1, "default")
	b.SetAddr("192.0.2.2/24")
	b.announce("b", 7442)
	e := a.expect("b at a", 3*time.Second, is(discovery.Added, "192.0.2.2"))
	if e.Entry.ID != b.id || e.Entry.Name != "b" || e.Entry.Interface != "eth0" || e.Entry.TXT["k"] != "v" {
		t.Errorf("a was told %+v", e.Entry)
	}
	b.expect("a at b", 3*time.Second, is(discovery.Added, "192.0.2.1"))
}

// Without any network the source waits; a cable and an address are enough, and
// pulling the cable takes back what was seen.
func TestCable(t *testing.T) {
	t.Parallel()
	lan := testlan.New(t)
	a, b := newDevice(t, lan, 0, "quick"), newDevice(t, lan, 1, "quick")
	a.Unplug()
	a.announce("a", 7442)
	b.SetAddr("192.0.2.2/24")
	b.announce("b", 7442)
	a.Plug()
	a.SetAddr("192.0.2.1/24")
	a.expect("b", 10*time.Second, is(discovery.Added, "192.0.2.2"))
	b.expect("a", 10*time.Second, is(discovery.Added, "192.0.2.1"))
	a.Unplug()
	a.expect("the end of b", 10*time.Second, is(discovery.Removed, "192.0.2.2"))
	b.expect("the end of a", 10*time.Second, is(discovery.Removed, "192.0.2.1"))
}

// What containers make is no LAN: its addresses are not announced.
func TestContainerInterfaces(t *testing.T) {
	t.Parallel()
	lan := testlan.New(t)
	a, b := newDevice(t, lan, 0, "quick"), newDevice(t, lan, 1, "quick")
	b.Add("cni0", "10.42.0.1/24")
	a.SetAddr("192.0.2.1/24")
	b.SetAddr("192.0.2.2/24")
	b.announce("b", 7442)
	e := a.expect("b", 5*time.Second, is(discovery.Added, "192.0.2.2"))
	for _, addr := range e.Entry.Addrs {
		if addr.Addr().Is4() && addr.Addr() != netip.MustParseAddr("192.0.2.2") {
			t.Errorf("b is announced at %v", addr)
		}
	}
}

// The power comes back for a whole room: each device is told all others, once, and
// never itself.
func TestRoom(t *testing.T) {
	lan := testlan.New(t)
	var room []*device
	for n := range 8 {
		d := newDevice(t, lan, n, "default")
		d.SetAddr(netip.AddrFrom4([4]byte{192, 0, 2, byte(n + 1)}).String() + "/24")
		d.announce("d", 7442)
		room = append(room, d)
	}
	for _, d := range room {
		seen := map[string]bool{}
		d.expect("sight of the whole room", 10*time.Second, func(e discovery.Event) bool {
			if e.Entry.ID == d.id {
				t.Errorf("a device was told of itself: %+v", e)
			}
			if e.Kind == discovery.Added {
				if seen[e.Entry.Key] {
					t.Errorf("told twice: %+v", e)
				}
				seen[e.Entry.Key] = true
			}
			return len(seen) == len(room)-1
		})
	}
}
