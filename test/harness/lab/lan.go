package lab

import (
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// The LAN is 10.77.0.0/24 without a router: devices get .11, .12 …, renumbered ones .101 and up.
const (
	bridgeName    = "br0"
	firstIP       = 11
	firstNewIP    = 101
	lastIP        = 254
	maxDevices    = 26
	lanTable      = "rivulet-lab"
	deviceNIC     = "eth0"
	lanPrefixBits = 24
)

func lanAddress(last int) string { return fmt.Sprintf("10.77.0.%d/%d", last, lanPrefixBits) }

// inNetns calls f with a netlink handle that acts inside the network namespace of process p.
func inNetns(p Proc, f func(*netlink.Handle, netns.NsHandle) error) error {
	ns, err := netns.GetFromPid(p.PID)
	if err != nil || !p.Alive() { // alive after opening: then it was the right process's namespace
		if err == nil {
			ns.Close()
		}
		return fmt.Errorf("lab: process %d is gone: start it again with `rivulet-lab start` or `rivulet-lab down` and `up`", p.PID)
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns)
	if err != nil {
		return fmt.Errorf("lab: netlink: %w", err)
	}
	defer h.Close()
	return f(h, ns)
}

// makeBridge makes the LAN's switch, and gives it the router's addresses. Snooping is off: with no querier on the LAN, it would stop multicast after minutes.
func makeBridge(lan Proc, hasRouter bool) error {
	return inNetns(lan, func(h *netlink.Handle, _ netns.NsHandle) error {
		snooping := false
		attrs := netlink.NewLinkAttrs()
		attrs.Name = bridgeName
		br := &netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &snooping}
		if err := h.LinkAdd(br); err != nil {
			return fmt.Errorf("lab: make bridge: %w", err)
		}
		if hasRouter {
			for _, cidr := range []string{router + "/24", router6 + "/64"} {
				a, err := netlink.ParseAddr(cidr)
				if err == nil {
					err = h.AddrAdd(br, a)
				}
				if err != nil {
					return fmt.Errorf("lab: address of the router: %w", err)
				}
			}
		}
		return h.LinkSetUp(br)
	})
}

// plugIn connects an interface of a device that is on: a port on the bridge, NAME in the device.
func plugIn(lan Proc, d *deviceState, n nicState) error {
	mac, err := net.ParseMAC(n.MAC)
	if err != nil {
		return fmt.Errorf("lab: %w", err)
	}
	port := d.port(n.Name)
	err = inNetns(lan, func(h *netlink.Handle, _ netns.NsHandle) error {
		br, err := h.LinkByName(bridgeName)
		if err != nil {
			return fmt.Errorf("lab: bridge: %w", err)
		}
		if old, err := h.LinkByName(port); err == nil { // of a device that lost power a moment ago
			if err := h.LinkDel(old); err != nil && !errors.Is(err, unix.ENODEV) {
				return fmt.Errorf("lab: remove old port %s: %w", port, err)
			}
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MasterIndex = port, br.Attrs().Index
		if n.MTU > 0 {
			attrs.MTU = n.MTU
		}
		veth := &netlink.Veth{LinkAttrs: attrs, PeerName: n.Name, PeerHardwareAddr: mac, PeerNamespace: netlink.NsPid(d.Init.PID)}
		if err := h.LinkAdd(veth); err != nil {
			return fmt.Errorf("lab: make cable of %s: %w", port, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return configure(d, n)
}

// startLoopback is what an init does first.
func startLoopback(d *deviceState) error {
	return inNetns(d.Init, func(h *netlink.Handle, _ netns.NsHandle) error {
		lo, err := h.LinkByName("lo")
		if err == nil {
			err = h.LinkSetUp(lo)
		}
		if err != nil {
			return fmt.Errorf("lab: lo in %s: %w", d.Name, err)
		}
		return nil
	})
}

// setAddress gives the link one IPv4 address, as a DHCP client does whose lease was refused: the old one goes first. (The
// other way round the kernel would take the new one, a secondary of the same subnet, along with the old.) An empty one
// leaves the link without.
func setAddress(h *netlink.Handle, l netlink.Link, cidr string) error {
	var want *netlink.Addr
	if cidr != "" {
		var err error
		if want, err = netlink.ParseAddr(cidr); err != nil {
			return fmt.Errorf("lab: %w", err)
		}
	}
	old, err := h.AddrList(l, netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("lab: addresses of %s: %w", l.Attrs().Name, err)
	}
	for _, a := range old {
		if want == nil || !a.IPNet.IP.Equal(want.IP) {
			if err := h.AddrDel(l, &a); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
				return fmt.Errorf("lab: remove address %s: %w", a.IPNet, err)
			}
		}
	}
	if want == nil {
		return nil
	}
	if err := h.AddrReplace(l, want); err != nil {
		return fmt.Errorf("lab: set address %s: %w", cidr, err)
	}
	return nil
}

// applyCables brings the LAN in line with the state: cables in or out, and the pairs that are cut. It may be called at any time.
func applyCables(s *state) error {
	return inNetns(s.LAN, func(h *netlink.Handle, ns netns.NsHandle) error {
		for _, d := range s.Devices {
			for _, n := range d.nics() {
				l, err := h.LinkByName(d.port(n.Name))
				if err != nil {
					continue // powered off: it has no port
				}
				set := h.LinkSetUp
				if n.Unplugged {
					set = h.LinkSetDown
				}
				if err := set(l); err != nil {
					return fmt.Errorf("lab: cable %s: %w", d.port(n.Name), err)
				}
			}
		}
		return applyCuts(ns, s.cutPorts())
	})
}

// cutPorts are the pairs of ports between which nothing passes.
func (s *state) cutPorts() (out [][2]string) {
	for _, c := range s.Cuts {
		for _, a := range s.device(c[0]).ports() {
			for _, b := range s.device(c[1]).ports() {
				out = append(out, [2]string{a, b})
			}
		}
	}
	return out
}

// applyCuts replaces the bridge filter in one transaction: one dropping rule per pair and direction, broadcasts included.
func applyCuts(ns netns.NsHandle, cuts [][2]string) error {
	c, err := nftables.New(nftables.WithNetNSFd(int(ns)))
	if err != nil {
		return fmt.Errorf("lab: nftables: %w", err)
	}
	t := &nftables.Table{Family: nftables.TableFamilyBridge, Name: lanTable}
	c.AddTable(t) // so that deleting it cannot fail
	c.DelTable(t)
	if len(cuts) > 0 {
		c.AddTable(t)
		chain := c.AddChain(&nftables.Chain{
			Name: "forward", Table: t, Type: nftables.ChainTypeFilter,
			Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter,
		})
		for _, p := range cuts {
			for _, way := range [][2]string{{p[0], p[1]}, {p[1], p[0]}} {
				c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: slices.Concat(
					matchPort(expr.MetaKeyIIFNAME, way[0]), matchPort(expr.MetaKeyOIFNAME, way[1]),
					[]expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}},
				)})
			}
		}
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("lab: bridge filter: %w (needs a kernel with nftables for bridges, CONFIG_NF_TABLES_BRIDGE)", err)
	}
	return nil
}

func matchPort(key expr.MetaKey, port string) []expr.Any {
	name := make([]byte, unix.IFNAMSIZ)
	copy(name, port)
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: name}}
}
