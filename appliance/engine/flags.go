package engine

import (
	"path/filepath"
	"strings"
)

// Args returns the command line of the engine. Every flag that is not a plain
// path or address carries its reason.
func (e *Engine) Args() []string {
	c := e.cfg
	args := []string{
		"server",
		"--data-dir=" + e.DataDir(),
		"--write-kubeconfig=" + e.Kubeconfig(),
		"--write-kubeconfig-mode=0600",
		"--private-registry=/etc/rivulet/registries.yaml",
		"--node-name=" + c.NodeName,
		// The node's own address for life: DHCP, cables and Wi-Fi may change under it.
		"--node-ip=" + c.NodeIP.String(),
		"--flannel-iface=lo",
		"--flannel-backend=host-gw",
		"--cluster-cidr=" + c.PodCIDR.String(),
		"--service-cidr=" + c.ServiceCIDR.String(),
		"--cluster-dns=" + c.ClusterDNS.String(),
		"--pause-image=" + PauseRef,
		// Add-ons run inside the supervisor or not at all.
		"--disable=traefik,servicelb,coredns,local-storage,metrics-server",
		"--disable-helm-controller",
		"--disable-cloud-controller",
		"--disable-network-policy",
		// The API server must reach a virtual node's kubelet port by itself.
		"--egress-selector-mode=disabled",
		// Admission for offloaded namespaces is CEL in the API server (beta in 1.35).
		"--kube-apiserver-arg=feature-gates=MutatingAdmissionPolicy=true",
		"--kube-apiserver-arg=runtime-config=admissionregistration.k8s.io/v1beta1=true",
	}
	if c.Facts.CgroupV1 {
		// The kubelet of 1.35 refuses cgroup v1 unless told otherwise.
		args = append(args, "--kubelet-arg=fail-cgroupv1=false")
	}
	if r := e.reserved(); r != "" {
		args = append(args, "--kubelet-arg=system-reserved="+r)
	}
	return args
}

func (e *Engine) reserved() string {
	var parts []string
	if e.cfg.ReserveCPU != "" {
		parts = append(parts, "cpu="+e.cfg.ReserveCPU)
	}
	if e.cfg.ReserveMemory != "" {
		parts = append(parts, "memory="+e.cfg.ReserveMemory)
	}
	return strings.Join(parts, ",")
}

// PauseRef names the sandbox image that the bundle carries.
const PauseRef = "rivulet.dev/pause:1"

func (e *Engine) binDir() string { return filepath.Join(e.cfg.RunDir, "bin") }
