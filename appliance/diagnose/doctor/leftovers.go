package doctor

import (
	"context"
	"slices"
	"strings"

	"rivulet/appliance/health"
	"rivulet/appliance/machine/neighbour"
)

var leftovers = Probe{Kind: health.Leftovers, Title: "other Kubernetes", Every: rarely, Run: probeLeftovers}

// otherNetworks are the prefixes of interfaces of other pod networks.
var otherNetworks = []string{"flannel", "cali", "tunl0", "vxlan.calico", "cilium_", "lxc_health", "weave", "kube-bridge", "kube-ipvs0", "antrea", "ovn"}

func probeLeftovers(_ context.Context, e *Env) Result {
	for _, f := range neighbour.Find(e.path("/proc"), e.Run) {
		if f.Port == 0 && !e.isOurs(f.PID) { // without root it is not visible whose a port is
			return Failf("end it, and keep it from starting again (systemctl disable --now k3s, or kubelet); one machine has room for one",
				"%s (pid %d) runs here: two Kubernetes fight for the same ports, rules and containers", f.Name, f.PID)
		}
	}
	var found []string
	all, _ := e.Links() // without links the files still show it
	for _, l := range all {
		if slices.ContainsFunc(otherNetworks, func(p string) bool { return strings.HasPrefix(l.Name, p) }) {
			found = append(found, "interface "+l.Name)
		}
	}
	found = append(found, e.glob("/etc/cni/net.d/*.conf")...)
	found = append(found, e.glob("/etc/cni/net.d/*.conflist")...)
	if len(found) > 0 {
		return Warnf("remove what is no longer needed with the other product's own uninstaller (k3s-uninstall.sh, kubeadm reset), or reboot after it",
			"left by another Kubernetes: %s", strings.Join(found, ", "))
	}
	return Passf("none")
}
