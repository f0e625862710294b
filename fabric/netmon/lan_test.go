package netmon

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestIsLAN(t *testing.T) {
	const up = net.FlagUp | net.FlagMulticast | net.FlagRunning | net.FlagBroadcast
	for _, tt := range []struct {
		name  string
		flags net.Flags
		want  bool
	}{
		{"eth0", up, true},
		{"eth0", up &^ net.FlagRunning, false}, {"eth0", up &^ net.FlagUp, false}, {"eth0", up &^ net.FlagMulticast, false},
		{"lo", up | net.FlagLoopback, false}, {"ppp0", up | net.FlagPointToPoint, false},
	} {
		if got := isLAN(tt.name, tt.flags, nil, true); got != tt.want || isLAN(tt.name, tt.flags, nil, false) {
			t.Errorf("%s %v: %v", tt.name, tt.flags, got)
		}
	}
}

// What the user names is looked at and nothing else; a name in full is believed,
// a pattern never reaches what containers and tunnels make.
func TestAllowed(t *testing.T) {
	const up = net.FlagUp | net.FlagMulticast | net.FlagRunning | net.FlagBroadcast
	for _, tt := range []struct {
		name    string
		flags   net.Flags
		leads   bool
		allowed []string
		want    bool
	}{
		{"eth0", up, true, []string{"eth0"}, true}, {"eth1", up, true, []string{"eth0"}, false},
		{"eth1", up, true, []string{"wlan0", "eth*"}, true}, {"enp3s0", up, true, []string{"en*s[0-9]"}, true}, {"wlan0", up, true, []string{"eth*"}, false},
		{"br-lan", up, false, []string{"br-lan"}, true}, {"br-1a2b", up, false, []string{"br-*"}, false}, {"veth12ab", up, false, []string{"*"}, false},
		{"eth0", up &^ net.FlagRunning, true, []string{"eth0"}, false}, {"ppp0", up | net.FlagPointToPoint, true, []string{"ppp0"}, false}, {"lo", up | net.FlagLoopback, true, []string{"lo"}, false},
	} {
		if got := isLAN(tt.name, tt.flags, tt.allowed, tt.leads); got != tt.want {
			t.Errorf("%s %v, allowed %q: %v", tt.name, tt.flags, tt.allowed, got)
		}
	}
}

func TestOnLink(t *testing.T) {
	lans := LANs{
		{Index: 2, Name: "eth0", MTU: 1500, Addrs: []netip.Prefix{netip.MustParsePrefix("192.168.1.7/24"), netip.MustParsePrefix("fe80::7/64"), netip.MustParsePrefix("2001:db8::7/64")}},
		{Index: 3, Name: "wlan0", MTU: 1400, Addrs: []netip.Prefix{netip.MustParsePrefix("10.9.0.7/32")}},
	}
	for addr, want := range map[string]bool{
		"192.168.1.8": true, "::ffff:192.168.1.8": true, "2001:db8::8": true, "fe80::8%eth0": true, "fe80::8%wlan0": true,
		"192.168.1.7": false, "fe80::7%eth0": false, // ourselves
		"192.168.2.8": false, "8.8.8.8": false, "2001:db8:1::8": false, // routed
		"10.9.0.7": false, "10.9.0.8": false, // a /32 has no link
		"fe80::8": false, "fe80::8%cni0": false, "127.0.0.1": false, "::1": false, "224.0.0.1": false, "0.0.0.0": false,
	} {
		if got := lans.OnLink(netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s: %v", addr, got)
		}
	}
	if lans.OnLink(netip.Addr{}) {
		t.Error("the zero address is on link")
	}
	if lans.MTU() != 1400 || (LANs{}).MTU() != 1500 {
		t.Errorf("MTU %d and %d", lans.MTU(), (LANs{}).MTU())
	}
}

func TestSame(t *testing.T) {
	lan := func(addrs ...string) (i Interface) {
		for _, a := range addrs {
			i.Addrs = append(i.Addrs, netip.MustParsePrefix(a))
		}
		return i
	}
	for _, tt := range []struct {
		a, b Interface
		want bool
	}{
		{lan("192.0.2.1/24"), lan("192.0.2.1/24", "fe80::1/64"), true},
		{lan("192.0.2.1/24"), lan("192.0.2.2/24"), false},
		{lan("fe80::1/64"), lan("fe80::2/64"), false},
		{lan("fe80::1/64"), lan("192.0.2.1/24", "fe80::1/64"), false},
		{lan("192.0.2.1/24"), lan("192.0.2.1/24", "2001:db8::1/64"), false},
	} {
		if tt.a.same(tt.b) != tt.want || tt.b.same(tt.a) != tt.want {
			t.Errorf("%v and %v", tt.a.Addrs, tt.b.Addrs)
		}
	}
}

// Of an interface's addresses the temporary ones come last, and nobody is to come by one that is not ready or deprecated.
func TestAddressesOfALink(t *testing.T) {
	var all []netlink.Addr
	var flags []int
	for _, c := range []struct {
		cidr  string
		flags int
	}{
		{"2001:db8::7/64", unix.IFA_F_TEMPORARY},
		{"2001:db8::8/64", unix.IFA_F_TEMPORARY | unix.IFA_F_DEPRECATED},
		{"2001:db8::9/64", unix.IFA_F_TENTATIVE},
		{"192.168.1.5/24", unix.IFA_F_PERMANENT},
		{"192.168.1.6/24", unix.IFA_F_SECONDARY},
		{"2001:db8::5/64", 0},
	} {
		a, err := netlink.ParseAddr(c.cidr)
		if err != nil {
			t.Fatal(err)
		}
		a.Flags = c.flags
		all, flags = append(all, *a), append(flags, c.flags)
	}
	var i Interface
	i.take(all)
	if got := fmt.Sprint(i.Addrs); got != "[192.168.1.5/24 192.168.1.6/24 2001:db8::5/64 2001:db8::7/64]" {
		t.Error(got)
	}
	i = Interface{}
	for n := range all {
		all[n].Flags = unix.IFA_F_DEPRECATED
	}
	if i.take(all[2:4]); fmt.Sprint(i.Addrs) != "[2001:db8::9/64 192.168.1.5/24]" {
		t.Error("there are no others: ", i.Addrs)
	}
	i = Interface{}
	for n := range all {
		all[n].Flags = flags[n]
	}
	i.take(all)
	for _, own := range []string{"2001:db8::5", "2001:db8::7", "2001:db8::8", "2001:db8::9", "192.168.1.6"} {
		if !i.Has(netip.MustParseAddr(own)) {
			t.Errorf("%s is not this device's", own)
		}
	}
}
