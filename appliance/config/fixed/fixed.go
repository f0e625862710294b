// Package fixed has what nobody configures: the networks, addresses, ports and names that
// every cluster uses alike, so that overlap is the normal case and well tested. It reads
// and writes nothing.
package fixed

import "net/netip"

// The networks and addresses of a cluster.
var (
	PodCIDR       = netip.MustParsePrefix("10.42.0.0/16")
	ServiceCIDR   = netip.MustParsePrefix("10.43.0.0/16")
	ClusterDNS    = netip.MustParseAddr("10.43.0.10")
	TunnelAddress = netip.MustParseAddr("10.42.255.254")    // in the last /24, which no node gets before 255 others
	NodeRange     = netip.MustParsePrefix("100.127.0.0/16") // of the addresses that nodes keep for life
)

// ControlAPI is where peers find the control port, inside the tunnel.
var ControlAPI = netip.AddrPortFrom(TunnelAddress, ControlPort)

// Ports, interfaces, names and folders.
const (
	ControlPort   = 7442 // TCP control, UDP tunnel
	DNSPort       = 1053
	ClusterDomain = "cluster.local"
	Tunnel        = "riv0"                 // its interface
	Bridge        = "cni0"                 // that pods are on
	CNIResults    = "/var/lib/cni/results" // where libcni, in containerd, keeps what it has made for each pod
	Kubelet       = "/var/lib/kubelet"
)

// Networks are those of the cluster itself: nothing of the LAN is in them.
var Networks = []netip.Prefix{PodCIDR, ServiceCIDR, NodeRange}
