package loadbalancer

import (
	"net/netip"

	"rivulet/fabric/netmon"
	"rivulet/offload/provider/tenancy"
)

// Lent is what virtual clusters may open on the LAN: the ports, at the first address of the device.
func Lent(lans *netmon.Monitor, ports func() (first, last uint16)) *tenancy.LAN {
	return &tenancy.LAN{
		Ports: func() tenancy.Ports {
			first, last := ports()
			return tenancy.Ports{First: first, Last: last}
		},
		Address: func() (a netip.Addr) {
			if all := Addresses(lans.LANs()); len(all) > 0 {
				a = all[0]
			}
			return a
		},
		Changed: lans.Changed,
	}
}
