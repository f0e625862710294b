package fabric

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"rivulet/fabric/netmon"
)

// Peers learn the IPv4 address of every LAN before the many IPv6 addresses of the first one.
func TestCandidates(t *testing.T) {
	lan := func(addrs ...string) (i netmon.Interface) {
		for _, a := range addrs {
			i.Addrs = append(i.Addrs, netip.MustParsePrefix(a))
		}
		return i
	}
	many := lan("fe80::1/64", "2001:db8:1::1/64", "fd00:1::1/64", "192.168.1.5/24", "2001:db8:1::2/64", "2001:db8:1::3/64", "2001:db8:1::4/64", "2001:db8:1::5/64", "2001:db8:1::6/64")
	for _, c := range []struct {
		lans netmon.LANs
		want string
	}{
		{nil, ""},
		{netmon.LANs{lan("fe80::1/64")}, ""},
		{netmon.LANs{lan("2001:db8::5/64", "192.168.1.5/24")}, "192.168.1.5 2001:db8::5"},
		{netmon.LANs{many, lan("10.7.0.5/16"), lan("2001:db8:2::1/64", "fd00:2::1/64")},
			"192.168.1.5 10.7.0.5 2001:db8:1::1 2001:db8:2::1 fd00:1::1 fd00:2::1 2001:db8:1::2 2001:db8:1::3"},
	} {
		var got []string
		for _, a := range candidates(c.lans, 7442) {
			got = append(got, fmt.Sprint(a.Addr()))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%v: %v, want %s", c.lans, got, c.want)
		}
	}
}
