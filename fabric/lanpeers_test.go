package fabric

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"rivulet/fabric/lanpeers"
	"rivulet/fabric/pairing"
	"rivulet/fabric/peer"
)

// bounded is a cluster with room for few. Each look at a hardware address finds another machine, or mac if it is set.
func (w *world) bounded(name string, l lanpeers.Limits, used ...peer.ID) (c *cluster, mac *atomic.Pointer[string]) {
	mac = &atomic.Pointer[string]{}
	n := atomic.Int64{}
	return w.cluster(1, name, func(c *Config) {
		c.LANPeers, c.InUse = l, using(used...)
		c.Hardware = func(netip.Addr) string {
			if m := mac.Load(); m != nil {
				return *m
			}
			return fmt.Sprintf("02:00:%08x", n.Add(1))
		}
	}), mac
}

func using(used ...peer.ID) func(context.Context) (map[peer.ID]bool, bool) {
	return func(context.Context) (map[peer.ID]bool, bool) {
		out := map[peer.ID]bool{}
		for _, id := range used {
			out[id] = true
		}
		return out, true
	}
}

func (c *cluster) trusted(how string) (out []peer.ID) {
	for _, v := range c.Peers() {
		if v.Trust.How == how {
			out = append(out, v.ID)
		}
	}
	return out
}

// Somebody makes up one cluster after the other, with true identities. There is room for
// so many; those that answer, that something runs on, or that a person stands for stay.
func TestMadeUpPeersAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	used := newStranger(t, 60).id.ID
	a, _ := w.bounded("a", lanpeers.Limits{Total: 5, BySource: 5, Window: time.Nanosecond, Silent: 20 * time.Millisecond, Settled: time.Hour}, used)
	b := w.cluster(2, "b")
	a.awaitState(b, peer.Connected)
	for n := byte(60); n < 64; n++ {
		if err := newStranger(t, n).pair(a); err != nil {
			t.Fatalf("stranger %d, while there is room: %v", n, err)
		}
	}
	approved := newStranger(t, 61).id.ID
	if v, err := a.Approve(t.Context(), string(approved)); err != nil || v.Trust.How != peer.TrustApproved {
		t.Fatalf("a yes to a peer: %+v, %v", v.Trust, err)
	}
	for n := byte(64); n < 90; n++ {
		a.await("room for one more", func() bool { return newStranger(t, n).pair(a) == nil })
		if got := len(a.trusted(peer.TrustLAN)); got > 6 { // one may be on its way out
			t.Fatalf("%d peers by lan", got)
		}
	}
	a.await("no more than there is room for", func() bool { return len(a.trusted(peer.TrustLAN)) <= 5 })
	now := a.trusted(peer.TrustLAN)
	if !slices.Contains(now, b.id()) || !slices.Contains(now, used) || !slices.Contains(a.trusted(peer.TrustApproved), approved) || a.view(b).State != peer.Connected {
		t.Errorf("one that answers, that is used or that a person stands for has made room: %s", a.list())
	}
	if n := a.store.len(); n > 7 {
		t.Errorf("%d records on disk", n)
	}
}

// Where nobody makes room the newcomer is told so, and does not take us for its peer.
func TestNoRoomOnTheLAN(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, _ := w.bounded("a", lanpeers.Limits{Total: 1, BySource: 1, Window: time.Nanosecond, Silent: time.Hour, Settled: time.Hour})
	b := w.cluster(2, "b")
	a.awaitState(b, peer.Connected)
	b.awaitState(a, peer.Connected)
	c := w.cluster(3, "c")
	c.awaitState(a, peer.Refused)
	a.awaitState(c, peer.Refused)
	c.awaitState(b, peer.Connected)
	if err := newStranger(t, 60).pair(a); pairing.Code(err) != "full" {
		t.Errorf("a stranger: %v", err)
	}
	if a.view(b).State != peer.Connected || len(a.trusted(peer.TrustLAN)) != 1 || len(c.trusted(peer.TrustLAN)) != 1 {
		t.Errorf("a has %s\nc has %s", a.list(), c.list())
	}
	if _, err := a.Approve(t.Context(), "c"); err != nil { // a person's word needs no room
		t.Fatal(err)
	}
	a.awaitState(c, peer.Connected)
}

// One machine has room for few, and newcomers of it push out only its own.
func TestOneMachineOnTheLAN(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, mac := w.bounded("a", lanpeers.Limits{Total: 100, BySource: 3, Window: time.Nanosecond, Silent: time.Hour, Settled: time.Hour})
	one := "02:00:00:00:00:01"
	mac.Store(&one)
	for n := byte(60); n < 63; n++ {
		if err := newStranger(t, n).pair(a); err != nil {
			t.Fatal(err)
		}
	}
	if err := newStranger(t, 63).pair(a); pairing.Code(err) != "full" {
		t.Errorf("a fourth of one machine: %v", err)
	}
	other := "02:00:00:00:00:02"
	mac.Store(&other)
	if err := newStranger(t, 64).pair(a); err != nil {
		t.Errorf("the first of another machine: %v", err)
	}
}

