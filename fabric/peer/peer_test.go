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

// A record has an address in the tunnel as soon as each part of a tunnel is there, and its ID is the last word on order.
func TestComplete(t *testing.T) {
	key, err := wgkey.Generate()
	if err != nil {
		t.Fatal(err)
	}
	p := netip.MustParsePrefix
	whole := Record{ID: "abcdefghijklmnopqrstuvwxyz234567", WireGuardKey: key.Public(), PeerCIDR: p("10.42.0.0/16"), PeerMappedCIDR: p("10.130.0.0/16"),
		LocalMappedCIDR: p("10.131.0.0/16"), TunnelAddress: netip.MustParseAddr("10.42.0.2"), Control: netip.MustParseAddrPort("192.168.1.5:7442")}
	if at, ok := whole.Address(); !ok || !whole.Complete() || at != netip.MustParseAddrPort("10.130.0.2:7442") {
		t.Errorf("complete %v: %v, %s", whole.Complete(), ok, at)
	}
	for name, without := range map[string]func(*Record){
		"ID": func(r *Record) { r.ID = "a" }, "key": func(r *Record) { r.WireGuardKey = wgkey.Public{} }, "prefix": func(r *Record) { r.PeerCIDR = netip.Prefix{} },
		"our prefix for it": func(r *Record) { r.PeerMappedCIDR = netip.Prefix{} }, "its prefix for us": func(r *Record) { r.LocalMappedCIDR = netip.Prefix{} },
		"address": func(r *Record) { r.TunnelAddress = netip.Addr{} },
	} {
		r := whole
		without(&r)
		if at, ok := r.Address(); ok || r.Complete() {
			t.Errorf("without %s: complete %v, %s", name, r.Complete(), at)
		}
	}
}

func TestWhoIsApart(t *testing.T) {
	for s, want := range map[State]bool{Discovered: true, Waiting: true, Denied: true, Refused: true, Connecting: false, Connected: false, Lost: false} {
		if s.Apart() != want {
			t.Errorf("%s is apart: %v", s, s.Apart())
		}
	}
	if long, short := ID("abcdefghi").Short(), ID("abcdefg").Short(); long != "abcdefgh" || short != "abcdefg" || ID("abcdefgh").Short() != "abcdefgh" {
		t.Errorf("short IDs: %s, %s", long, short)
	}
}

// Each side alone switches a direction off.
func TestDirections(t *testing.T) {
	for _, c := range []struct {
		ours, theirs   Roles
		borrows, lends bool
	}{
		{Roles{}, Roles{}, true, true},
		{Roles{NoConsume: true}, Roles{}, false, true},
		{Roles{NoProvide: true}, Roles{}, true, false},
		{Roles{}, Roles{NoProvide: true}, false, true},
		{Roles{}, Roles{NoConsume: true}, true, false},
		{Roles{NoConsume: true}, Roles{NoConsume: true}, false, false},
	} {
		if r := (Record{Roles: c.ours, TheirRoles: c.theirs}); r.NoBorrow() == c.borrows || r.NoLend() == c.lends {
			t.Errorf("%+v, %+v: no borrowing %v, no lending %v", c.ours, c.theirs, r.NoBorrow(), r.NoLend())
		}
	}
	for how, want := range map[string]bool{TrustLAN: false, TrustGroup: false, TrustApproved: false, TrustInvite: false, TrustWorker: true, TrustServer: true} {
		if (Trust{How: how}).Node() != want {
			t.Errorf("%s is a node of this cluster: %v", how, !want)
		}
	}
}

func TestEmptySettings(t *testing.T) {
	yes, price, label := true, 1, "x"
	if !(Settings{}).Empty() {
		t.Error("nothing is not empty")
	}
	for _, s := range []Settings{{Consume: &yes}, {Provide: &yes}, {Price: &price}, {Labels: map[string]*string{"room": &label}}} {
		if s.Empty() {
			t.Errorf("%+v is empty", s)
		}
	}
}
