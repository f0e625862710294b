package host

import (
	"net/netip"
	"testing"

	"rivulet/test/harness/testns"
)

// Only what leaves through an interface that was named is led there: no address of the
// device, on that interface or another, no network of another interface, and nothing that
// the default route has.
func TestLeads(t *testing.T) {
	room := testns.New(t)
	room.Bridge("cni0", "10.42.0.1/24")
	room.Bridge("eth0", "192.0.2.7/24")
	room.Do(func() error {
		for _, cidr := range []string{"100.127.3.4/32", "10.42.9.9/32"} {
			if err := testns.Give("lo", cidr); err != nil {
				return err
			}
		}
		for addr, want := range map[string]bool{
			"10.42.0.7": true, "::ffff:10.42.0.7": true,
			"10.42.0.1": false, "10.42.0.255": false, "10.42.9.9": false, "10.42.1.7": false,
			"192.0.2.7": false, "192.0.2.8": false, "100.127.3.4": false, "127.0.0.1": false, "8.8.8.8": false, "224.0.0.1": false, "0.0.0.0": false, "::1": false,
		} {
			if got := Leads(netip.MustParseAddr(addr), "cni0", "riv0"); got != want {
				t.Errorf("%s: %v", addr, got)
			}
		}
		if err := testns.Route("0.0.0.0/0", "192.0.2.1"); err != nil {
			return err
		}
		if Leads(netip.MustParseAddr("10.42.1.7"), "cni0", "riv0") || Leads(netip.MustParseAddr("241.7.0.9"), "cni0", "riv0") {
			t.Error("what the default route has is led to pods")
		}
		return nil
	})
}