// A machine that makes up others, each with a hardware address of its own, pushes out, of
// those that answer, the ones that came last: its own.
func TestAFloodOfMachines(t *testing.T) {
	w := newWorld(t)
	a, _ := w.bounded("a", lanpeers.Limits{Total: 3, BySource: 3, Window: time.Nanosecond, Silent: time.Hour, Settled: time.Nanosecond})
	b, c, d := w.cluster(2, "b"), w.cluster(3, "c"), w.cluster(4, "d")
	for _, x := range []*cluster{b, c, d} {
		a.awaitState(x, peer.Connected)
	}
	last := b.id()
	for _, v := range a.Peers() {
		if v.Trust.At.After(a.viewOf(last).Trust.At) {
			last = v.ID
		}
	}
	a.admission.lan.InUse()
	if victim, err := a.admission.roomFor(netip.MustParseAddr("10.77.0.99"), "flood"); err != nil || victim != last {
		t.Errorf("room is made by %s, %v; want %s, the last of %s", victim.Short(), err, last.Short(), a.list())
	}
}

// Those that do not answer are pushed out by few of other machines in a time.
func TestAFloodPushesOutFew(t *testing.T) {
	w := newWorld(t)
	few, _ := w.bounded("few", lanpeers.Limits{Total: 8, BySource: 2, Window: time.Hour, Silent: time.Nanosecond, Settled: time.Hour})
	for n := byte(60); n < 68; n++ {
		if err := newStranger(t, n).pair(few); err != nil {
			t.Fatal(err)
		}
	}
	few.stop() // what it met within the window is forgotten, as after the window
	few.start()
	for n := byte(68); n < 70; n++ {
		few.await("room for one more", func() bool { return newStranger(t, n).pair(few) == nil })
		few.await("one has gone", func() bool { return len(few.trusted(peer.TrustLAN)) == 8 })
	}
	if err := newStranger(t, 70).pair(few); pairing.Code(err) != "full" {
		t.Errorf("a third that pushes out another machine's: %v", err)
	}
}

// fullNotes is a store of notes whose disk can be full.
type fullNotes struct {
	memory
	full atomic.Bool
}

func (n *fullNotes) PutNote(name string, blob []byte) error {
	if n.full.Load() {
		return errors.New("no space left on device")
	}
	return n.memory.PutNote(name, blob)
}

// A peer whose end could not be stored is not counted as leaving.
func TestADisplacedPeerStays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	notes := &fullNotes{memory: memory{blobs: map[string][]byte{}}}
	a := w.cluster(1, "a", alone, func(c *Config) {
		c.Notes, c.LANPeers = notes, lanpeers.Limits{Total: 1, BySource: 9, Window: time.Nanosecond, Silent: time.Nanosecond, Settled: time.Hour}
	})
	first := newStranger(t, 60)
	if err := first.pair(a); err != nil {
		t.Fatal(err)
	}
	notes.full.Store(true)
	if err := newStranger(t, 61).pair(a); err != nil {
		t.Fatal(err)
	}
	a.await("that it stays", func() bool {
		return !slices.ContainsFunc(a.lanPeers(), func(p lanpeers.Peer) bool { return p.Leaving })
	})
	notes.full.Store(false)
	if err := newStranger(t, 62).pair(a); err != nil {
		t.Fatal(err)
	}
	a.await("that the first makes room", func() bool { _, pinned := a.record(first.id.ID); return !pinned })
}

// So many in a time, whatever becomes of them: each is written to the disk.
func TestPeersInATime(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, _ := w.bounded("a", lanpeers.Limits{Total: 4, BySource: 4, Window: time.Hour, Silent: time.Nanosecond, Settled: time.Hour})
	for n := byte(60); n < 64; n++ {
		s := newStranger(t, n)
		if err := s.pair(a); err != nil {
			t.Fatal(err)
		}
		if err := s.leave(a); err != nil {
			t.Fatal(err)
		}
	}
	if err := newStranger(t, 64).pair(a); pairing.Code(err) != "full" || len(a.trusted(peer.TrustLAN)) != 0 {
		t.Errorf("a fifth that comes and goes: %v", err)
	}
}

