package loadbalancer

import (
	"net/netip"

	"rivulet/fabric/netmon"
	"rivulet/offload/provider/tenancy"
)

// Lent is what virtual clusters may open on the LAN: the ports, at the first address of the device.
func Lent(lans *netmon.Monitor, ports func() tenancy.Ports) *tenancy.LAN {
	return &tenancy.LAN{
		Ports: ports,
		Address: func() (a netip.Addr) {
			if all := Addresses(lans.LANs()); len(all) > 0 {
				a = all[0]
			}
			return a
		},
		Changed: lans.Changed,
	}
}
