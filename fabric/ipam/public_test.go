package ipam

import (
	"net/netip"
	"testing"
)

// The first and the last address of each prefix, and their neighbours outside.
func TestPublic(t *testing.T) {
	for a, want := range map[string]bool{
		"1.1.1.1": true, "8.8.8.8": true, "9.255.255.255": true, "11.0.0.0": true, "203.0.113.9": true, "223.255.255.255": true,
		"2001:4860:4860::8888": true, "2606:4700::1111": true, "2001:200::1": true, "::ffff:8.8.8.8": true, "64:ff9b::808:808": true,
		"0.0.0.0": false, "0.255.255.255": false, "10.0.0.0": false, "10.255.255.255": false, "100.64.0.1": false, "100.127.255.255": false,
		"127.0.0.1": false, "169.254.169.254": false, "172.16.0.1": false, "172.31.255.255": false, "192.0.0.8": false, "192.88.99.1": false,
		"192.168.0.1": false, "198.18.0.1": false, "198.19.255.255": false, "224.0.0.1": false, "240.0.0.1": false, "255.255.255.255": false,
		"::": false, "::1": false, "::ffff:10.0.0.1": false, "64:ff9b::a00:1": false, "64:ff9b:1::808:808": false, "64:ff9b::7f00:1": false,
		"2001::1": false, "2002:a00:1::1": false, "2002:808:808::1": false, "3fff::1": false, "fc00::1": false, "fd00::1": false,
		"fe80::1": false, "fec0::1": false, "ff02::1": false, "100::1": false, "5f00::1": false, "2606:4700::1111%eth0": false,
	} {
		if got := Public(netip.MustParseAddr(a)); got != want {
			t.Errorf("%s: %v", a, got)
		}
	}
	if Public(netip.Addr{}) {
		t.Error("no address at all is public")
	}
	own := netip.MustParsePrefix("203.0.113.0/24")
	for _, a := range []string{"203.0.113.9", "::ffff:203.0.113.9", "64:ff9b::cb00:7109"} {
		if Public(netip.MustParseAddr(a), own) {
			t.Errorf("%s is of the device's own network", a)
		}
	}
}

// However an address is written, it is judged by what a socket would connect to.
func FuzzPublic(f *testing.F) {
	for _, a := range []string{"10.0.0.1", "8.8.8.8", "64:ff9b::a00:1", "::ffff:192.168.0.1", "2002:a00:1::1", "fec0::1"} {
		f.Add(netip.MustParseAddr(a).AsSlice())
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		a, ok := netip.AddrFromSlice(raw)
		if !ok {
			return
		}
		got := Public(a)
		if got && (!a.Unmap().IsGlobalUnicast() || a.Unmap().IsPrivate() || a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsMulticast()) && !nat64.Contains(a) {
			t.Errorf("%s is public", a)
		}
		if Public(a.Unmap()) != got {
			t.Errorf("%s: %v, unmapped %v", a, got, !got)
		}
		if got && Public(a, netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen())) {
			t.Errorf("%s is public though it is in the device's own network", a)
		}
		if a.Is4() { // the same address in the ways that lead there
			four := a.As4()
			mapped := netip.AddrFrom16(a.As16())
			translated := netip.AddrFrom16([16]byte{0: 0, 1: 0x64, 2: 0xff, 3: 0x9b, 12: four[0], 13: four[1], 14: four[2], 15: four[3]})
			if Public(mapped) != got || Public(translated) != got {
				t.Errorf("%s: %v, mapped %v, by NAT64 %v", a, got, Public(mapped), Public(translated))
			}
		}
	})
}
