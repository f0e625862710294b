package lab

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// Attach connects a network namespace that is no device's to the LAN: a port of that
// name on the bridge, eth0 with the address (and its prefix length) in the namespace. It
// goes with the namespace, or with the lab.
func (l *Lab) Attach(port string, ns int, address string) error {
	s, err := loadState(l.dir)
	if err != nil {
		return err
	}
	err = inNetns(s.LAN, func(h *netlink.Handle, _ netns.NsHandle) error {
		br, err := h.LinkByName(bridgeName)
		if err != nil {
			return err
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MasterIndex = port, br.Attrs().Index
		if err := h.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: deviceNIC, PeerNamespace: netlink.NsFd(ns)}); err != nil {
			return err
		}
		link, err := h.LinkByName(port)
		if err != nil {
			return err
		}
		return h.LinkSetUp(link)
	})
	if err != nil {
		return fmt.Errorf("lab: attach %s: %w", port, err)
	}
	h, err := netlink.NewHandleAt(netns.NsHandle(ns))
	if err != nil {
		return fmt.Errorf("lab: attach %s: %w", port, err)
	}
	defer h.Close()
	nic, err := h.LinkByName(deviceNIC)
	if err == nil {
		err = setAddress(h, nic, address)
	}
	if err == nil {
		err = h.LinkSetUp(nic)
	}
	if err != nil {
		return fmt.Errorf("lab: attach %s: %w", port, err)
	}
	return nil
}
