// Package fixed has values without configuration: the networks, addresses, ports and names that all clusters share, so
// that overlap is the normal and tested case. If a device's first start finds such a network in use, the cluster gets
// another one for its lifetime (Of, Free, Use). It reads a file of the cluster's, and writes nothing.
package fixed

// Ports, interfaces, names and folders.
const (
	ControlPort   = 7442 // TCP control, UDP tunnel
	DNSPort       = 1053
	ClusterDomain = "cluster.local"
	Tunnel        = "riv0"                 // interface of the tunnel
	Bridge        = "cni0"                 // bridge of pods
	CNIResults    = "/var/lib/cni/results" // libcni's results for each pod, written by containerd
	Kubelet       = "/var/lib/kubelet"
)
