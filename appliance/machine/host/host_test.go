package host

import (
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
