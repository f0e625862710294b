package host

import (
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

func TestName(t *testing.T) {
	for in, want := range map[string]string{
		"raspberrypi":     "raspberrypi",
		"Lab PC 12":       "lab-pc-12",
		"pi.home.example": "pi",
		"localhost":       "",
		"_":               "",
		"":                "",
		"Ünï-42":          "n-42",
		"a123456789012345678901234567890123456789-x": "a123456789012345678901234567890123456789",
	} {
		if got := Name(in); got != want {
			t.Errorf("Name(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestHasCapability(t *testing.T) {
	const without = "Name:\tx\nCapPrm:\t000001fffffffff\nCapEff:\t000001fffeffffff\n"
	if hasCapability([]byte(without), unix.CAP_SYS_RESOURCE) {
		t.Error("bit 24 is clear, yet the capability was found")
	}
	if !hasCapability([]byte(without), unix.CAP_SYS_ADMIN) {
		t.Error("bit 21 is set, yet the capability was not found")
	}
	if hasCapability([]byte("CapEff:\tzz\n"), unix.CAP_SYS_ADMIN) {
		t.Error("nonsense was read as a capability set")
	}
}

func TestProbeSeesThisMachine(t *testing.T) {
	f, err := Probe()
	if err != nil {
		t.Skipf("needs cgroups: %v", err)
	}
	if f.MemoryBytes < 64<<20 {
		t.Errorf("RAM = %d bytes, want at least 64 MiB", f.MemoryBytes)
	}
}

// Every virtual node has an address of the range for itself, the same at each start, and none has
// the node's own.
func TestFurtherAddresses(t *testing.T) {
	f := &Further{Nodes: netip.MustParsePrefix("100.127.0.0/16"), all: map[string]netip.Addr{}}
	first, err := f.free("b")
	if err != nil {
		t.Fatal(err)
	}
	f.Own = first
	seen := map[netip.Addr]bool{first: true}
	for i := range 3000 {
		name := fmt.Sprint("node-", i)
		if i == 0 {
			name = "b"
		}
		addr, err := f.free(name)
		if err != nil || seen[addr] || !f.Nodes.Contains(addr) || addr.As4()[3] == 0 || addr.As4()[3] == 255 {
			t.Fatalf("%s: %s %v", name, addr, err)
		}
		f.all[name], seen[addr] = addr, true
		if again, err := f.free(name); err != nil || again != addr {
			t.Fatalf("%s: %s, then %s %v", name, addr, again, err)
		}
	}
}
