// Package fixed has what nobody configures: the networks, addresses, ports and names that
// clusters use alike, so that overlap is the normal case and well tested. Where a device's
// first start finds a network that somebody else has, the cluster has another for life (Of,
// Free, Use). It reads a file of the cluster's, and writes nothing.
package fixed

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
