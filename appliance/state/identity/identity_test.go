package identity

import (
	"net/netip"
	"strings"
	"testing"

	"rivulet/fabric/peer"
)

type memory struct{ blob []byte }

func (m *memory) Identity() ([]byte, error)  { return m.blob, nil }
func (m *memory) PutIdentity(b []byte) error { m.blob = b; return nil }

func TestLoadMakesOnceAndKeeps(t *testing.T) {
	var m memory
	first, err := Load(&m)
	if err != nil {
		t.Fatal(err)
	}
	if !first.ID().Valid() {
		t.Fatalf("ID %q is not valid", first.ID())
	}
	again, err := Load(&m)
	if err != nil {
		t.Fatal(err)
	}
	if again.ID() != first.ID() || again.WireGuard != first.WireGuard {
		t.Fatal("a second start is another cluster")
	}
}

func TestUnreadableKeyIsAnErrorWithACure(t *testing.T) {
	for _, blob := range []string{"garbage", "{}", `{"seed":"AAAA","wireguard":"x"}`} {
		m := memory{blob: []byte(blob)}
		_, err := Load(&m)
		if err == nil || !strings.Contains(err.Error(), "restore state.db") {
			t.Errorf("Load(%q): %v, want an error that names the cure", blob, err)
		}
		if string(m.blob) != blob {
			t.Errorf("Load(%q) wrote over the key", blob)
		}
	}
}

func TestNodeAddressStaysInItsRange(t *testing.T) {
	nodes := netip.MustParsePrefix("100.126.0.0/16")
	for range 200 {
		id, err := Load(&memory{})
		if err != nil {
			t.Fatal(err)
		}
		a := NodeAddress(id.ID(), nodes)
		if last := a.As4()[3]; !nodes.Contains(a) || last == 0 || last == 255 {
			t.Fatalf("NodeAddress(%s) = %s", id.ID(), a)
		}
	}
	if NodeAddress(peer.ID("aaaabbbb"), nodes) == NodeAddress(peer.ID("zzzzbbbb"), nodes) {
		t.Error("different clusters, same address")
	}
}
