package wire

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == BareName {
		if err := BareMain(); err != nil {
			os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
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

// The bare tunnel carries traffic between pods, and leaves nothing when it ends.
func TestBareTunnel(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to make network namespaces")
	}
	n, err := NewNet()
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	for range 2 { // the second time finds the first one's place free
		l, err := n.Open(context.Background(), Kind{Name: "bare", Bare: true}, "", t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.RTT(20, time.Second); err != nil {
			t.Error(err)
		}
		if bits, _, err := l.Throughput(2, 300*time.Millisecond); err != nil || bits < 1e6 {
			t.Errorf("%.0f bit/s, %v", bits, err)
		}
		if pps, err := l.Packets(300 * time.Millisecond); err != nil || pps < 100 {
			t.Errorf("%.0f packets/s, %v", pps, err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
