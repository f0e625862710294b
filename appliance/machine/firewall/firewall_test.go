package firewall

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"

	"rivulet/fabric/nft"
	"rivulet/test/netroom"
)

// A machine on the LAN and the device, with a route through the device to all that is
// behind it.
func TestWall(t *testing.T) {
	device, machine := netroom.New(t), netroom.New(t)
	device.Do(func() error {
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "eth0", PeerNamespace: netlink.NsFd(machine.NS)}
		return errors.Join(netlink.LinkAdd(veth), netroom.Give("eth0", "192.0.2.1/24"), netroom.Give("lo", "100.127.7.7/32"))
	})
	machine.Do(func() error {
		err := netroom.Give("eth0", "192.0.2.2/24")
		_, to, _ := net.ParseCIDR("100.127.0.0/16")
		return errors.Join(err, netlink.RouteAdd(&netlink.Route{Dst: to, Gw: net.IPv4(192, 0, 2, 1)}))
	})
	for _, a := range []string{":6443", ":7442", ":8080", "100.127.7.7:1443"} {
		device.Listen(a)
	}
	cfg := Config{Own: []string{"lo", "cni0", "riv0"}, Networks: []netip.Prefix{netip.MustParsePrefix("100.127.0.0/16"), netip.MustParsePrefix("10.42.0.0/16")},
		Ports: []uint16{6443, 10250}, Log: slog.New(slog.DiscardHandler), netns: int(device.NS)}
	closed := []string{"192.0.2.1:6443", "100.127.7.7:1443", "100.127.7.7:7442"}
	for _, a := range closed {
		if !machine.Reaches("", a) {
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
	if !cfg.stands() {
		t.Error("a wall that stands is not seen")
	}
	c, err := nft.Open(cfg.netns)
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
