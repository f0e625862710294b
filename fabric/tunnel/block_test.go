package tunnel

import (
	"net/netip"
	"testing"

	"rivulet/fabric/ipam"
)

// The block that peers are seen in by default is one that routers do not carry: the
// kernel between pods and tunnel does, with all that it has to do for them.
func TestPeersInTheDefaultBlock(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b, a := netip.MustParsePrefix("240.200.0.0/16"), netip.MustParsePrefix("247.201.0.0/16")
	for _, p := range []netip.Prefix{a, b} {
		if !ipam.Within(ipam.Default, 16, p) {
			t.Fatalf("%s is not of %s", p, ipam.Default)
		}
	}
	w.a.want.Peers[0].PeerMappedCIDR, w.a.want.Peers[0].LocalMappedCIDR = b, a
	w.b.want.Peers[0].PeerMappedCIDR, w.b.want.Peers[0].LocalMappedCIDR = a, b
	w.apply(t)
	stream(t, w.a.pod, w.b.pod, "240.200.0.7", "247.201.0.5", 4<<20)
	stream(t, w.b.pod, w.a.pod, "247.201.0.5", "240.200.0.7", 4<<20)
	stream(t, w.a.node, w.b.pod, "240.200.0.7", "247.201.255.254", 64<<10)
	ping(t, w.a.pod, "240.200.0.7", 56)
	ping(t, w.b.pod, "247.201.0.5", 20000)
	refused(t, w.a.pod, "240.200.0.7:9")
}
