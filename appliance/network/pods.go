package network

import (
	"bytes"
	"net/netip"

	"rivulet/appliance/config/fixed"
	"rivulet/appliance/machine/host"
)

// IsPod reports whether an address leads to a pod, here or through the tunnel: it leaves through the pods' bridge or
// into the tunnel, and is not that of a device inside the tunnel. Every cluster has that one in its pod CIDR, with the
// same last bytes under every mapping.
func IsPod(a netip.Addr) bool {
	device := fixed.TunnelAddress.AsSlice()[fixed.PodCIDR.Bits()/8:]
	if a = a.Unmap(); !a.Is4() || bytes.HasSuffix(a.AsSlice(), device) {
		return false
	}
	return host.Leads(a, fixed.Bridge, fixed.Tunnel)
}
