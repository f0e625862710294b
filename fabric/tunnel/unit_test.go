package tunnel

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"rivulet/fabric/wgkey"
)

// wireguardState is what WireGuard makes of its configuration protocol.
type wireguardState struct {
	device map[string]string
	peers  map[string]map[string]string
}

func (w *wireguardState) set(text string) {
	at := w.device
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch name {
		case "public_key":
			if at = w.peers[value]; at == nil {
				at = map[string]string{}
				w.peers[value] = at
			}
			at["key"] = value
		case "remove":
			delete(w.peers, at["key"])
		case "allowed_ip": // a prefix is one peer's: it moves
			for _, p := range w.peers {
				if p[name] == value {
					delete(p, name)
				}
			}
			at[name] = value
		case "replace_allowed_ips":
			delete(at, "allowed_ip")
		default:
			at[name] = value
		}
	}
}

// From any configuration to any other, straight or with a failed attempt between:
// WireGuard ends up with exactly the peers that are wanted; and the second time
// nothing is said.
func TestChangeLeadsToWhatIsWanted(t *testing.T) {
	keys := make([]wgkey.Private, 6)
	for i := range keys {
		keys[i], _ = newKeys(t)
	}
	draw := func(t *rapid.T, label string) Config {
		c := Config{PrivateKey: rapid.SampledFrom(keys[:2]).Draw(t, label+" key"), Port: rapid.SampledFrom([]uint16{1, 2}).Draw(t, label+" port")}
		prefixes := rapid.Permutation([]int{0, 1, 2, 3}).Draw(t, label+" prefixes")
		for i := range rapid.IntRange(0, 4).Draw(t, label+" peers") {
			p := Peer{ID: fmt.Sprint(i), PublicKey: keys[2+i].Public(),
				PeerMappedCIDR: netip.MustParsePrefix(fmt.Sprintf("10.%d.0.0/16", 200+prefixes[i])),
				Endpoint:       netip.AddrPortFrom(netip.MustParseAddr("192.168.1.1"), rapid.SampledFrom([]uint16{1, 2}).Draw(t, "endpoint")),
				Keepalive:      rapid.SampledFrom([]time.Duration{0, 25 * time.Second}).Draw(t, "keepalive")}
			if rapid.Bool().Draw(t, "present") {
				c.Peers = append(c.Peers, p)
			}
		}
		return c
	}
	rapid.Check(t, func(t *rapid.T) {
		w := &wireguardState{device: map[string]string{}, peers: map[string]map[string]string{}}
		was := Config{}
		for _, label := range []string{"first", "second", "third"} {
			want := draw(t, label)
			text := ""
			for _, p := range change(was, want) {
				text += p.text
			}
			if rapid.Bool().Draw(t, label+" fails") {
				lines := strings.SplitAfter(text, "\n")
				w.set(strings.Join(lines[:rapid.IntRange(0, len(lines)).Draw(t, "lines taken")], ""))
				was = uncertain(was, want)
				continue
			}
			w.set(text)
			was = want
			if again := change(was, want); len(again) > 0 {
				t.Fatalf("said again: %+v", again)
			}
			if len(w.peers) != len(want.Peers) || w.device["listen_port"] != fmt.Sprint(want.Port) || w.device["private_key"] != hexKey(want.PrivateKey) {
				t.Fatalf("%+v, want %+v", w, want)
			}
			for _, p := range want.Peers {
				got := w.peers[hexKey(p.PublicKey)]
				if got["allowed_ip"] != p.PeerMappedCIDR.String() || got["endpoint"] != p.Endpoint.String() ||
					got["persistent_keepalive_interval"] != fmt.Sprint(int(p.Keepalive.Seconds())) {
					t.Fatalf("peer %s is %v, want %+v", p.ID, got, p)
				}
			}
		}
	})
}

func TestConfigCheck(t *testing.T) {
	private, public := newKeys(t)
	peer := Peer{ID: "b", PublicKey: public, LocalMappedCIDR: aSeenByB, PeerMappedCIDR: bSeenByA}
	for want, spoil := range map[string]func(*Config){
		"key of this cluster":  func(c *Config) { c.PrivateKey = wgkey.Private{} },
		"port is missing":      func(c *Config) { c.Port = 0 },
		"name of an interface": func(c *Config) { c.Interface = "an-interface-too-long" },
		"not in the pod CIDR":  func(c *Config) { c.Address = netip.MustParseAddr("10.43.0.1") },
	} {
		c := config(private, peer)
		spoil(&c)
		if err := c.check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error with %q", err, want)
		}
	}
	if err := config(private, peer).check(); err != nil {
		t.Error(err)
	}
}
