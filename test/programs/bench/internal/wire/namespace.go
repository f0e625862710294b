// Package wire measures a tunnel: two nodes on one cable, a pod behind each, a
// load generator in the pods, and between the nodes either Rivulet's tunnel or a
// bare wireguard-go.
//
//	podA ── nodeA ══ veth, MTU 1500 ══ nodeB ── podB       four network namespaces
//
// The namespaces have no name: they belong to this process and to the tunnels it
// started (which the kernel ends with it), so nothing of them can stay behind.
// Load runs in goroutines of this process, through sockets opened in the pods.
package wire

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// Namespace is a network namespace.
type Namespace struct{ handle netns.NsHandle }

// NewNamespace makes one in which lo is up.
func NewNamespace() (*Namespace, error) {
	n := &Namespace{}
	err := onThread(func() (err error) {
		if n.handle, err = netns.New(); err != nil {
			return err
		}
		return up("lo")
	})
	if err != nil {
		return nil, fmt.Errorf("wire: make a network namespace: %w; run as root", err)
	}
	return n, nil
}

// OfProcess is the namespace that a process is in.
func OfProcess(pid int) (*Namespace, error) {
	h, err := netns.GetFromPid(pid)
	if err != nil {
		return nil, fmt.Errorf("wire: network namespace of process %d: %w", pid, err)
	}
	return &Namespace{h}, nil
}

// FD is the descriptor of it, good until Close.
func (n *Namespace) FD() int { return int(n.handle) }

// Close lets go of it.
func (n *Namespace) Close() error { return n.handle.Close() }

// Do calls f on a thread in the namespace. What f opens or starts stays in it.
func (n *Namespace) Do(f func() error) error {
	return onThread(func() error {
		if err := netns.Set(n.handle); err != nil {
			return fmt.Errorf("wire: enter a network namespace: %w", err)
		}
		return f()
	})
}

// onThread calls f on a thread of its own, which ends with it: threads that were
// in another namespace are not used again.
func onThread(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		done <- f()
	}()
	return <-done
}

func up(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("wire: %s: %w", name, err)
	}
	return netlink.LinkSetUp(link)
}

// cable joins two namespaces.
func cable(a *Namespace, aName, aAddr string, b *Namespace, bName, bAddr string) error {
	err := a.Do(func() error {
		return netlink.LinkAdd(&netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: aName}, PeerName: bName, PeerNamespace: netlink.NsFd(b.handle),
		})
	})
	if err != nil {
		return fmt.Errorf("wire: cable: %w", err)
	}
	return errors.Join(
		a.Do(func() error { return setUp(aName, aAddr) }),
		b.Do(func() error { return setUp(bName, bAddr) }))
}

// setUp gives a link an address, if there is one, and brings it up.
func setUp(name, cidr string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("wire: %s: %w", name, err)
	}
	if cidr != "" {
		addr, err := netlink.ParseAddr(cidr)
		if err != nil {
			return fmt.Errorf("wire: %w", err)
		}
		if err := netlink.AddrReplace(link, addr); err != nil {
			return fmt.Errorf("wire: address %s: %w", cidr, err)
		}
	}
	return netlink.LinkSetUp(link)
}

// route sends dst through a link, or through a gateway on it.
func route(dst, dev, via string) error {
	link, err := netlink.LinkByName(dev)
	if err != nil {
		return fmt.Errorf("wire: %s: %w", dev, err)
	}
	_, to, err := parseCIDR(dst)
	if err != nil {
		return err
	}
	r := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: to}
	if via != "" {
		r.Gw = parseIP(via)
	} else {
		r.Scope = netlink.SCOPE_LINK
	}
	if err := netlink.RouteReplace(r); err != nil {
		return fmt.Errorf("wire: route %s: %w", dst, err)
	}
	return nil
}

// forward lets the namespace route.
func forward() error {
	return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644)
}
