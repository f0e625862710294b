package fabric

import (
	"context"
	"encoding/json"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"rivulet/fabric/pairing"
	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
	"rivulet/fabric/tunnel"
	"rivulet/fabric/wgkey"
)

// liar is a neighbour with an identity of its own that says what it likes.
type liar struct {
	id       rpc.Identity
	sequence uint64
}

func newLiar(t *testing.T, n byte) *liar {
	t.Helper()
	id, err := rpc.NewIdentity(newKey(n), "liar")
	if err != nil {
		t.Fatal(err)
	}
	return &liar{id: id, sequence: 1 << 40}
}

// say posts a message to the cluster, of which change has made what it likes.
func (l *liar) say(to *cluster, key, next wgkey.Public, change func(map[string]any)) error {
	l.sequence++
	m := pairing.Self{ID: l.id.ID, Name: "liar", Version: "test", WireGuardKey: key, NextWireGuardKey: next, TunnelPort: 7442, ControlPort: 7,
		TunnelAddress: inTunnel, PodCIDR: podCIDR}.Hello(peer.Record{})
	m.Sequence = l.sequence
	blob, err := json.Marshal(m)
	if err != nil {
		return err
	}
	fields := map[string]any{}
	if err := json.Unmarshal(blob, &fields); err != nil {
		return err
	}
	if change != nil {
		change(fields)
	}
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{TLSClientConfig: rpc.ClientTLS(l.id, to.id()), DisableKeepAlives: true}}
	return rpc.Call(context.Background(), client, "POST", "https://"+netip.AddrPortFrom(onLAN, to.cfg.Port).String()+pairing.Path, fields, nil)
}

// A neighbour that claims a key which is not its own, as its present one or its next,
// in any spelling, is refused with a reason, before and after it is a peer itself, and
// after a restart; whose key it is keeps its traffic.
func TestKeysHaveOneOwner(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	full := &keyFile{full: true} // it cannot change to its next key, and tells it
	a, b := w.cluster(1, "a"), w.cluster(2, "b", rotating(full, make(chan time.Time), time.Now()), func(c *Config) {
		c.Rotation.Next = baseConfig(88, "x", c.Log).WireGuardKey
	})
	agreedUpon(t, a, b, peer.TrustLAN, peer.TrustLAN)
	bNext := publicOf(t, 88)
	a.await("the next key", func() bool { return a.view(b).NextWireGuardKey == bNext })
	ours := a.keys.Now().Public
	bKey, own := a.view(b).WireGuardKey, publicOf(t, 99)
	spelt := func(s string) string { // the bits that are left over
		const digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
		c := []byte(s)
		c[42] = digits[strings.IndexByte(digits, c[42])^1]
		return string(c)
	}
	low := "AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
	x := newLiar(t, 66)
	try := func(t *testing.T) {
		for _, tt := range []struct {
			name      string
			key, next wgkey.Public
			change    func(map[string]any)
			code      string
		}{
			{"b's key", bKey, wgkey.Public{}, nil, "same-key"},
			{"b's next key", bNext, wgkey.Public{}, nil, "same-key"},
			{"b's key as the next one", own, bKey, nil, "same-key"},
			{"b's next key as the next one", own, bNext, nil, "same-key"},
			{"our key", ours, wgkey.Public{}, nil, "same-key"},
			{"our key as the next one", own, ours, nil, "same-key"},
			{"b's key in another spelling", own, wgkey.Public{}, func(m map[string]any) { m["wireguardKey"] = spelt(bKey.String()) }, "bad-message"},
			{"b's key over two lines, as the next one", own, wgkey.Public{}, func(m map[string]any) { m["nextWireGuardKey"] = bKey.String()[:9] + "\n" + bKey.String()[9:] }, "bad-message"},
			{"low order", own, wgkey.Public{}, func(m map[string]any) { m["wireguardKey"] = low }, "bad-message"},
			{"low order as the next one", own, wgkey.Public{}, func(m map[string]any) { m["nextWireGuardKey"] = low }, "bad-message"},
			{"none", own, wgkey.Public{}, func(m map[string]any) { m["wireguardKey"] = "" }, "bad-message"},
		} {
			err := x.say(a, tt.key, tt.next, tt.change)
			if pairing.Code(err) != tt.code {
				t.Errorf("%s: %v, want %s", tt.name, err, tt.code)
			}
			if err != nil && strings.Contains(err.Error(), `"b"`) {
				t.Errorf("%s: the answer names whose key it is: %v", tt.name, err)
			}
		}
		if v := a.view(b); v.WireGuardKey != bKey || v.NextWireGuardKey != bNext {
			t.Errorf("b has the keys %s and %s", v.WireGuardKey, v.NextWireGuardKey)
		}
		for _, p := range a.plane.config().Peers {
			if p.PublicKey == bKey && p.ID != string(b.id()) {
				t.Errorf("the tunnel has b's key for %s", p.ID)
			}
		}
	}
	try(t)
	if v := a.viewOf(x.id.ID); v.State != peer.Refused || v.Reason == "" {
		t.Errorf("the liar is %s: %s", v.State, v.Reason)
	}
	if err := x.say(a, own, wgkey.Public{}, nil); err != nil {
		t.Fatalf("a key of its own: %v", err)
	}
	try(t)
	a.stop()
	a.start()
	a.awaitState(b, peer.Connected)
	try(t)
	if v := a.viewOf(x.id.ID); v.WireGuardKey != own {
		t.Errorf("the liar has the key %s", v.WireGuardKey)
	}
}

