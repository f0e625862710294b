package wgdev

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/tun"

	"rivulet/fabric/translate"
)

// fakeTUN hands out one batch and remembers what is written.
type fakeTUN struct {
	tun.Device
	batch   [][]byte
	written [][]byte
	fails   []error // before the batch
}

func (f *fakeTUN) Read(bufs [][]byte, sizes []int, offset int) (int, error) {
	if len(f.fails) > 0 {
		err := f.fails[0]
		f.fails = f.fails[1:]
		return 0, err
	}
	for i, p := range f.batch {
		sizes[i] = copy(bufs[i][offset:], p)
	}
	return len(f.batch), nil
}

func (f *fakeTUN) Write(bufs [][]byte, offset int) (int, error) {
	for _, b := range bufs {
		f.written = append(f.written, b[offset:])
	}
	return len(bufs), nil
}

// A lost subscription to changes of interfaces is no failure of the TUN; any other error is.
func TestNetlinkOverrun(t *testing.T) {
	fake := &fakeTUN{batch: [][]byte{datagram("10.42.0.5", "10.200.0.7")}, fails: []error{fmt.Errorf("failed to receive netlink message: %w", unix.ENOBUFS), os.ErrClosed}}
	d := &filtered{Device: fake, Options: Options{Counts: &Counts{}, Log: slog.New(slog.DiscardHandler)}, in: newFlow(), out: newFlow(), marks: &marks{}, staged: &staged{}}
	read := func() error {
		_, err := d.Read([][]byte{make([]byte, 64)}, make([]int, 1), 16)
		return err
	}
	if err := read(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
	fake.fails = []error{fmt.Errorf("failed to receive netlink message: %w", unix.ENOBUFS)}
	if err := read(); err != nil {
		t.Error(err)
	}
}

// A packet that may not pass leaves no error, which would close the device, and
// takes none of the others along.
func TestDroppedPacketsLeaveTheBatch(t *testing.T) {
	table, err := translate.Compile([]translate.Rule{{LocalCIDR: podCIDR, LocalMappedCIDR: aSeenByB, PeerMappedCIDR: bSeenByA}}, testMTU)
	if err != nil {
		t.Fatal(err)
	}
	const offset = 16
	fake := &fakeTUN{batch: [][]byte{datagram("10.42.0.5", "10.200.0.7"), datagram("192.168.1.1", "10.200.0.7"), datagram("10.42.0.6", "10.200.0.7")}}
	d := &filtered{Device: fake, Options: Options{Translator: new(translate.Translator), Counts: &Counts{}}, in: newFlow(), out: newFlow(), marks: &marks{}, staged: &staged{}}
	d.Translator.Set(table)

	bufs, sizes := [][]byte{make([]byte, 64), make([]byte, 64), make([]byte, 64)}, make([]int, 3)
	n, err := d.Read(bufs, sizes, offset)
	if n != 3 || err != nil || !slices.Equal(sizes, []int{28, 0, 28}) {
		t.Fatalf("%d packets of %v bytes, %v", n, sizes, err)
	}
	if src, _ := netip.AddrFromSlice(bufs[2][offset+12 : offset+16]); src.String() != "10.201.0.6" {
		t.Errorf("leaves from %s", src)
	}
	in := func(src, dst string) []byte { return append(make([]byte, offset), datagram(src, dst)...) }
	_, err = d.Write([][]byte{in("10.9.9.9", "10.201.0.5"), in("10.200.0.7", "10.201.0.5"), in("10.200.0.7", "10.42.0.5")}, offset)
	if err != nil || len(fake.written) != 1 {
		t.Fatalf("%d packets written, %v; want 1", len(fake.written), err)
	}
	if dst, _ := netip.AddrFromSlice(fake.written[0][16:20]); dst.String() != "10.42.0.5" {
		t.Errorf("arrives at %s", dst)
	}
	if dropped := d.Counts.Dropped.Load(); dropped != 3 {
		t.Errorf("%d counted as dropped, want 3", dropped)
	}
}
