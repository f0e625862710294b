package netmon

import (
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Hardware returns the hardware address that the kernel has for a neighbour on a link, empty if it has none. It proves
// nothing: any machine can use any address.
func Hardware(addr netip.Addr) string {
	family, zone := unix.AF_INET, addr.Zone()
	addr = addr.Unmap().WithZone("")
	if addr.Is6() {
		family = unix.AF_INET6
	}
	index := 0 // of all links
	if zone != "" {
		if i, err := net.InterfaceByName(zone); err == nil {
			index = i.Index
		}
	}
	all, err := netlink.NeighList(index, family)
	if err != nil {
		return ""
	}
	for _, n := range all {
		if ip, ok := netip.AddrFromSlice(n.IP); ok && ip.Unmap() == addr && len(n.HardwareAddr) > 0 {
			return n.HardwareAddr.String()
		}
	}
	return ""
}
