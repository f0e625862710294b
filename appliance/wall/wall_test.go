package wall

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// room is a network namespace.
type room struct {
	t  *testing.T
	ns netns.NsHandle
}

func newRoom(t *testing.T) room {
	if os.Geteuid() != 0 {
		t.Skip("needs root to make network namespaces")
	}
	r := room{t: t}
	done := make(chan error)
	go func() { // the thread ends with the goroutine
		runtime.LockOSThread()
		var err error
		r.ns, err = netns.New()
		done <- err
	}()
	if err := <-done; err != nil {
		t.Skipf("needs the right to make network namespaces: %v", err)
	}
	t.Cleanup(func() { r.ns.Close() })
	r.do(func() error { return up("lo") })
	return r
}

func (r room) do(what func() error) {
	r.t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := netns.Set(r.ns)
		if err == nil {
			err = what()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		r.t.Fatal(err)
	}
}

func up(name string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(l)
}

func give(name, cidr string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	a, err := netlink.ParseAddr(cidr)
	if err != nil {
		return err
	}
	return errors.Join(netlink.AddrAdd(l, a), netlink.LinkSetUp(l))
}

func (r room) listen(addr string) {
	r.t.Helper()
	r.do(func() error {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			return err
		}
		r.t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				c.Close()
			}
		}()
		return nil
	})
}

func (r room) reaches(addr string) (ok bool) {
	r.t.Helper()
	r.do(func() error {
		c, err := net.DialTimeout("tcp", addr, 700*time.Millisecond)
		if ok = err == nil; ok {
			c.Close()
		}
		return nil
	})
	return ok
}

// A machine on the LAN and the device, with a route through the device to all that is
// behind it.
func TestWall(t *testing.T) {
	device, machine := newRoom(t), newRoom(t)
	device.do(func() error {
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "eth0", PeerNamespace: netlink.NsFd(machine.ns)}
		return errors.Join(netlink.LinkAdd(veth), give("eth0", "192.0.2.1/24"), give("lo", "100.127.7.7/32"))
	})
	machine.do(func() error {
		err := give("eth0", "192.0.2.2/24")
		_, to, _ := net.ParseCIDR("100.127.0.0/16")
		return errors.Join(err, netlink.RouteAdd(&netlink.Route{Dst: to, Gw: net.IPv4(192, 0, 2, 1)}))
	})
	for _, a := range []string{":6443", ":7442", ":8080", "100.127.7.7:1443"} {
		device.listen(a)
	}
	cfg := Config{Own: []string{"lo", "cni0", "riv0"}, Networks: []netip.Prefix{netip.MustParsePrefix("100.127.0.0/16"), netip.MustParsePrefix("10.42.0.0/16")},
		Ports: []uint16{6443, 10250}, Log: slog.New(slog.DiscardHandler), netns: int(device.ns)}
	closed := []string{"192.0.2.1:6443", "100.127.7.7:1443", "100.127.7.7:7442"}
	for _, a := range closed {
		if !machine.reaches(a) {
			t.Fatalf("without a wall %s is not reached: the test proves nothing", a)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan struct{}), make(chan struct{})
	var problem error
	cfg.Report = func(err error) { problem = err }
	go func() { defer close(done); Run(ctx, cfg, func() { close(ready) }) }()
	<-ready
	cancel()
	<-done
	if problem != nil {
		t.Skipf("needs nf_tables: %v", problem)
	}
	for _, a := range closed {
		if machine.reaches(a) {
			t.Errorf("the LAN reaches %s", a)
		}
		if !device.reaches(a) {
			t.Errorf("the device itself does not reach %s", a)
		}
	}
	for _, a := range []string{"192.0.2.1:7442", "192.0.2.1:8080"} {
		if !machine.reaches(a) {
			t.Errorf("the LAN does not reach %s", a)
		}
	}
	if !cfg.stands() {
		t.Error("a wall that stands is not seen")
	}
	c, err := cfg.conn()
	if err != nil {
		t.Fatal(err)
	}
	c.FlushRuleset()
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
	if cfg.stands() {
		t.Error("a wall that was flushed is not missed")
	}
	for range 2 {
		if err := cfg.build(); err != nil {
			t.Fatal(fmt.Errorf("built again: %w", err))
		}
	}
	chains, err := c.ListChainsOfTableFamily(nftables.TableFamilyIPv4)
	if err != nil || len(chains) != 2 {
		t.Errorf("%d chains, %v", len(chains), err)
	}
}
