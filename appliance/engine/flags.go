package engine

import (
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"rivulet/offload/policy"
)

// Args returns the command line of the engine. Every flag that is not a plain path or address has its reason, here or
// where it is made.
func (e *Engine) Args() []string {
	c := e.cfg
	node := slices.Concat([]string{
		"--data-dir=" + e.DataDir(),
		"--private-registry=" + e.registriesFile(),
		"--node-name=" + c.NodeName,
		// The node's fixed address: DHCP, cables and Wi-Fi may change below it.
		"--node-ip=" + c.NodeIP.String(),
		// Flannel's files and rules are used, its daemon is not: see package k3s.
		"--flannel-iface=lo",
		"--pause-image=" + PauseRef,
		"--resolv-conf=" + e.resolvFile(),
	}, e.kubeletArgs(), kubeProxyArgs())
	if c.Join != nil {
		// Its own balancer would find the same one server.
		return slices.Concat([]string{"agent", "--server=" + c.Join.Server, "--token-file=" + e.tokenFile(), "--disable-apiserver-lb", "--node-label=" + policy.WorkerLabel + "=true"}, node)
	}
	args := []string{
		"server",
		"--write-kubeconfig=" + e.Kubeconfig(),
		"--write-kubeconfig-mode=0600",
		"--flannel-backend=host-gw",
		"--cluster-cidr=" + c.PodCIDR.String(),
		"--service-cidr=" + c.ServiceCIDR.String(),
		"--cluster-dns=" + c.ClusterDNS.String(),
		// The supervisor runs its own add-ons.
		"--disable=traefik,servicelb,coredns,local-storage,metrics-server",
		"--disable-helm-controller",
		"--disable-cloud-controller",
		"--disable-network-policy",
		// The API server must reach a virtual node's kubelet port directly.
		"--egress-selector-mode=disabled",
	}
	return slices.Concat(args, node, e.apiServerArgs(), e.controllerArgs(), e.schedulerArgs())
}

// Join is how a worker joins a cluster.
type Join struct {
	Server string // URL of the API server, inside the tunnel
	Token  string // k3s's token of agents
}

// tokenFile has a worker's token, which no other user may see.
func (e *Engine) tokenFile() string { return filepath.Join(e.cfg.StateDir, "k3s-join-token") }

func (e *Engine) apiServerArgs() []string {
	return prefixed("--kube-apiserver-arg=", append(policy.APIServerArgs(),
		// The Endpoints of Service kubernetes are written when they change; the default ("lease") writes a lease every
		// 10 s for setups with several servers.
		"endpoint-reconciler-type=master-count",
		// Events serve to inspect recent changes; each costs a write, and a second one when it expires.
		"event-ttl=15m0s",
		"max-requests-inflight="+strconv.Itoa(e.plan().Requests),
		"max-mutating-requests-inflight="+strconv.Itoa(e.plan().Mutating),
	)...)
}

// A node counts as lost when its lease was not renewed for nodeGone: four renewals. Upstream's values, 10 s and 50 s,
// cost a write every 10 s for each node, virtual ones too, and gain nothing here: the home node's kubelet is in the API
// server's process, and a virtual node becomes NotReady by its Ready condition when its cluster was silent for
// offer.Silence, not by its lease (docs/design/offload.md).
const (
	leaseSeconds = 120 // validity of a node's lease; renewed four times as often
	nodeGone     = "2m0s"
)

func (e *Engine) controllerArgs() []string {
	return prefixed("--kube-controller-manager-arg=", append(policy.ControllerArgs(),
		"node-monitor-grace-period="+nodeGone,
		// Half of upstream's rate still finds a dead node within 10 s of nodeGone.
		"node-monitor-period=10s",
	)...)
}

// kubeProxyArgs make kube-proxy check every 3 s, not 30, whether its rules were removed, and retry failures after that
// time. It is not the interval of writes. It notices removed chains alone; package iptables tells it of flushed ones.
func kubeProxyArgs() []string { return prefixed("--kube-proxy-arg=", "iptables-sync-period=3s") }

func (e *Engine) kubeletArgs() []string {
	// Only on the node's address: virtual nodes use the same port at theirs.
	args := []string{"config=" + e.kubeletConfigFile(), "address=" + e.cfg.NodeIP.String()}
	if e.cfg.Facts.CgroupV1 {
		// The kubelet of 1.35 refuses cgroup v1 by default.
		args = append(args, "fail-cgroupv1=false")
	}
	return prefixed("--kubelet-arg=", append(args, "system-reserved="+e.reserved())...)
}

func prefixed(prefix string, args ...string) []string {
	for i := range args {
		args[i] = prefix + args[i]
	}
	return args
}

func (e *Engine) reserved() string {
	// Process numbers that all pods together leave to the machine.
	parts := []string{"pid=" + strconv.Itoa(e.podPIDs()/2)}
	if e.cfg.ReserveCPU != "" {
		parts = append(parts, "cpu="+e.cfg.ReserveCPU)
	}
	if e.cfg.ReserveMemory != "" {
		parts = append(parts, "memory="+e.cfg.ReserveMemory)
	}
	return strings.Join(parts, ",")
}

// PauseRef is the name of the bundled sandbox image.
const PauseRef = "rivulet.dev/pause:1"

func (e *Engine) binDir() string { return filepath.Join(e.cfg.RunDir, "bin") }
