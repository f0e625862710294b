package wire

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"rivulet/appliance/machine/firewall"
	"rivulet/fabric/nft"
	"rivulet/fabric/reach"
	"rivulet/fabric/tunnel"
	"rivulet/offload/nodeagent/homeaddr"
	"rivulet/offload/nodeagent/isolation"
)

func TestMain(m *testing.M) {
	run := func() error { os.Exit(m.Run()); return nil }
	switch filepath.Base(os.Args[0]) {
	case BareName:
		run = BareMain
	case "rivulet-tunnel":
		run = func() error {
			return tunnel.NewServer(tunnel.HelperVersion, slog.New(slog.DiscardHandler)).Serve(context.Background(), os.Args[2])
		}
	}
	if err := run(); err != nil {
		os.Stderr.WriteString(err.Error() + "\n")
		os.Exit(1)
	}
}

func here(f func() error) error { return f() }

func TestLoadOnLoopback(t *testing.T) {
	lo := netip.MustParseAddr("127.0.0.1")
	for _, flows := range []int{1, 4} {
		bits, carried, err := throughput(here, here, lo, lo, lo, flows, 200*time.Millisecond)
		if err != nil || bits < 1e6 || float64(carried)*8 < bits*0.2 {
			t.Errorf("%d flows: %.0f bit/s, %d bytes, %v", flows, bits, carried, err)
		}
	}
	if pps, err := packets(here, here, lo, lo, lo, 200*time.Millisecond); err != nil || pps < 1000 {
		t.Errorf("%.0f packets/s, %v", pps, err)
	}
	trips, err := rtt(here, here, lo, lo, lo, 50, time.Second)
	if err != nil || len(trips) != 50 {
		t.Fatalf("%d round trips, %v", len(trips), err)
	}
	for _, s := range trips {
		if s <= 0 || s > 1 {
			t.Errorf("a round trip of %v s", s)
		}
	}
}

// Each kind carries traffic between pods and leaves nothing when it ends. The nodes have all
// tables of devices where these are to be in the figure, and the far pod is held as a tenant
// then: it does not reach its node. Around the bare tunnel there are none.
func TestKinds(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to make network namespaces")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	helper := filepath.Join(t.TempDir(), "rivulet-tunnel")
	if err := os.Symlink(self, helper); err != nil {
		t.Fatal(err)
	}
	own := []string{"node", "rivulet", reach.Table}
	for _, c := range []struct {
		kind      Kind
		node, pod []string // the tables
	}{
		{Kind{Name: "bare", Bare: true}, []string{"node"}, nil},
		{Kind{Name: "without tables"}, own, nil},
		{Kind{Name: "device", Device: true}, append(own, isolation.Table, isolation.Table, firewall.Table, firewall.Table), []string{homeaddr.Table, homeaddr.Table}},
	} {
		l, err := Open(context.Background(), c.kind, helper, t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.RTT(20, time.Second); err != nil {
			t.Errorf("%s: %v", c.kind.Name, err)
		}
		if bits, _, err := l.Throughput(2, 300*time.Millisecond); err != nil || bits < 1e6 {
			t.Errorf("%s: %.0f bit/s, %v", c.kind.Name, bits, err)
		}
		if pps, err := l.Packets(300 * time.Millisecond); err != nil || pps < 100 {
			t.Errorf("%s: %.0f packets/s, %v", c.kind.Name, pps, err)
		}
		b := l.net.b
		if node, pod := tables(t, b.node), tables(t, b.pod); !same(node, c.node) || !same(pod, c.pod) {
			t.Errorf("%s: the node has %v, the pod %v", c.kind.Name, node, pod)
		}
		if got := reachesNode(t, b); got == c.kind.Device {
			t.Errorf("%s: the far pod reaches its node: %v", c.kind.Name, got)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func same(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

func tables(t *testing.T, ns *Namespace) (names []string) {
	t.Helper()
	c, err := nft.Open(ns.FD())
	if err != nil {
		t.Fatal(err)
	}
	all, err := c.ListTables()
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range all {
		names = append(names, table.Name)
	}
	return names
}

func reachesNode(t *testing.T, s *side) bool {
	t.Helper()
	var l net.Listener
	err := s.node.Do(func() (err error) { l, err = net.Listen("tcp4", s.lan.String()+":0"); return err })
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return s.pod.Do(func() error {
		c, err := net.DialTimeout("tcp4", l.Addr().String(), time.Second)
		if err == nil {
			c.Close()
		}
		return err
	}) == nil
}
