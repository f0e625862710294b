package fabric

import (
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"rivulet/fabric/keyring"
	"rivulet/fabric/peer"
	"rivulet/fabric/tunnel"
	"rivulet/fabric/wgkey"
)

// keyFile is where a cluster of a test keeps its WireGuard keys; its disk can be full.
type keyFile struct {
	mu            sync.Mutex
	current, next string
	changed       time.Time
	full          bool
	saves         int
}

func (k *keyFile) save(current, next string, changed time.Time) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.full {
		return errors.New("no space left on device")
	}
	k.current, k.next, k.changed = current, next, changed
	k.saves++
	return nil
}

func (k *keyFile) get() (string, string, int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.current, k.next, k.saves
}

// A clock of its own: what is sent is the time of the device.
func rotating(k *keyFile, ticks chan time.Time, begin time.Time) func(*Config) {
	return func(c *Config) {
		k.current, k.changed = c.WireGuardKey, begin
		c.Rotation = keyring.Rotation{Every: 30 * 24 * time.Hour, Changed: begin, Save: k.save, Ticks: ticks}
	}
}

func TestKeyIsChangedInTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	k, ticks := &keyFile{}, make(chan time.Time)
	a := w.cluster(1, "a", rotating(k, ticks, begin))
	b, c := w.cluster(2, "b"), w.cluster(3, "c")
	for _, o := range []*cluster{b, c} {
		agreedUpon(t, a, o, peer.TrustLAN, peer.TrustLAN)
	}
	old := a.keys.Now().Private
	key := func(of *cluster) wgkey.Public { return of.view(a).WireGuardKey }
	before := key(b)
	ticks <- begin.Add(29 * 24 * time.Hour)
	ticks <- begin.Add(-24 * time.Hour) // a clock that went back
	ticks <- begin
	if _, _, n := k.get(); n != 0 {
		t.Errorf("it was changed before its time: %d", n)
	}
	// The power is about to go in the middle: with one peer's word missing nothing is changed yet.
	var lost []peer.State
	changed, stop := b.Changed()
	defer stop()
	due := begin.Add(30 * 24 * time.Hour)
	ticks <- due
	a.await("another key", func() bool { cur, next, _ := k.get(); return cur != old.Text() && next == "" })
	for _, o := range []*cluster{b, c} {
		o.await("the new key", func() bool { return key(o) != before && o.view(a).NextWireGuardKey.IsZero() })
		o.await("a tunnel by it", func() bool {
			cfg := o.plane.config()
			return slices.ContainsFunc(cfg.Peers, func(p tunnel.Peer) bool { return p.PublicKey == key(o) }) && o.view(a).State == peer.Connected
		})
	}
	if cfg := a.plane.config(); cfg.PrivateKey == old || cfg.PrivateKey.IsZero() {
		t.Error("a's tunnel has the old key")
	}
	for done := false; !done; {
		select {
		case <-changed:
			if s := b.view(a).State; s != peer.Connected {
				lost = append(lost, s)
			}
		default:
			done = true
		}
	}
	if len(lost) > 0 {
		t.Errorf("b has seen a as %v", lost)
	}
	if cur, _, n := k.get(); n != 2 || cur != a.plane.config().PrivateKey.Text() || !k.changed.Equal(due) {
		t.Errorf("saved %d times, changed %v", n, k.changed)
	}
	ticks <- due.Add(time.Hour)
	if err := a.Rotate(t.Context()); err != nil { // a person's word needs no time
		t.Fatal(err)
	}
	b.await("the key after that", func() bool { return key(b) != before })
}

// publicOf is the public key of the nth cluster.
func publicOf(t *testing.T, n byte) wgkey.Public {
	t.Helper()
	k, err := wgkey.ParsePrivate(baseConfig(n, "x", slog.New(slog.DiscardHandler)).WireGuardKey)
	if err != nil {
		t.Fatal(err)
	}
	return k.Public()
}

// The power goes after the next key was told: after the start the change is finished.
func TestKeyChangeGoesOnAfterAPowerCut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	k, ticks := &keyFile{}, make(chan time.Time)
	a, b := w.cluster(1, "a", rotating(k, ticks, begin)), w.cluster(2, "b")
	agreedUpon(t, a, b, peer.TrustLAN, peer.TrustLAN)
	before := b.view(a).WireGuardKey
	a.stop()
	next := baseConfig(77, "x", a.log).WireGuardKey
	a.cfg.Rotation.Next = next
	a.start()
	b.await("the new key", func() bool { return b.view(a).WireGuardKey != before })
	agreedUpon(t, a, b, peer.TrustLAN, peer.TrustLAN)
	if cur, n, _ := k.get(); cur != next || n != "" {
		t.Error("the change is not finished on disk")
	}
	// A full disk: nothing is changed, and nobody is told of a key that is not kept.
	k.full = true
	public := a.keys.Now().Public
	ticks <- begin.Add(1000 * 24 * time.Hour)
	ticks <- begin
	if now := a.keys.Now(); now.Public != public || !now.NextPublic.IsZero() {
		t.Error("it has another key that is not on disk")
	}
}

// A peer that cannot be told that the key was changed, since only the tunnel leads to
// it, takes the next one when the old one has ceased to answer.
func TestNextKeyIsTriedWhenTheOldOneIsSilent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.cluster(1, "a"), w.cluster(2, "b")
	agreedUpon(t, a, b, peer.TrustLAN, peer.TrustLAN)
	next := publicOf(t, 77)
	w.setCut(a, true)
	b.awaitState(a, peer.Lost)
	a.stop() // nobody answers on the LAN either
	if err := b.party.Change(a.id(), func(r *peer.Record) { r.NextWireGuardKey = next }); err != nil {
		t.Fatal(err)
	}
	seen := map[wgkey.Public]bool{}
	b.await("both keys tried", func() bool {
		for _, p := range b.plane.config().Peers {
			seen[p.PublicKey] = true
		}
		return len(seen) == 2 && seen[next]
	})
}
