package peer

import (
	"crypto/ed25519"
	"encoding/json"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"rivulet/fabric/wgkey"
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

// What was stored comes back; a key that cannot be used takes nothing else along.
func TestDecode(t *testing.T) {
	private, err := wgkey.Generate()
	if err != nil {
		t.Fatal(err)
	}
	next, err := wgkey.Generate()
	if err != nil {
		t.Fatal(err)
	}
	r := Record{ID: "abcdefghijklmnopqrstuvwxyz234567", Name: "b", Trust: Trust{How: TrustLAN}, PeerCIDR: netip.MustParsePrefix("10.42.0.0/16"),
		WireGuardKey: private.Public(), NextWireGuardKey: next.Public(), Heard: 7}
	blob, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := Decode(blob); err != nil || !reflect.DeepEqual(got, r) {
		t.Errorf("%+v, %v, want %+v", got, err, r)
	}
	older := strings.Replace(string(blob), "{", `{"protocol":1,`, 1)
	if got, err := Decode([]byte(older)); err != nil || !reflect.DeepEqual(got, r) {
		t.Errorf("of an older version: %+v, %v, want %+v", got, err, r)
	}
	var view View
	if err := json.Unmarshal(blob, &view); err != nil || !reflect.DeepEqual(view.Record, r) {
		t.Errorf("as a view: %+v, %v", view.Record, err)
	}
	for _, bad := range []string{"AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=", "k", private.Public().String() + "\\n"} {
		got, err := Decode([]byte(strings.ReplaceAll(string(blob), private.Public().String(), bad)))
		want := r
		want.WireGuardKey = wgkey.Public{}
		if err != nil || !reflect.DeepEqual(got, want) || got.Complete() {
			t.Errorf("%q: %+v, %v", bad, got, err)
		}
	}
	for _, bad := range []string{"", "{", "[]", `{"id":7}`} {
		if _, err := Decode([]byte(bad)); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}