// A state.db that an older version has written with keys that count no more: who was
// trusted first keeps its key, a present key goes before a next one, and the others stay
// peers without a tunnel, until they have told a key of their own.
func TestStoredKeysAreVetted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b, c := w.cluster(1, "a"), w.cluster(2, "b"), w.cluster(3, "c")
	agreedUpon(t, a, b, peer.TrustLAN, peer.TrustLAN)
	agreedUpon(t, a, c, peer.TrustLAN, peer.TrustLAN)
	bKey, cKey := a.view(b).WireGuardKey, a.view(c).WireGuardKey
	a.stop()
	b.stop()
	c.stop()
	edit := func(id peer.ID, change func(*peer.Record)) {
		r := a.store.records[id]
		change(&r)
		a.store.records[id] = r
	}
	at := time.Now()
	edit(b.id(), func(r *peer.Record) { r.Trust.At, r.NextWireGuardKey = at, cKey })
	edit(c.id(), func(r *peer.Record) { r.Trust.At = at.Add(time.Minute) })
	ours := a.keys.Now().Public
	for n, key := range []wgkey.Public{bKey, ours, {}} { // {} is what Decode makes of a key that is none
		r := a.store.records[c.id()]
		r.ID, r.Name, r.WireGuardKey = peer.ID(strings.Repeat(string(rune('p'+n)), 32)), "old", key
		r.Trust.At, r.Control, r.PeerMappedCIDR = at.Add(time.Hour), netip.AddrPortFrom(onLAN, 1), netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(200 + n), 0, 0}), 16)
		a.store.records[r.ID] = r
	}
	a.start()
	b.start()
	c.start()
	a.awaitState(b, peer.Connected)
	a.awaitState(c, peer.Connected)
	for _, p := range a.plane.config().Peers {
		if !slices.Contains([]string{string(b.id()), string(c.id())}, p.ID) {
			t.Errorf("the tunnel has %s, with the key %s", p.ID, p.PublicKey)
		}
	}
	if v := a.view(b); v.WireGuardKey != bKey || !v.NextWireGuardKey.IsZero() {
		t.Errorf("b has the keys %s and %s", v.WireGuardKey, v.NextWireGuardKey)
	}
	for _, v := range a.Peers() {
		if v.Name == "old" && (v.State == peer.Connected || v.Reason == "" || !v.WireGuardKey.IsZero()) {
			t.Errorf("%s: %s, %s, key %s", v.ID.Short(), v.State, v.Reason, v.WireGuardKey)
		}
	}
}

