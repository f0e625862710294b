package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"rivulet/fabric/peer"
)

var pods = netip.MustParsePrefix("10.42.0.0/16")

func TestBlocks(t *testing.T) {
	for block, want := range map[string]string{
		"240.0.0.0/5":    "",
		"10.128.0.0/9":   "",
		"192.168.0.0/16": "",
		"255.255.0.0/16": "",
		"10.0.0.0/24":    "too small",
		"10.128.1.0/9":   "write 10.128.0.0/9",
		"8.0.0.0/8":      "not in one of",
		"128.0.0.0/1":    "not in one of",
		"127.0.0.0/8":    "not in one of",
		"169.254.0.0/16": "not in one of",
		"224.0.0.0/3":    "not in one of",
		"172.0.0.0/10":   "not in one of",
		"fd00::/16":      "no IPv4",
	} {
		err := Check(netip.MustParsePrefix(block), 16)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", block, err, want)
		}
	}
	if Check(netip.Prefix{}, 16) == nil || Check(Default, 16) != nil {
		t.Error("no block at all is one, or the default is none")
	}
}

func TestExhaustedIsAnErrorWithACure(t *testing.T) {
	_, err := Choose(Default, 16, "a", netip.Prefix{}, []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")})
	if !errors.Is(err, ErrExhausted) || !strings.Contains(err.Error(), "tunnel.peerCIDR") {
		t.Fatalf("%v, want ErrExhausted with a cure", err)
	}
	// The last address of all is nobody's.
	if p, err := Choose(netip.MustParsePrefix("255.255.0.0/16"), 16, "a", netip.Prefix{}, nil); err == nil {
		t.Errorf("%s was chosen", p)
	}
}

// Whatever is taken and whatever was before, the choice is of the block and of the
// size, overlaps nothing, is the same when asked again, and stays when it is
// given as the previous one.
func TestChoiceIsOursFreeAndStable(t *testing.T) {
	prefix := rapid.Custom(func(t *rapid.T) netip.Prefix {
		a := [4]byte{rapid.SampledFrom([]byte{10, 100, 172, 240, 247, 8}).Draw(t, "first"), rapid.Byte().Draw(t, "second"), rapid.Byte().Draw(t, "third"), 0}
		return netip.PrefixFrom(netip.AddrFrom4(a), rapid.IntRange(9, 24).Draw(t, "bits")).Masked()
	})
	rapid.Check(t, func(t *rapid.T) {
		id := peer.ID(rapid.StringMatching(`[a-z2-7]{32}`).Draw(t, "id"))
		block := netip.MustParsePrefix(rapid.SampledFrom([]string{"240.0.0.0/5", "10.128.0.0/9", "100.64.0.0/10", "192.168.0.0/16", "10.0.0.0/8"}).Draw(t, "block"))
		bits := rapid.IntRange(16, 24).Draw(t, "size")
		taken := append(rapid.SliceOfN(prefix, 0, 20).Draw(t, "taken"), pods)
		previous := prefix.Draw(t, "previous")
		got, err := Choose(block, bits, id, previous, taken)
		if err != nil {
			if !errors.Is(err, ErrExhausted) {
				t.Fatal(err)
			}
			return
		}
		if !Within(block, bits, got) {
			t.Fatalf("%s is not a prefix of %d bits of %s", got, bits, block)
		}
		if i := slices.IndexFunc(taken, got.Overlaps); i >= 0 {
			t.Fatalf("%s overlaps %s", got, taken[i])
		}
		if again, _ := Choose(block, bits, id, previous, taken); again != got {
			t.Fatalf("%s, then %s", got, again)
		}
		if kept, _ := Choose(block, bits, id, got, taken); kept != got {
			t.Fatalf("%s did not stay, became %s", got, kept)
		}
	})
}

// A device with very many peers gives each its own.
func TestManyPeersAreApart(t *testing.T) {
	taken := []netip.Prefix{pods, netip.MustParsePrefix("10.43.0.0/16"), netip.MustParsePrefix("100.127.0.0/16")}
	for i := range 2000 {
		p, err := Choose(Default, 16, peer.ID(fmt.Sprintf("peer%d", i)), netip.Prefix{}, taken)
		if err != nil {
			t.Fatalf("peer %d: %v", i, err)
		}
		if slices.ContainsFunc(taken, p.Overlaps) {
			t.Fatalf("peer %d: %s is taken", i, p)
		}
		taken = append(taken, p)
	}
}
