package ipam

import (
	"net/netip"
	"slices"
)

// Special4 are the IPv4 prefixes that are not part of the Internet: those of IANA's IPv4 Special-Purpose Address
// Registry that are not globally reachable, and multicast (RFC 5771). The three for documentation (RFC 5737) are left
// out: no network uses them.
var Special4 = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),      // this network, RFC 791
	netip.MustParsePrefix("10.0.0.0/8"),     // RFC 1918
	netip.MustParsePrefix("100.64.0.0/10"),  // shared with a provider's NAT, RFC 6598
	netip.MustParsePrefix("127.0.0.0/8"),    // RFC 1122
	netip.MustParsePrefix("169.254.0.0/16"), // link-local, RFC 3927
	netip.MustParsePrefix("172.16.0.0/12"),  // RFC 1918
	netip.MustParsePrefix("192.0.0.0/24"),   // IETF protocols, RFC 6890
	netip.MustParsePrefix("192.88.99.0/24"), // 6to4 relays, RFC 7526
	netip.MustParsePrefix("192.168.0.0/16"), // RFC 1918
	netip.MustParsePrefix("198.18.0.0/15"),  // benchmarks, RFC 2544
	netip.MustParsePrefix("224.0.0.0/3"),    // multicast, reserved (RFC 1112), broadcast
}

// Of IPv6 only unicast6 is assigned (RFC 4291; IANA's Global Unicast Address Assignments). Special6 is the part of it
// with other purposes (IPv6 Special-Purpose Address Registry), including relays to IPv4 addresses.
var (
	unicast6 = netip.MustParsePrefix("2000::/3")
	special6 = []netip.Prefix{
		netip.MustParsePrefix("2001::/23"), // IETF protocols, Teredo, RFC 2928
		netip.MustParsePrefix("2002::/16"), // 6to4, RFC 3056
		netip.MustParsePrefix("3fff::/20"), // documentation, RFC 9637
	}
	nat64 = netip.MustParsePrefix("64:ff9b::/96") // RFC 6052: the IPv4 address is the last four bytes
)

// Public reports whether an address is one of the Internet and in none of the networks own.
func Public(a netip.Addr, own ...netip.Prefix) bool {
	if !a.IsValid() || a.Zone() != "" {
		return false
	}
	a = a.Unmap()
	within := func(p netip.Prefix) bool { return p.Contains(a) }
	if slices.ContainsFunc(own, within) {
		return false
	}
	if nat64.Contains(a) {
		raw := a.As16()
		return Public(netip.AddrFrom4([4]byte(raw[12:])), own...)
	}
	if a.Is4() {
		return !slices.ContainsFunc(Special4, within)
	}
	return unicast6.Contains(a) && !slices.ContainsFunc(special6, within)
}