// The tunnel's process is gone and does not come back, or serves one peer no more: no peer
// of which that is true stays Connected, and the reason is this device's.
func TestConnectedNeedsADataPlane(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	fast := func(c *Config) { c.Timing.PingTimeout = 200 * time.Millisecond }
	a, b, c := w.cluster(1, "a", fast), w.cluster(2, "b"), w.cluster(3, "c")
	a.awaitState(b, peer.Connected)
	a.awaitState(c, peer.Connected)
	a.plane.setBroken(true)
	a.killPlane()
	begun := time.Now()
	for _, o := range []*cluster{b, c} {
		if v := a.awaitState(o, peer.Lost); !strings.Contains(v.Reason, "no TUN device") {
			t.Errorf("%s is lost: %s", v.Name, v.Reason)
		}
	}
	if took, limit := time.Since(begun), 10*fastPatience(a); took > limit {
		t.Errorf("Connected for %s without a tunnel, want at most %s", took, limit)
	}
	a.plane.setBroken(false)
	a.awaitState(b, peer.Connected)
	since := a.awaitState(c, peer.Connected).Since

	// One peer alone.
	a.plane.setRefuse(map[string]tunnel.Problem{string(b.id()): {Text: "its key is bad", Cure: "give it another"}})
	a.Reapply()
	a.await("b lost, with the reason", func() bool {
		v := a.view(b)
		return v.State == peer.Lost && v.Reason == "its key is bad; give it another"
	})
	if v := a.view(c); v.State != peer.Connected || v.Since != since {
		t.Errorf("c noticed: %s", v.State)
	}
	a.plane.setRefuse(nil) // found out by itself
	a.awaitState(b, peer.Connected)
	if p := a.Problems(); len(p) != 0 {
		t.Errorf("problems: %v", p)
	}
}

func fastPatience(a *cluster) time.Duration {
	return time.Duration(a.cfg.Timing.Misses) * a.cfg.Timing.PingTimeout
}

// A process that is replaced within its time costs no state.
func TestReplacedDataPlaneIsNotAbsent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.cluster(1, "a"), w.cluster(2, "b")
	since := a.awaitState(b, peer.Connected).Since
	a.Reapply()
	a.await("the configuration again", func() bool { return a.Fabric.plane.has(b.id()) })
	if v := a.view(b); v.State != peer.Connected || v.Since != since {
		t.Errorf("b is %s since %s, was Connected since %s", v.State, v.Since, since)
	}
}

// A neighbour that is a peer itself and claims the key of another before that one comes, as
// its present key or its next, loses it to the one that proves it, whichever side begins;
// what was proved stays with its owner, after a restart too.
func TestAClaimWithoutAProofIsDisplaced(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		own    bool // the liar has a present key of its own
		begins bool // b is the one that begins
	}{{"as the present key", false, false}, {"as the next key", true, false}, {"as the present key, b begins", false, true}, {"as the next key, b begins", true, true}} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			a := w.cluster(1, "a")
			number := byte(2)
			for ; ; number++ {
				if id, err := rpc.NewIdentity(newKey(number), "b"); err != nil || (id.ID < a.id()) == tt.begins {
					break
				}
			}
			x, bKey := newLiar(t, 66), publicOf(t, number)
			key, next := bKey, wgkey.Public{}
			if tt.own {
				key, next = publicOf(t, 99), bKey
			}
			a.await("the liar's claim is taken", func() bool { return x.say(a, key, next, nil) == nil })
			b := w.cluster(number, "b")
			a.awaitState(b, peer.Connected)
			b.awaitState(a, peer.Connected)
			check := func() {
				t.Helper()
				if v := a.view(b); v.WireGuardKey != bKey {
					t.Errorf("b has the key %s", v.WireGuardKey)
				}
				v := a.viewOf(x.id.ID)
				if v.WireGuardKey == bKey || v.NextWireGuardKey == bKey || tt.own && v.WireGuardKey != key {
					t.Errorf("the liar has the keys %s and %s", v.WireGuardKey, v.NextWireGuardKey)
				}
				for _, p := range a.plane.config().Peers {
					if p.PublicKey == bKey && p.ID != string(b.id()) {
						t.Errorf("the tunnel has b's key for %s", p.ID)
					}
				}
				if err := x.say(a, key, next, nil); pairing.Code(err) != "same-key" {
					t.Errorf("again: %v", err)
				}
			}
			check()
			a.stop()
			a.start()
			a.awaitState(b, peer.Connected)
			check()
			// A proof of its own key is no proof of b's.
			if err := x.say(a, bKey, wgkey.Public{}, func(m map[string]any) { m["proves"], m["keyProof"] = true, make([]byte, 32) }); pairing.Code(err) != "same-key" {
				t.Errorf("with a proof that is none: %v", err)
			}
		})
	}
}
