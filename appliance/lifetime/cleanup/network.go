package cleanup

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"rivulet/appliance/config/fixed"
	"rivulet/appliance/machine/host"
	"rivulet/fabric/netmon"
)

// namespaces removes the network namespaces of pods without processes.
func (c *cleaner) namespaces() {
	names, _ := filepath.Glob(filepath.Join(netnsDir, netnsMark+"*"))
	// The container runtime uses /var/run, which is only by convention the same folder.
	if a, err := os.Stat("/run"); err == nil {
		if b, err := os.Stat("/var/run"); err == nil && !os.SameFile(a, b) {
			more, _ := filepath.Glob(filepath.Join("/var", netnsDir, netnsMark+"*"))
			names = append(names, more...)
		}
	}
	used := usedNamespaces()
	n := 0
	for _, name := range names {
		var st unix.Stat_t
		if err := unix.Stat(name, &st); err == nil && used[st.Ino] {
			continue // of another container runtime
		}
		if err := unix.Unmount(name, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
			c.left("network namespace %s: %v; ip netns delete %s", name, err, filepath.Base(name))
			continue
		}
		if os.Remove(name) == nil {
			n++
		}
	}
	if n > 0 {
		c.removed("network namespaces (%d)", n)
	}
}

// usedNamespaces are the inodes of the network namespaces of processes.
func usedNamespaces() map[uint64]bool {
	used := map[uint64]bool{}
	links, _ := filepath.Glob("/proc/[0-9]*/ns/net")
	for _, l := range links {
		var st unix.Stat_t
		if unix.Stat(l, &st) == nil {
			used[st.Ino] = true
		}
	}
	return used
}

// links removes the interfaces of tunnel and pods, and Rivulet's addresses on lo.
func (c *cleaner) links() {
	all, err := netmon.Dump(netlink.LinkList) // interfaces of pods are disappearing now
	if err != nil {
		c.left("interfaces cannot be listed: %v; run this again as root", err)
		return
	}
	bridge := 0
	for _, l := range all {
		if c.ourBridge(l) {
			bridge = l.Attrs().Index
		}
	}
	if c.foreign != "" && slices.ContainsFunc(all, func(l netlink.Link) bool { return bridge != 0 && l.Attrs().MasterIndex == bridge }) {
		c.kept("interface %s: it has pods of another Kubernetes (%s)", fixed.Bridge, c.foreign)
		bridge = 0
	}
	for _, l := range all {
		a := l.Attrs()
		ours := bridge != 0 && (a.Index == bridge || a.MasterIndex == bridge) ||
			a.Name == fixed.Tunnel && (l.Type() == "tuntap" || l.Type() == "tun")
		if !ours {
			continue
		}
		var gone netlink.LinkNotFoundError // removed with its bridge or its namespace
		if err := netlink.LinkDel(l); err != nil && !errors.Is(err, unix.ENODEV) && !errors.As(err, &gone) {
			c.left("interface %s: %v; ip link delete %s", a.Name, err, a.Name)
			continue
		}
		c.removed("interface %s", a.Name)
	}
	c.loopback()
}

// ourBridge reports whether a link is the bridge of Rivulet's pods: others use k3s's name for it, too, but not the
// addresses.
func (c *cleaner) ourBridge(l netlink.Link) bool {
	if l.Attrs().Name != fixed.Bridge || l.Type() != "bridge" {
		return false
	}
	addrs, err := netmon.Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(l, netlink.FAMILY_V4) })
	if err != nil {
		return false
	}
	for _, a := range addrs {
		if !contains(fixed.PodCIDR, a.IP) {
			return false
		}
	}
	return true
}

// loopback removes the node's address and the route of the Services from lo.
func (c *cleaner) loopback() {
	rules, err := host.DropRules()
	if err != nil {
		c.left("%v", err)
	}
	for _, r := range rules {
		c.removed("%s", r)
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return
	}
	routes, err := netmon.Dump(func() ([]netlink.Route, error) { return netlink.RouteList(lo, netlink.FAMILY_V4) })
	if err != nil {
		c.left("routes on lo cannot be listed: %v; run this again", err)
	}
	for _, r := range routes {
		if r.Dst == nil || r.Dst.String() != fixed.ServiceCIDR.String() {
			continue
		}
		if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
			c.left("route %s on lo: %v; ip route delete %s dev lo", r.Dst, err, r.Dst)
			continue
		}
		c.removed("route %s on lo", r.Dst)
	}
	addrs, err := netmon.Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(lo, netlink.FAMILY_V4) })
	if err != nil {
		c.left("addresses on lo cannot be listed: %v; run this again", err)
	}
	for _, a := range addrs {
		if ones, _ := a.Mask.Size(); ones != 32 || !contains(fixed.NodeRange, a.IP) && !(c.forgotten.IsValid() && contains(c.forgotten, a.IP)) {
			continue
		}
		if err := netlink.AddrDel(lo, &a); err != nil {
			c.left("address %s on lo: %v; ip address delete %s dev lo", a.IPNet, err, a.IPNet)
			continue
		}
		c.removed("address %s on lo", strings.TrimSuffix(a.IPNet.String(), "/32"))
	}
}

func contains(p netip.Prefix, ip net.IP) bool {
	addr, ok := netip.AddrFromSlice(ip.To4())
	return ok && p.Contains(addr)
}
