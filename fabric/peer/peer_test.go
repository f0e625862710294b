package peer

import (
	"crypto/ed25519"
	"net/netip"
	"testing"

	"pgregory.net/rapid"
)

func TestIDsFollowTheKey(t *testing.T) {
	seen := map[ID]bool{}
	for i := range byte(50) {
		seed := make([]byte, ed25519.SeedSize)
		seed[0] = i
		pub := ed25519.NewKeyFromSeed(seed).Public().(ed25519.PublicKey)
		id := IDFromKey(pub)
		if !id.Valid() || id != IDFromKey(pub) || seen[id] {
			t.Fatalf("ID %q of key %d is not valid, not stable, or not its own", id, i)
		}
		seen[id] = true
	}
}

func TestValid(t *testing.T) {
	good := ID("abcdefghijklmnopqrstuvwxyz234567")
	if !good.Valid() {
		t.Errorf("%q is refused", good)
	}
	for _, bad := range []ID{"", "a", good + "a", good[:31], "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", "abcdefghijklmnopqrstuvwxyz23456/", "abcdefghijklmnopqrstuvwxyz234561"} {
		if bad.Valid() {
			t.Errorf("%q is accepted", bad)
		}
	}
}

// There and back again, host bits kept, and nothing from outside the prefix.
func TestTranslateIsABijectionOfPrefixes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bits := rapid.IntRange(8, 30).Draw(t, "bits")
		prefix := func(label string) netip.Prefix {
			var a [4]byte
			copy(a[:], rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, label))
			return netip.PrefixFrom(netip.AddrFrom4(a), bits)
		}
		from, to := prefix("from"), prefix("to")
		addr := from.Addr() // any address of the prefix: prefix() does not mask
		there, ok := Translate(addr, from, to)
		if !ok || !to.Contains(there) {
			t.Fatalf("%s from %s to %s: %s, %v", addr, from, to, there, ok)
		}
		if back, ok := Translate(there, to, from); !ok || back != addr {
			t.Fatalf("%s came back as %s, %v", addr, back, ok)
		}
	})
}

func TestTranslateRefuses(t *testing.T) {
	p := netip.MustParsePrefix
	for _, tc := range []struct {
		name     string
		addr     string
		from, to netip.Prefix
	}{
		{"outside", "10.43.0.1", p("10.42.0.0/16"), p("10.130.0.0/16")},
		{"other size", "10.42.0.1", p("10.42.0.0/16"), p("10.130.0.0/17")},
		{"IPv6", "fd00::1", p("fd00::/16"), p("fd01::/16")},
		{"IPv4 to IPv6", "10.42.0.1", p("10.42.0.0/16"), p("fd00::/16")},
	} {
		if got, ok := Translate(netip.MustParseAddr(tc.addr), tc.from, tc.to); ok {
			t.Errorf("%s: %s", tc.name, got)
		}
	}
}
