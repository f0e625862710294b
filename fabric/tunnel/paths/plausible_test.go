package paths

import (
	"net/netip"
	"testing"
	"time"
)

// What a peer may have us send to, by UDP and by TCP, when nothing else is known of it.
func TestPlausible(t *testing.T) {
	p := &peer{}
	for addr, want := range map[string]struct{ udp, tcp bool }{
		"203.0.113.9:7442":        {true, true},
		"203.0.113.9:443":         {true, true},
		"203.0.113.9:25":          {false, false},
		"[2001:db8::1]:7442":      {true, true},
		"192.168.1.5:7442":        {true, false}, // behind the same NAT, perhaps
		"10.1.2.3:6443":           {true, false},
		"10.1.2.3:53":             {false, false},
		"100.64.0.1:7442":         {true, false},
		"[fd00::1]:7442":          {true, false},
		"169.254.169.254:80":      {false, false},
		"169.254.169.254:7442":    {false, false},
		"[fe80::1]:7442":          {false, false},
		"127.0.0.1:6443":          {false, false},
		"[::1]:6443":              {false, false},
		"[::ffff:127.0.0.1]:6443": {false, false},
		"[::ffff:10.1.2.3]:6443":  {true, false},
		"0.0.0.0:7442":            {false, false},
		"0.1.2.3:7442":            {false, false},
		"240.1.2.3:7442":          {false, false},
		"255.255.255.255:7442":    {false, false},
		"224.0.0.251:5353":        {false, false},
	} {
		a := netip.MustParseAddrPort(addr)
		if got := plausible(a); got != want.udp {
			t.Errorf("UDP to %s: %v", addr, got)
		}
		if got := p.mayDial(a); got != want.tcp {
			t.Errorf("TCP to %s: %v", addr, got)
		}
	}
}

// Where a peer is known to be it may have any port.
func TestKnownAddressIsDialled(t *testing.T) {
	at := netip.MustParseAddr("10.1.2.3")
	one := netip.AddrPortFrom(at, 80)
	p := &peer{tcp: []netip.AddrPort{netip.AddrPortFrom(at, 7442)}}
	if !p.mayDial(one) {
		t.Error("the supervisor's address, another port: not dialled")
	}
	w := &path{kind: Direct, addr: netip.AddrPortFrom(at, 7442), source: advertised}
	p = &peer{paths: []*path{w}}
	if p.mayDial(one) {
		t.Error("an address that the peer alone has told is dialled")
	}
	if w.proved = time.Now(); !p.mayDial(one) {
		t.Error("an address from which it has answered is not dialled")
	}
}
