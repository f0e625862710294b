// Package resets ends TCP connections with a lost peer address: in a prefix that a peer had and has given up. It reads
// connection tracking, which has both ends of a connection through a Service, and the sockets of this device and its
// pods. It ends sockets like `ss -K`: their programs get an error at once, the other end a reset. It has no state.
// Failure: without INET_DIAG_DESTROY in the kernel it returns an error, and such connections end by their own timeouts.
package resets

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"rivulet/offload/nodeagent/podnet"
)

// ports are the two of a connection, the local one first, from the view of its end: kube-proxy changes neither of a
// client, so Sockets finds it by them in one network namespace.
type ports [2]uint16

// Prefixes ends all connections of this device and its pods with an end in one of the prefixes, and returns how many.
func Prefixes(pods []podnet.Pod, gone []netip.Prefix) (int, error) {
	return prefixes(pods, gone, podnet.Namespace)
}

func prefixes(pods []podnet.Pod, gone []netip.Prefix, open func(veth string) (*os.File, error)) (ended int, err error) {
	h, err := netlink.NewHandle(unix.NETLINK_NETFILTER)
	if err != nil {
		return 0, fault(err)
	}
	defer h.Close()
	flows, err := h.ConntrackTableList(netlink.ConntrackTable, netlink.FAMILY_V4)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return 0, fault(err)
	}
	ends := map[netip.Addr]map[ports]bool{}
	for _, f := range flows {
		if f.Forward.Protocol != unix.IPPROTO_TCP || !within(gone).MatchConntrackFlow(f) {
			continue
		}
		for _, t := range []netlink.IPTuple{f.Forward, f.Reverse} {
			a, _ := netip.AddrFromSlice(t.SrcIP.To4())
			if ends[a] == nil {
				ends[a] = map[ports]bool{}
			}
			ends[a][ports{t.SrcPort, t.DstPort}] = true
		}
	}
	if len(ends) == 0 {
		return 0, nil
	}
	var failed error
	for _, p := range pods {
		of := ends[p.Addr]
		delete(ends, p.Addr)
		if of == nil {
			continue
		}
		ns, err := open(p.Veth)
		if errors.Is(err, podnet.ErrGone) {
			continue
		}
		if err == nil {
			var n int
			n, err = Sockets(netns.NsHandle(ns.Fd()), func(local, remote netip.AddrPort) bool { return of[ports{local.Port(), remote.Port()}] })
			ended += n
			ns.Close()
		}
		failed = errors.Join(failed, err)
	}
	n, err := Sockets(netns.None(), func(local, remote netip.AddrPort) bool { return ends[local.Addr()][ports{local.Port(), remote.Port()}] })
	_, forget := h.ConntrackDeleteFilters(netlink.ConntrackTable, netlink.FAMILY_V4, within(gone))
	return ended + n, errors.Join(failed, err, fault(forget))
}

// Sockets ends the TCP connections in a network namespace that match, and returns how many.
func Sockets(ns netns.NsHandle, match func(local, remote netip.AddrPort) bool) (ended int, err error) {
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_INET_DIAG)
	if err != nil {
		return 0, fault(err)
	}
	defer h.Close()
	var failed error
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} { // IPv6 sockets may have IPv4 addresses
		all, err := h.SocketDiagTCP(family)
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			return ended, fault(err)
		}
		for _, s := range all {
			local, remote := end(s.ID.Source, s.ID.SourcePort), end(s.ID.Destination, s.ID.DestinationPort)
			if s.State == listening || !local.Addr().Is4() || !remote.Addr().Is4() || !match(local, remote) {
				continue
			}
			err := h.SocketDestroy(net.TCPAddrFromAddrPort(local), net.TCPAddrFromAddrPort(remote))
			if err == nil {
				ended++
			} else if !errors.Is(err, unix.ENOENT) { // just ended
				failed = errors.Join(failed, err)
			}
		}
	}
	return ended, fault(failed)
}

// listening is the state of a socket that waits for connections.
const listening = 10

func end(ip net.IP, port uint16) netip.AddrPort {
	a, _ := netip.AddrFromSlice(ip)
	return netip.AddrPortFrom(a.Unmap(), port)
}

func fault(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("resets: connections that lead nowhere could not be ended: %w; the kernel needs NF_CT_NETLINK and INET_DIAG_DESTROY; else start again what waits", err)
}

// within matches connections to and from prefixes.
type within []netip.Prefix

func (w within) MatchConntrackFlow(f *netlink.ConntrackFlow) bool {
	for _, ip := range []net.IP{f.Forward.SrcIP, f.Forward.DstIP, f.Reverse.SrcIP, f.Reverse.DstIP} {
		if a, ok := netip.AddrFromSlice(ip.To4()); ok && slices.ContainsFunc(w, func(p netip.Prefix) bool { return p.Contains(a) }) {
			return true
		}
	}
	return false
}
