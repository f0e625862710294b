package pairing

import (
	"net/netip"
	"strings"
	"testing"

	"rivulet/fabric/peer"
	"rivulet/fabric/wgkey"
)

// Each part of a message has its bound, and the bound itself is inside.
func TestBoundsOfAMessage(t *testing.T) {
	good := func() Message {
		return Message{ID: peer.ID(strings.Repeat("b", 32)), Name: "pi", Version: "0.1.0", WireGuardKey: keyOf(1).Public(), TunnelPort: 7442, ControlPort: 7442, Sequence: 1,
			TunnelAddress: netip.MustParseAddr("10.42.255.254"), PodCIDR: netip.MustParsePrefix("10.42.0.0/16"), ServiceCIDR: netip.MustParsePrefix("10.43.0.0/16")}
	}
	if err := good().check(); err != nil {
		t.Fatal(err)
	}
	long := func(n int) []byte { return make([]byte, n) }
	for what, at := range map[string]struct{ in, out func(*Message) }{
		"versions":       {func(m *Message) { m.Versions = make([]int, 32) }, func(m *Message) { m.Versions = make([]int, 33) }},
		"demands":        {func(m *Message) { m.Demands = string(long(32)) }, func(m *Message) { m.Demands = string(long(33)) }},
		"proof":          {func(m *Message) { m.Proof = long(64) }, func(m *Message) { m.Proof = long(65) }},
		"invite":         {func(m *Message) { m.Invite = long(64) }, func(m *Message) { m.Invite = long(65) }},
		"key proof":      {func(m *Message) { m.KeyProof = long(64) }, func(m *Message) { m.KeyProof = long(65) }},
		"next key proof": {func(m *Message) { m.NextKeyProof = long(64) }, func(m *Message) { m.NextKeyProof = long(65) }},
		"name":           {func(m *Message) { m.Name = strings.Repeat("a", 63) }, func(m *Message) { m.Name = strings.Repeat("a", 64) }},
		"version":        {func(m *Message) { m.Version = strings.Repeat("1", 64) }, func(m *Message) { m.Version = strings.Repeat("1", 65) }},
		"Kubernetes":     {func(m *Message) { m.KubeVersion = "v1.35.0+k3s1" }, func(m *Message) { m.KubeVersion = "v1 35" }},
		"no sequence":    {func(m *Message) { m.Sequence = 1 }, func(m *Message) { m.Sequence = 0 }},
		"sequence":       {func(m *Message) { m.Sequence = maxSequence - 1 }, func(m *Message) { m.Sequence = maxSequence }},
		"heard":          {func(m *Message) { m.Heard = maxSequence - 1 }, func(m *Message) { m.Heard = maxSequence }},
		"tunnel port":    {func(m *Message) { m.TunnelPort = 1 }, func(m *Message) { m.TunnelPort = 0 }},
		"control port":   {func(m *Message) { m.ControlPort = 1 }, func(m *Message) { m.ControlPort = 0 }},
		"key":            {func(m *Message) { m.WireGuardKey = keyOf(2).Public() }, func(m *Message) { m.WireGuardKey = wgkey.Public{} }},
		"next key":       {func(m *Message) { m.NextWireGuardKey = keyOf(2).Public() }, func(m *Message) { m.NextWireGuardKey = m.WireGuardKey }},
		"tunnel address": {func(m *Message) { m.TunnelAddress = netip.MustParseAddr("10.42.0.0") }, func(m *Message) { m.TunnelAddress = netip.MustParseAddr("10.43.0.0") }},
		"service CIDR":   {func(m *Message) { m.ServiceCIDR = netip.Prefix{} }, func(m *Message) { m.ServiceCIDR = netip.MustParsePrefix("10.43.0.1/16") }},
		"see you as":     {func(m *Message) { m.SeeYouAs = netip.MustParsePrefix("240.0.0.0/8") }, func(m *Message) { m.SeeYouAs = netip.MustParsePrefix("240.0.0.0/7") }},
		"seen as":        {func(m *Message) { m.SeenAs = netip.MustParsePrefix("240.0.0.0/30") }, func(m *Message) { m.SeenAs = netip.MustParsePrefix("240.0.0.0/31") }},
		"multicast":      {func(m *Message) { m.SeenAs = netip.MustParsePrefix("10.0.0.0/8") }, func(m *Message) { m.SeenAs = netip.MustParsePrefix("224.0.0.0/8") }},
		"unspecified":    {func(m *Message) { m.SeenAs = netip.MustParsePrefix("1.0.0.0/8") }, func(m *Message) { m.SeenAs = netip.MustParsePrefix("0.0.0.0/8") }},
		"IPv6":           {func(m *Message) {}, func(m *Message) { m.SeeYouAs = netip.MustParsePrefix("fd00::/16") }},
		"host bits":      {func(m *Message) {}, func(m *Message) { m.SeeYouAs = netip.MustParsePrefix("10.1.1.0/8") }},
	} {
		m := good()
		at.in(&m)
		if err := m.check(); err != nil {
			t.Errorf("%s, at its bound: %v", what, err)
		}
		m = good()
		at.out(&m)
		if m.check() == nil {
			t.Errorf("%s, beyond its bound, is taken", what)
		}
	}
}

func TestNames(t *testing.T) {
	for name, want := range map[string]bool{
		"lab-1": true, "Lab.example.org": true, "42": true, "v1.2": true, "10.0.0.7x": true, "": false, "-a": false, "a b": false, "fe80::1": false,
		"10.0.0.7": false, "010.1": false, "127.1": false, strings.Repeat("a", 32): false, strings.Repeat("A2", 16): false, strings.Repeat("a", 31): true,
	} {
		if ValidName(name) != want {
			t.Errorf("%q: %v", name, !want)
		}
	}
}
