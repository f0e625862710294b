// Package testns makes network namespaces for tests: rooms with links, addresses and
// listeners of their own, gone with the test.
package testns

import (
	"errors"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// Room is a network namespace.
type Room struct {
	t  testing.TB
	NS netns.NsHandle
}

// New makes one with lo up; without the right to, the test is skipped.
func New(t testing.TB) Room {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to make network namespaces")
	}
	r := Room{t: t}
	done := make(chan error)
	go func() { // the thread ends with the goroutine
		runtime.LockOSThread()
		var err error
		r.NS, err = netns.New()
		done <- err
	}()
	if err := <-done; err != nil {
		t.Skipf("needs the right to make network namespaces: %v", err)
	}
	t.Cleanup(func() { r.NS.Close() })
	r.Do(func() error { return Give("lo", "") })
	return r
}

// Do runs what inside; an error ends the test.
func (r Room) Do(what func() error) {
	r.t.Helper()
	if err := r.Try(what); err != nil {
		r.t.Fatal(err)
	}
}

// Try runs what inside; sockets that are made there stay there.
func (r Room) Try(what func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := netns.Set(r.NS)
		if err == nil {
			err = what()
		}
		done <- err
	}()
	return <-done
}

// Give gives the link of the calling thread's namespace an address, unless "", and
// brings it up.
func Give(name, cidr string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	if cidr != "" {
		a, err := netlink.ParseAddr(cidr)
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(l, a); err != nil {
			return err
		}
	}
	return netlink.LinkSetUp(l)
}

// Route adds a route by a gateway, in the calling thread's namespace.
func Route(dst, via string) error {
	_, n, err := net.ParseCIDR(dst)
	if err != nil {
		return err
	}
	return netlink.RouteAdd(&netlink.Route{Dst: n, Gw: net.ParseIP(via)})
}

// Cable joins two rooms by a pair of links.
func (r Room) Cable(name string, other Room, theirs string) {
	r.t.Helper()
	r.Do(func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: theirs, PeerNamespace: netlink.NsFd(other.NS)})
	})
}

// Router lets the room pass packets on, those between ports of one bridge through the
// same rules (br_netfilter), as a kubelet sets it; without that the test is skipped.
func (r Room) Router() {
	r.t.Helper()
	r.Do(func() error {
		if err := os.WriteFile("/proc/sys/net/bridge/bridge-nf-call-iptables", []byte("1"), 0o644); err != nil {
			r.t.Skipf("needs br_netfilter: %v", err)
		}
		return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644)
	})
}

// Bridge makes a bridge with an address.
func (r Room) Bridge(name, cidr string) {
	r.t.Helper()
	r.Do(func() error {
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}); err != nil {
			return err
		}
		return Give(name, cidr)
	})
}

// Plug joins pod to a bridge of r as a container network does. The room's end is veth,
// the pod's is eth0, whose MAC address is returned.
func (r Room) Plug(bridge, veth string, pod Room, cidr, gateway string) (mac string) {
	r.t.Helper()
	r.Cable(veth, pod, "eth0")
	r.Do(func() error {
		l, err := netlink.LinkByName(veth)
		if err != nil {
			return err
		}
		br, err := netlink.LinkByName(bridge)
		if err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetMaster(l, br), netlink.LinkSetHairpin(l, true), netlink.LinkSetUp(l))
	})
	pod.Do(func() error {
		if err := Give("eth0", cidr); err != nil {
			return err
		}
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		mac = l.Attrs().HardwareAddr.String()
		return Route("0.0.0.0/0", gateway)
	})
	return mac
}

// Listen answers TCP connections at the address and ends them.
func (r Room) Listen(addr string) {
	r.t.Helper()
	r.Do(func() error {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			return err
		}
		r.t.Cleanup(func() { l.Close() })
		go hangUp(l)
		return nil
	})
}

// Echo answers UDP at the address.
func (r Room) Echo(addr string) {
	r.t.Helper()
	r.Do(func() error {
		c, err := net.ListenPacket("udp", addr)
		if err != nil {
			return err
		}
		r.t.Cleanup(func() { c.Close() })
		go func() {
			b := make([]byte, 64)
			for {
				n, from, err := c.ReadFrom(b)
				if err != nil {
					return
				}
				_, _ = c.WriteTo(b[:n], from)
			}
		}()
		return nil
	})
}

// Hears reports whether an Echo answers.
func (r Room) Hears(addr string) (ok bool) {
	r.t.Helper()
	r.Do(func() error {
		c, err := net.Dial("udp", addr)
		if err != nil {
			return nil
		}
		defer c.Close()
		b := make([]byte, 8)
		for range 4 { // a packet may be lost for want of a neighbour's address
			_ = c.SetDeadline(time.Now().Add(250 * time.Millisecond))
			if _, err := c.Write([]byte("x")); err == nil {
				if _, err := c.Read(b); err == nil {
					ok = true
					return nil
				}
			}
		}
		return nil
	})
	return ok
}
