package firewall

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"rivulet/appliance/health"
	"rivulet/fabric/nft"
	"rivulet/test/harness/await"
	"rivulet/test/harness/testns"
)

// A machine on the LAN and the device, with a route through the device to all that is
// behind it.
func TestWall(t *testing.T) {
	device, machine := testns.New(t), testns.New(t)
	device.Do(func() error {
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "eth0", PeerNamespace: netlink.NsFd(machine.NS)}
		return errors.Join(netlink.LinkAdd(veth), testns.Give("eth0", "192.0.2.1/24"), testns.Give("lo", "100.127.7.7/32"))
	})
	machine.Do(func() error {
		err := testns.Give("eth0", "192.0.2.2/24")
		_, to, _ := net.ParseCIDR("100.127.0.0/16")
		return errors.Join(err, netlink.RouteAdd(&netlink.Route{Dst: to, Gw: net.IPv4(192, 0, 2, 1)}))
	})
	for _, a := range []string{":6443", ":7442", ":8080", "100.127.7.7:1443"} {
		device.Listen(a)
	}
	cfg := Config{Own: []string{"lo", "cni0", "riv0"}, Networks: []netip.Prefix{netip.MustParsePrefix("100.127.0.0/16"), netip.MustParsePrefix("10.42.0.0/16")},
		Ports: []uint16{6443, 10250}, Guard: nft.NewGuard(int(device.NS), slog.New(slog.DiscardHandler))}
	closed := []string{"192.0.2.1:6443", "100.127.7.7:1443", "100.127.7.7:7442"}
	for _, a := range closed {
		await.True(t, 10*time.Second, "without a wall "+a+" is reached", func() bool { return machine.Reaches("", a) })
	}
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan struct{}), make(chan struct{})
	cfg.Health = &health.Tracker{}
	go func() { defer close(done); Run(ctx, cfg, func() { close(ready) }) }()
	<-ready
	cancel()
	<-done
	if p := cfg.Health.Problems(); len(p) > 0 {
		t.Skipf("needs nf_tables: %v", p)
	}
	for _, a := range closed {
		if machine.Reaches("", a) {
			t.Errorf("the LAN reaches %s", a)
		}
		if !device.Reaches("", a) {
			t.Errorf("the device itself does not reach %s", a)
		}
	}
	for _, a := range []string{"192.0.2.1:7442", "192.0.2.1:8080"} {
		if !machine.Reaches("", a) {
			t.Errorf("the LAN does not reach %s", a)
		}
	}
}

// A LAN may have addresses of the cluster's networks: the device is reached by its own one there,
// and what is the cluster's stays closed.
func TestALANOfTheClustersNetworks(t *testing.T) {
	for _, lan := range []struct{ device, machine string }{{"10.42.0.7", "10.42.0.1"}, {"10.43.0.7", "10.43.0.1"}, {"100.127.3.7", "100.127.3.1"}} {
		device, machine := testns.New(t), testns.New(t)
		device.Cable("eth0", machine, "eth0")
		device.Do(func() error {
			return errors.Join(testns.Give("eth0", lan.device+"/24"), testns.Give("lo", "100.127.7.7/32"), testns.Give("lo", "10.42.5.1/32"))
		})
		machine.Do(func() error {
			return errors.Join(testns.Give("eth0", lan.machine+"/24"), testns.Route("100.127.7.7/32", lan.device), testns.Route("10.42.5.1/32", lan.device))
		})
		for _, a := range []string{":6443", ":22"} {
			device.Listen(a)
		}
		cfg := Config{Own: []string{"lo"}, Networks: []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16"), netip.MustParsePrefix("10.43.0.0/16"), netip.MustParsePrefix("100.127.0.0/16")},
			Ports: []uint16{6443}, Guard: nft.NewGuard(int(device.NS), slog.New(slog.DiscardHandler))}
		cfg.Health = &health.Tracker{}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if Run(ctx, cfg, nil); len(cfg.Health.Problems()) > 0 {
			t.Fatal(cfg.Health.Problems())
		}
		await.True(t, 10*time.Second, "the device is reached at "+lan.device, func() bool { return machine.Reaches("", lan.device+":22") })
		for _, a := range []string{lan.device + ":6443", "100.127.7.7:22", "10.42.5.1:22"} {
			if machine.Reaches("", a) {
				t.Errorf("a LAN with %s reaches %s", lan.machine, a)
			}
		}
	}
}
