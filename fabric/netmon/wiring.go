package netmon

import (
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
)

// wiring are all links of a network namespace. The kernel tells which of them lead to a cable or a radio, so that the
// bridges of Podman, LXD, Incus, libvirt and VirtualBox, which have any name, are no LANs:
//
//	a device of the hardware ─▶ yes            VLAN, macvlan and the like ─▶ as what they are on
//	bridge, bond, team ─▶ if a port leads      veth, tun, tap, dummy, vxlan and all else ─▶ no
type wiring []netlink.Link

// Kinds of links that lead where the link below them or one of their ports leads.
var (
	onAnother = []string{"vlan", "macvlan", "macvtap", "ipvlan", "macsec", "dsa", "lowpan", "ipoib"}
	withPorts = []string{"bridge", "bond", "team", "openvswitch", "batadv", "hsr"}
)

// deepest bounds the links on top of each other: the kernel allows 8.
const deepest = 8

// leads reports whether a link leads to a cable or a radio. A container has none, and its own link is a veth like those
// to the containers in it: there the name decides.
func (w wiring) leads(l netlink.Link) bool {
	if !slices.ContainsFunc(w, hardware) {
		return !slices.ContainsFunc(notLAN, func(prefix string) bool { return strings.HasPrefix(l.Attrs().Name, prefix) })
	}
	return w.wired(l, deepest)
}

func (w wiring) wired(l netlink.Link, deep int) bool {
	kind, a := l.Type(), l.Attrs()
	switch {
	case deep == 0:
		return false
	case hardware(l):
		return true
	case slices.Contains(onAnother, kind) && a.NetNsID < 0: // else the one below is in another namespace
		return slices.ContainsFunc(w, func(o netlink.Link) bool { return o.Attrs().Index == a.ParentIndex && w.wired(o, deep-1) })
	case kind == "openvswitch": // the kernel does not tell which of its bridges has a port
		return slices.ContainsFunc(w, func(o netlink.Link) bool {
			return hardware(o) && slices.ContainsFunc(w, func(m netlink.Link) bool { return m.Attrs().Index == o.Attrs().MasterIndex && m.Type() == kind })
		})
	case slices.Contains(withPorts, kind):
		return slices.ContainsFunc(w, func(o netlink.Link) bool { return o.Attrs().MasterIndex == a.Index && w.wired(o, deep-1) })
	}
	return false
}

// hardware reports whether a link is a device: the kernel's drivers for hardware, and those of virtual machines, have no
// kind and a device behind them. VirtualBox's and VMware's links to their machines have none.
func hardware(l netlink.Link) bool {
	if l.Type() != "device" {
		return false
	}
	if l.Attrs().ParentDev != "" {
		return true
	}
	_, err := os.Stat("/sys/class/net/" + l.Attrs().Name + "/device") // kernels before 5.14
	return err == nil
}

// notLAN begin the names of interfaces of containers, their bridges and tunnels.
var notLAN = []string{
	"cni", "veth", "flannel", "riv", "docker", "br-", "wg", "tun", "tap", "kube-", "cali", "cilium", "lxc", "lxdbr", "incusbr", "podman", "nerdctl",
	"virbr", "vnet", "mpqemubr", "vmnet", "vboxnet", "tailscale", "zt",
}
