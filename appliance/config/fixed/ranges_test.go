package fixed

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

var usual = Ranges{netip.MustParsePrefix("10.42.0.0/16"), netip.MustParsePrefix("10.43.0.0/16"), netip.MustParsePrefix("198.19.0.0/16")}

func TestFree(t *testing.T) {
	if got := Free(nil); got != usual {
		t.Errorf("%+v", got)
	}
	prefix := rapid.Custom(func(t *rapid.T) netip.Prefix {
		first := rapid.SampledFrom([]byte{10, 100, 172, 192, 198}).Draw(t, "first")
		a := netip.AddrFrom4([4]byte{first, rapid.Byte().Draw(t, "second"), rapid.Byte().Draw(t, "third"), 0})
		return netip.PrefixFrom(a, rapid.IntRange(8, 32).Draw(t, "bits")).Masked()
	})
	rapid.Check(t, func(t *rapid.T) {
		taken := rapid.SliceOfN(prefix, 0, 8).Draw(t, "taken")
		got := Free(taken)
		all := []netip.Prefix{got.Pods, got.Services, got.Nodes}
		for i, p := range all {
			if p.Bits() != 16 || p != p.Masked() {
				t.Fatalf("%s is no network of 16 bits", p)
			}
			own := []netip.Prefix{usual.Pods, usual.Services, usual.Nodes}[i]
			if slices.ContainsFunc(taken, p.Overlaps) && p != own {
				t.Fatalf("%v are taken, and it is %+v", taken, got)
			}
			if !slices.ContainsFunc(taken, own.Overlaps) && p != own {
				t.Fatalf("%s is free, and it is %s", own, p)
			}
			for _, q := range all[i+1:] {
				if p.Overlaps(q) {
					t.Fatalf("%+v overlap", got)
				}
			}
		}
	})
	for _, c := range []struct {
		taken string // separated by blanks
		want  Ranges
	}{
		{"10.42.0.0/24", Ranges{wide(10, 52), usual.Services, usual.Nodes}},
		{"10.43.7.0/24", Ranges{usual.Pods, wide(10, 53), usual.Nodes}},
		{"100.90.1.2/32", usual}, // Tailscale's, of table 52
		{"100.64.0.0/10", usual},
		{"198.19.3.0/24", Ranges{usual.Pods, usual.Services, wide(198, 18)}},
		{"198.18.0.0/15", Ranges{usual.Pods, usual.Services, wide(100, 127)}},
		{"198.18.0.0/15 100.127.3.0/24", Ranges{usual.Pods, usual.Services, wide(100, 126)}},
		{"198.18.0.0/15 100.90.1.2/32", Ranges{usual.Pods, usual.Services, wide(100, 127)}},
		{"198.18.0.0/15 100.64.0.0/10", usual}, // nothing is free
		{"10.0.0.0/8", Ranges{wide(172, 20), wide(172, 21), usual.Nodes}},
	} {
		var taken []netip.Prefix
		for _, p := range strings.Fields(c.taken) {
			taken = append(taken, netip.MustParsePrefix(p))
		}
		if got := Free(taken); got != c.want {
			t.Errorf("%s is taken: %+v, want %+v", c.taken, got, c.want)
		}
	}
}

func TestUse(t *testing.T) {
	defer Use(usual)
	Use(Ranges{wide(10, 52), wide(10, 63), wide(100, 126)})
	if ClusterDNS.String() != "10.63.0.10" || TunnelAddress.String() != "10.52.255.254" || ControlAPI.String() != "10.52.255.254:7442" || Networks[2] != NodeRange {
		t.Error(ClusterDNS, TunnelAddress, ControlAPI, Networks)
	}
}

// A cluster keeps the networks that it has, also one from before they were written down.
func TestOf(t *testing.T) {
	state := t.TempDir()
	check := func(want Ranges, there bool) {
		t.Helper()
		if got, ok, err := Of(state); got != want || ok != there || err != nil {
			t.Errorf("%+v %v %v, want %+v %v", got, ok, err, want, there)
		}
	}
	check(usual, false)
	if err := os.MkdirAll(filepath.Join(state, "k3s", "server", "db"), 0o700); err != nil {
		t.Fatal(err)
	}
	check(Ranges{usual.Pods, usual.Services, wide(100, 127)}, true)
	other := Ranges{wide(10, 52), wide(10, 53), wide(100, 126)}
	raw, err := json.Marshal(other)
	if err != nil {
		t.Fatal(err)
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(File(state), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(string(raw))
	check(other, true)
	for _, bad := range []string{"", "{}", strings.Replace(string(raw), "10.52.0.0/16", "10.52.0.0/24", 1), strings.Replace(string(raw), "10.52.0.0/16", "10.52.0.1/16", 1), strings.Replace(string(raw), "10.52.0.0/16", "fd00::/16", 1)} {
		write(bad)
		if r, _, err := Of(state); err == nil || !strings.Contains(err.Error(), "rivulet reset") {
			t.Errorf("%q is taken as %+v, %v", bad, r, err)
		}
	}
}