func TestUnpeerLAN(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	used := newStranger(t, 61).id.ID
	a := w.cluster(1, "a", func(c *Config) { c.InUse = using(used) })
	for n := byte(60); n < 64; n++ {
		if err := newStranger(t, n).pair(a); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := a.Approve(t.Context(), string(newStranger(t, 62).id.ID)); err != nil {
		t.Fatal(err)
	}
	a.SetTrust(Policy{Mode: pairing.ModeAsk})
	gone, stay, err := a.UnpeerLAN(t.Context(), false)
	if err != nil || len(gone) != 2 || len(stay) != 1 || len(a.trusted(peer.TrustLAN)) != 1 || len(a.trusted(peer.TrustApproved)) != 1 {
		t.Errorf("gone %v, stay %v, %v; left: %s", gone, stay, err, a.list())
	}
	gone, stay, err = a.UnpeerLAN(t.Context(), true)
	if err != nil || len(gone) != 1 || len(stay) != 0 || len(a.trusted(peer.TrustLAN)) != 0 || a.store.len() != 1 {
		t.Errorf("with force: gone %v, stay %v, %v", gone, stay, err)
	}
	for _, p := range a.decisions.Revocations() {
		if p.Denied {
			t.Errorf("%s may not come back", p.ID.Short())
		}
	}
}

// While it is not known what is in use nobody makes room, and nobody is forgotten.
func TestNobodyMakesRoomWhileUseIsNotKnown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, _ := w.bounded("a", lanpeers.Limits{Total: 1, BySource: 1, Window: time.Nanosecond, Silent: time.Nanosecond, Settled: time.Nanosecond})
	a.stop()
	a.cfg.InUse = func(context.Context) (map[peer.ID]bool, bool) { return nil, false }
	a.start()
	if err := newStranger(t, 60).pair(a); err != nil {
		t.Fatal(err)
	}
	if err := newStranger(t, 61).pair(a); pairing.Code(err) != "full" {
		t.Errorf("a second one: %v", err)
	}
	if gone, _, err := a.UnpeerLAN(t.Context(), false); err == nil || len(gone) != 0 {
		t.Errorf("forgotten %v, %v", gone, err)
	}
}

// One that is refused has cost nothing: no place on the LAN, no peer, no invite.
func TestARefusedStrangerCostsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	key := pairing.NewGroupKey("correct horse battery")
	a, _ := w.bounded("a", lanpeers.Limits{Total: 3, BySource: 3, Window: time.Hour, Silent: time.Nanosecond, Settled: time.Hour})
	if err := newStranger(t, 60).pair(a); err != nil {
		t.Fatal(err)
	}
	_, code, err := a.Invite()
	if err != nil {
		t.Fatal(err)
	}
	for n := byte(61); n < 70; n++ {
		s := newStranger(t, n)
		want := "no-proof"
		switch n % 3 {
		case 0: // it demands what this cluster does not have
			s.self.Group = &key
		case 1: // the same, with an invite
			s.self.Group, s.invite = &key, code.Secret
		case 2:
			a.store.setFull(true)
			want = "store"
		}
		if err := s.pair(a); pairing.Code(err) != want {
			t.Errorf("stranger %d: %v, want %s", n, err, want)
		}
		a.store.setFull(false)
	}
	if all := a.Invites(); all[0].UsedBy != "" {
		t.Errorf("a refused stranger has used up an invite: %+v", all)
	}
	for n := byte(70); n < 72; n++ {
		if err := newStranger(t, n).pair(a); err != nil {
			t.Errorf("stranger %d, for whom there is room: %v", n, err)
		}
	}
	if err := newStranger(t, 72).pair(a); pairing.Code(err) != "full" {
		t.Errorf("a fourth: %v", err)
	}
}

// Nobody makes room for one that is refused.
func TestNobodyMakesRoomForARefusedStranger(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	key := pairing.NewGroupKey("correct horse battery")
	a, _ := w.bounded("a", lanpeers.Limits{Total: 1, BySource: 9, Window: time.Nanosecond, Silent: time.Nanosecond, Settled: time.Hour})
	first := newStranger(t, 60)
	if err := first.pair(a); err != nil {
		t.Fatal(err)
	}
	s := newStranger(t, 61)
	s.self.Group = &key
	if err := s.pair(a); pairing.Code(err) != "no-proof" {
		t.Error(err)
	}
	a.store.setFull(true)
	if err := newStranger(t, 62).pair(a); pairing.Code(err) != "store" {
		t.Error(err)
	}
	a.store.setFull(false)
	if present := a.lanPeers(); len(present) != 1 || present[0].ID != first.id.ID || present[0].Leaving {
		t.Errorf("%+v", present)
	}
	if err := newStranger(t, 63).pair(a); err != nil {
		t.Fatal(err)
	}
	a.await("that the first makes room for one that is taken", func() bool { _, pinned := a.record(first.id.ID); return !pinned })
}

// A disk that takes no record leaves a denial, though an invite has come.
func TestAFullDiskLeavesADenial(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.cluster(1, "a", alone)
	s := newStranger(t, 60)
	if _, err := a.Deny(t.Context(), string(s.id.ID)); err != nil {
		t.Fatal(err)
	}
	_, code, err := a.Invite()
	if err != nil {
		t.Fatal(err)
	}
	a.store.setFull(true)
	s.invite = code.Secret
	if err := s.pair(a); pairing.Code(err) != "store" {
		t.Error(err)
	}
	a.store.setFull(false)
	if p, _ := a.decisions.Revocation(s.id.ID); !p.Denied {
		t.Errorf("%+v", p)
	}
	s.starts++
	if err := s.pair(a); err != nil { // with the invite once more: its user may repeat it
		t.Error(err)
	}
}
