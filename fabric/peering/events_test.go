package peering

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"rivulet/fabric/discovery"
	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
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

// Only an answer of the cluster itself proves who it is: its refusal does, silence and a refusal of ours do not.
func TestWhatProvesAnID(t *testing.T) {
	for name, c := range map[string]struct {
		id   peer.ID
		err  error
		mine bool
		want bool
	}{
		"it refuses":         {id, denied, false, true},
		"it is silent":       {id, silence, false, false},
		"this side refuses":  {id, denied, true, false},
		"an address alone":   {"", denied, false, false},
		"it is too far away": {id, &rpc.Error{Code: "not-on-link"}, false, false},
	} {
		d := newDriver()
		d.id = c.id
		d.Failed(d.now, c.err, c.mine, "")
		if d.Proved() != c.want {
			t.Errorf("%s: proved %v", name, d.Proved())
		}
		if d.Failed(d.now, silence, false, ""); d.Proved() != c.want {
			t.Errorf("%s, and silence: proved %v", name, d.Proved())
		}
	}
}

// A peer that is connected where its announcement says needs no exchange.
func TestWhenAnAnnouncementAsksForAnExchange(t *testing.T) {
	elsewhere := netip.MustParseAddrPort("192.168.1.6:7442")
	for name, c := range map[string]struct {
		connected, moved bool
		at               netip.AddrPort
		want             bool
	}{
		"as it is known":      {true, false, there, false},
		"the entry is new":    {true, true, there, true},
		"it is elsewhere":     {true, false, elsewhere, true},
		"it is not there yet": {false, false, there, true},
	} {
		d := newDriver()
		d.pin(record(keys[0], wgkey.Public{}))
		if c.connected {
			d.Answered(d.now, time.Millisecond)
		}
		d.Found(d.now, "mdns/b", discovery.Entry{ID: id, Addrs: []netip.AddrPort{c.at}}, c.moved, true)
		if _, due := d.Next(); due != c.want {
			t.Errorf("%s: an exchange is due %v", name, due)
		}
	}
}

// A peer that answers with its next key is asked for it, once.
func TestANewKeyIsAskedFor(t *testing.T) {
	for name, c := range map[string]struct {
		next   wgkey.Public
		before func(d *driver)
		want   bool
	}{
		"with its next key":    {keys[2], func(*driver) {}, true},
		"it has no next key":   {wgkey.Public{}, func(*driver) {}, false},
		"an exchange is tried": {keys[2], func(d *driver) { d.Begin() }, false},
	} {
		d := newDriver()
		d.pin(record(keys[0], c.next))
		d.Exchanged(d.now, keys[0])
		for range timing.Misses + 2 {
			d.Missed(d.now, "")
		}
		d.pace.Done()
		c.before(d)
		if d.Answered(d.now, time.Millisecond); d.due() != c.want {
			t.Errorf("%s: an exchange is due %v", name, d.due())
		}
	}
}

func TestExplain(t *testing.T) {
	at := []netip.AddrPort{there}
	for want, c := range map[string]struct {
		err error
		at  []netip.AddrPort
	}{
		"no address is known":            {silence, nil},
		"(no answer)":                    {silence, at},
		"(connection refused)":           {&net.OpError{Op: "dial", Err: errors.New("connection refused")}, at},
		"at 192.168.1.5:7442":            {silence, at},
		"a person has to approve it":     {pending, at},
		"another cluster (abcdefgh)":     {&rpc.WrongPeerError{Got: id}, at},
		"does its firewall let TCP 7442": {silence, at},
	} {
		if got := Explain(c.err, c.at); !strings.Contains(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
