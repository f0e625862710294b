package controlplane

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"

	"github.com/vishvananda/netlink"
)

// confine drops all rights that the process does not need, for good: it sees only its own folder of the file system and
// its own loopback, and runs as a user without capabilities. The supervisor has put it into its own network namespace.
// The loopback has the address of the host, too, so that the API server finds the kubelet API of a node at its address.
func confine(uid int, host netip.Addr) error {
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err == nil && host.Is4() && !host.IsLoopback() {
		err = netlink.AddrAdd(lo, &netlink.Addr{IPNet: &net.IPNet{IP: host.AsSlice(), Mask: net.CIDRMask(32, 32)}})
	}
	if err != nil {
		return fmt.Errorf("the loopback interface: %w", err)
	}
	if uid <= 0 {
		return errors.New("a virtual cluster does not run as root")
	}
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"chroot", func() error { return syscall.Chroot(".") }},
		{"chdir", func() error { return os.Chdir(Data) }},
		{"setgroups", func() error { return syscall.Setgroups(nil) }},
		{"setgid", func() error { return syscall.Setgid(uid) }},
		{"setuid", func() error { return syscall.Setuid(uid) }},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
	}
	if syscall.Setuid(0) == nil {
		return errors.New("the process could become root again")
	}
	return nil
}
