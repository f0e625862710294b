package ipam

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"rivulet/fabric/peer"
)

var pods = netip.MustParsePrefix("10.42.0.0/16")

func TestTheirOwnPrefixWhereItIsFree(t *testing.T) {
	theirs := netip.MustParsePrefix("10.50.0.0/16")
	got, err := Choose("a", theirs, netip.Prefix{}, []netip.Prefix{pods})
	if err != nil || got != theirs {
		t.Fatalf("%s, %v; want %s", got, err, theirs)
	}
}

// A peer may say what it likes of its prefix; no part of the Internet becomes its.
func TestPublicPrefixIsNotTaken(t *testing.T) {
	for _, s := range []string{"8.0.0.0/8", "1.1.1.0/24", "172.0.0.0/10", "203.0.113.0/24", "127.0.0.0/16"} {
		theirs := netip.MustParsePrefix(s)
		for _, previous := range []netip.Prefix{{}, theirs} {
			got, err := Choose("a", theirs, previous, []netip.Prefix{pods})
			if theirs.Bits() < 9 {
				if !errors.Is(err, ErrExhausted) {
					t.Errorf("%s: %s, %v; want ErrExhausted", s, got, err)
				}
				continue
			}
			if err != nil || got.Overlaps(theirs) || !private(got) {
				t.Errorf("%s: %s, %v; want a private prefix", s, got, err)
			}
		}
	}
}

func TestExhaustedIsAnErrorWithACure(t *testing.T) {
	_, err := Choose("a", pods, netip.Prefix{}, []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")})
	if !errors.Is(err, ErrExhausted) {
		t.Fatalf("%v, want ErrExhausted", err)
	}
	if _, err := Choose("a", netip.MustParsePrefix("fd00::/16"), netip.Prefix{}, nil); err == nil {
		t.Fatal("an IPv6 prefix was accepted")
	}
}

// Whatever is taken, the choice overlaps none of it, has the right size, is the
// same when asked again, and stays when it is given as the previous one.
func TestChoiceIsFreeAndStable(t *testing.T) {
	prefix := rapid.Custom(func(t *rapid.T) netip.Prefix {
		a := [4]byte{rapid.SampledFrom([]byte{10, 100, 172, 192}).Draw(t, "first"), rapid.Byte().Draw(t, "second"), rapid.Byte().Draw(t, "third"), 0}
		return netip.PrefixFrom(netip.AddrFrom4(a), rapid.IntRange(9, 24).Draw(t, "bits")).Masked()
	})
	rapid.Check(t, func(t *rapid.T) {
		id := peer.ID(rapid.StringMatching(`[a-z2-7]{32}`).Draw(t, "id"))
		bits := rapid.IntRange(12, 24).Draw(t, "size")
		theirs := netip.PrefixFrom(pods.Addr(), bits).Masked()
		taken := append(rapid.SliceOfN(prefix, 0, 20).Draw(t, "taken"), pods)
		previous := prefix.Draw(t, "previous")
		got, err := Choose(id, theirs, previous, taken)
		if err != nil {
			if !errors.Is(err, ErrExhausted) {
				t.Fatal(err)
			}
			return
		}
		if got.Bits() != bits || got != got.Masked() {
			t.Fatalf("%s is not a prefix of %d bits", got, bits)
		}
		if i := slices.IndexFunc(taken, got.Overlaps); i >= 0 {
			t.Fatalf("%s overlaps %s", got, taken[i])
		}
		if again, _ := Choose(id, theirs, previous, taken); again != got {
			t.Fatalf("%s, then %s", got, again)
		}
		if kept, _ := Choose(id, theirs, got, taken); kept != got {
			t.Fatalf("%s did not stay, became %s", got, kept)
		}
	})
}

// A device with many peers gives each its own.
func TestManyPeersAreApart(t *testing.T) {
	taken := []netip.Prefix{pods, netip.MustParsePrefix("10.43.0.0/16"), netip.MustParsePrefix("100.127.0.0/16")}
	for i := range 200 {
		p, err := Choose(peer.ID(rune('a'+i%26))+peer.ID(rune('a'+i/26)), pods, netip.Prefix{}, taken)
		if err != nil {
			t.Fatalf("peer %d: %v", i, err)
		}
		if slices.ContainsFunc(taken, p.Overlaps) {
			t.Fatalf("peer %d: %s is taken", i, p)
		}
		taken = append(taken, p)
	}
}
