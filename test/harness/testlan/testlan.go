// Package testlan makes a LAN for tests: a bridge and devices on it, each in a
// network namespace of its own, all gone when the test ends. It is for tests only
// and needs root.
package testlan

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// LAN is a bridge in a namespace of its own.
type LAN struct {
	t      testing.TB
	ns     netns.NsHandle
	bridge netlink.Link
	n      int
}

// Device is a namespace with one cable, eth0, to the LAN.
type Device struct {
	t   testing.TB
	lan *LAN
	ns  netns.NsHandle
	n   int
}

// New makes an empty LAN, or skips the test if it may not.
func New(t testing.TB) *LAN {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to make network namespaces")
	}
	l := &LAN{t: t}
	l.ns = namespace(t)
	l.in(l.ns, func() error {
		br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "lan"}}
		if err := netlink.LinkAdd(br); err != nil {
			return err
		}
		l.bridge = br
		return netlink.LinkSetUp(br)
	})
	return l
}

// Device adds a device without an address.
func (l *LAN) Device() *Device {
	l.t.Helper()
	l.n++
	d := &Device{t: l.t, lan: l, ns: namespace(l.t), n: l.n}
	l.in(l.ns, func() error {
		port := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprintf("port%d", d.n)}, PeerName: "eth0", PeerNamespace: netlink.NsFd(d.ns)}
		if err := netlink.LinkAdd(port); err != nil {
			return err
		}
		if err := netlink.LinkSetMaster(port, l.bridge); err != nil {
			return err
		}
		return netlink.LinkSetUp(port)
	})
	d.do(func(eth0 netlink.Link) error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(lo); err != nil {
			return err
		}
		return netlink.LinkSetUp(eth0)
	})
	return d
}

// SetAddr gives the device the one IPv4 address (with prefix length) that it has.
func (d *Device) SetAddr(cidr string) {
	d.t.Helper()
	d.do(func(eth0 netlink.Link) error {
		old, err := netlink.AddrList(eth0, netlink.FAMILY_V4)
		if err != nil {
			return err
		}
		for _, a := range old {
			if err := netlink.AddrDel(eth0, &a); err != nil {
				return err
			}
		}
		addr, err := netlink.ParseAddr(cidr)
		if err != nil {
			return err
		}
		return netlink.AddrAdd(eth0, addr)
	})
}

// SetAddr6 gives the device the one IPv6 address (with prefix length) that it has,
// link-local for example, usable at once.
func (d *Device) SetAddr6(cidr string) {
	d.t.Helper()
	d.do(func(eth0 netlink.Link) error {
		addr, err := netlink.ParseAddr(cidr)
		if err != nil {
			return err
		}
		addr.Flags = unix.IFA_F_NODAD
		if err := netlink.AddrReplace(eth0, addr); err != nil {
			return err
		}
		all, err := netlink.AddrList(eth0, netlink.FAMILY_V6)
		if err != nil {
			return err
		}
		for _, a := range all {
			if !a.IP.Equal(addr.IP) {
				if err := netlink.AddrDel(eth0, &a); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// Do runs what on a thread in the device's network; sockets made there stay there.
func (d *Device) Do(what func() error) { d.t.Helper(); d.lan.in(d.ns, what) }

// Add adds an interface that is no LAN, such as a container's.
func (d *Device) Add(name, cidr string) {
	d.t.Helper()
	d.do(func(netlink.Link) error {
		br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}
		if err := netlink.LinkAdd(br); err != nil {
			return err
		}
		addr, err := netlink.ParseAddr(cidr)
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(br, addr); err != nil {
			return err
		}
		return netlink.LinkSetUp(br)
	})
}

// Plug and Unplug are the cable.
func (d *Device) Plug()   { d.do(netlink.LinkSetUp) }
func (d *Device) Unplug() { d.do(netlink.LinkSetDown) }

func (d *Device) do(what func(eth0 netlink.Link) error) {
	d.t.Helper()
	d.lan.in(d.ns, func() error {
		eth0, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return what(eth0)
	})
}

// Process is one that runs on a device: the test's own binary again, with an
// environment by which TestMain knows what to be.
type Process struct {
	cmd    *exec.Cmd
	In     io.Writer
	Out    io.Reader
	in     io.Closer
	mu     sync.Mutex
	ended  bool
	stderr bytes.Buffer
}

// Start runs the test binary on the device.
func (d *Device) Start(env ...string) *Process {
	d.t.Helper()
	p := &Process{cmd: exec.Command("/proc/self/exe")}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stderr = &p.stderr
	in, err := p.cmd.StdinPipe()
	if err != nil {
		d.t.Fatal(err)
	}
	p.In, p.in = in, in
	if p.Out, err = p.cmd.StdoutPipe(); err != nil {
		d.t.Fatal(err)
	}
	d.lan.in(d.ns, p.cmd.Start) // a child is born into the namespace of the thread
	d.t.Cleanup(func() {
		p.Kill()
		if d.t.Failed() {
			d.t.Logf("device %d:\n%s", d.n, p.stderr.String())
		}
	})
	return p
}

// Kill ends the process as a power cut would.
func (p *Process) Kill() { p.end(func() { p.cmd.Process.Kill() }) }

// Stop closes the process's input, which it takes as a request to end, and waits.
func (p *Process) Stop() { p.end(func() { p.in.Close() }) }

func (p *Process) end(how func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.ended {
		p.ended = true
		how()
		p.cmd.Wait()
	}
}

func namespace(t testing.TB) netns.NsHandle {
	t.Helper()
	done := make(chan error)
	var ns netns.NsHandle
	go func() { // the thread is not unlocked: it ends with the goroutine, and the namespace it is in does not matter
		runtime.LockOSThread()
		var err error
		ns, err = netns.New()
		done <- err
	}()
	if err := <-done; err != nil {
		t.Skipf("needs the right to make network namespaces: %v", err)
	}
	t.Cleanup(func() { ns.Close() })
	return ns
}

// in runs what on a thread in the namespace.
func (l *LAN) in(ns netns.NsHandle, what func() error) {
	l.t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := netns.Set(ns)
		if err == nil {
			err = what()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		l.t.Fatalf("testlan: %v", err)
	}
}
