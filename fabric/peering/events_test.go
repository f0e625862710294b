package peering

import (
	"errors"
	"testing"
	"time"

	"rivulet/fabric/peer"
	"rivulet/fabric/wgkey"
)

// An exchange that the other side began is all that is needed if both have all of it, and asks for one more if not.
func TestReceived(t *testing.T) {
	whole := record(keys[0], wgkey.Public{})
	part := whole
	part.WireGuardKey = wgkey.Public{}
	for _, c := range []struct {
		what        string
		record      peer.Record
		complete    bool
		want        Effects
		due, exists bool
	}{
		{"whole", whole, true, Changed | Entered | Ping, false, true},
		{"the peer lacks this cluster's prefix", whole, false, Exchange, true, true},
		{"this cluster lacks the peer's key", part, true, Exchange, true, true},
		{"a stranger", whole, true, 0, false, false},
	} {
		d := newDriver()
		if c.exists {
			d.Machine.rec, d.Machine.pinned, d.Machine.state = c.record, true, peer.Refused
		}
		do := d.Received(d.now, c.complete)
		if _, due := d.Next(); do != c.want || due != c.due {
			t.Errorf("%s: effects %b, want %b; due %v", c.what, do, c.want, due)
		}
		if exchanged := c.want&Ping != 0; d.LastExchange().Equal(d.now) != exchanged || (d.State() == peer.Connecting) != exchanged {
			t.Errorf("%s: last exchange %v, %s", c.what, d.LastExchange(), d.State())
		}
		if again := d.Received(d.now, c.complete); c.due && again != 0 {
			t.Errorf("%s: once more, while one is due: %b", c.what, again)
		}
	}
}

// A change here is told by an exchange of its own, though the peer has just asked: the answer may be of before. An exchange
// that is due for another reason is not needed then.
func TestAChangeIsToldThoughThePeerAsks(t *testing.T) {
	for _, changed := range []bool{true, false} {
		d := newDriver()
		d.Machine.rec, d.Machine.pinned, d.Machine.state = record(keys[0], wgkey.Public{}), true, peer.Connected
		d.Due(d.now, changed)
		d.Received(d.now, true)
		if _, due := d.Next(); due != changed {
			t.Errorf("changed here %v: an exchange is due %v", changed, due)
		}
		d.Begin()
		if _, due := d.Next(); due {
			t.Errorf("changed here %v: due again, though it has begun", changed)
		}
		d.End()
		d.Due(d.now, false)
		d.Received(d.now, true)
		if _, due := d.Next(); due {
			t.Errorf("changed here %v: what was told is told again", changed)
		}
	}
}

// A tunnel that works proves more than a request that this cluster refuses.
func TestRequested(t *testing.T) {
	for state, want := range map[peer.State]peer.State{peer.Connected: peer.Connected, peer.Discovered: peer.Waiting} {
		d := newDriver()
		d.state = state
		do := d.Requested(d.now, "b", there, pending, "no")
		if d.State() != want || do&Exchange == 0 || (do&Changed != 0) != (state != want) {
			t.Errorf("from %s to %s, want %s; effects %b", state, d.State(), want, do)
		}
		if err, mine := d.Refusal(); !errors.Is(err, pending) || !mine || !d.Proved() {
			t.Errorf("%s: refused by %v, mine %v", state, err, mine)
		}
	}
}

// A failed attempt puts the next one off, unless the cluster was found again meanwhile.
func TestFailedWhileDue(t *testing.T) {
	d := newDriver()
	d.Begin()
	d.Due(d.now, true) // it was found again
	if do := d.Failed(d.now, silence, false, "no answer"); do&Exchange != 0 {
		t.Errorf("effects %b", do)
	}
	if at, due := d.Next(); !due || at.After(d.now.Add(time.Second)) {
		t.Errorf("due %v at %v", due, at)
	}
}
