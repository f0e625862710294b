package wgdev

import (
	"encoding/binary"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"

	"rivulet/fabric/tunnel/paths"
)

// Of two ends that have answered each other, the one with the lower number begins anew,
// once, and is not held back by what it has heard. An answer in time begins nothing, nor
// does what a stranger sends.
func TestWhoBeginsAnew(t *testing.T) {
	for name, story := range map[string]struct {
		ours, theirs   uint32
		answers, heard bool // theirs is answered by us, and heard before the answer to ours
		again          int
	}{
		"both answered, lower number":  {ours: 1, theirs: 2, answers: true, heard: true, again: 1},
		"both answered, higher number": {ours: 2, theirs: 1, answers: true, heard: true},
		"a stranger's is not answered": {ours: 1, theirs: 2, heard: true},
		"nobody else has begun":        {ours: 1, theirs: 2},
	} {
		for _, answerFirst := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					at := &conn.StdNetEndpoint{AddrPort: netip.MustParseAddrPort("192.0.2.2:7442")}
					var again atomic.Int32
					var b *arbiter
					c := &simultaneous{again: func(paths.Key) {
						again.Add(1)
						if !b.begin(message(initiation, 9, initiationSize), at, time.Now()) {
							t.Error("what is begun anew is held back")
						}
					}}
					b = c.arbiter(nothing{})
					b.begin(message(initiation, story.ours, initiationSize), at, time.Now())
					c.initiated = map[uint32]started{story.ours: {at: time.Now()}} // as the arbiter above the paths notes it
					time.Sleep(arbitrationWindow)
					reply := func() {
						answer := message(response, 7, responseSize)
						binary.LittleEndian.PutUint32(answer[8:], story.ours)
						if !b.admits(answer, at, time.Now()) {
							t.Error("an answer is not heard")
						}
					}
					if story.heard && !b.admits(message(initiation, story.theirs, initiationSize), at, time.Now()) {
						t.Error("a handshake that comes late is not heard")
					}
					if answerFirst && story.answers {
						b.answer(at)
					}
					reply()
					if !answerFirst && story.answers {
						b.answer(at)
					}
					reply() // on its way twice
					time.Sleep(device.HandshakeInitationRate)
					if again.Load() != 0 {
						t.Error("begun anew while WireGuard ignores it")
					}
					time.Sleep(arbitrationWindow)
					synctest.Wait()
					if int(again.Load()) != story.again {
						t.Errorf("begun anew %d times, want %d", again.Load(), story.again)
					}
				})
			})
		}
	}
}

// WireGuard ignores the handshake of a peer that it does not know yet. Once it does, the own one leaves at once, and the
// peer's, which is sent again when its path answers, is heard at once: neither waits for the other.
func TestThePeerBeganTooEarly(t *testing.T) {
	for name, configured := range map[string]bool{"a peer is new": true, "it was known": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				at := &conn.StdNetEndpoint{AddrPort: netip.MustParseAddrPort("192.0.2.2:7442")}
				c := &simultaneous{}
				toAddress := c.arbiter(nothing{})
				toPeer := c.arbiter(toAddress)
				early, ours := message(initiation, 2, initiationSize), message(initiation, 1, initiationSize)
				toAddress.admits(early, at, time.Now())
				if configured {
					c.configured()
				}
				toPeer.begin(ours, at, time.Now())
				if left := toAddress.begin(ours, at, time.Now()); left != configured {
					t.Errorf("the own handshake leaves: %v", left)
				}
				if !configured && !toPeer.admits(early, at, time.Now()) {
					t.Error("the peer's is held back for one that has not left")
				}
			})
		})
	}
}

// Of copies of one handshake that come together, by any paths, WireGuard gets one; and another one after it has ignored
// the first, because it did not know the peer.
func TestCopiesOfAHandshake(t *testing.T) {
	at := func(s string) conn.Endpoint { return &conn.StdNetEndpoint{AddrPort: netip.MustParseAddrPort(s)} }
	c := &simultaneous{}
	b := c.arbiter(nothing{})
	b.outermost = true
	packet, now := message(initiation, 5, initiationSize), time.Unix(1, 0)
	for _, step := range []struct {
		what  string
		from  string
		heard bool
	}{
		{"the first", "192.0.2.2:7442", true},
		{"its copy", "192.0.2.2:7442", false},
		{"its copy by another path", "198.51.100.2:7442", false},
		{"after the peer is known", "192.0.2.2:7442", true},
	} {
		if step.what == "after the peer is known" {
			c.configured()
		}
		if heard := b.admits(packet, at(step.from), now); heard != step.heard {
			t.Errorf("%s is heard: %v", step.what, heard)
		}
	}
	if !b.admits(packet, at("192.0.2.2:7442"), now.Add(arbitrationWindow)) {
		t.Error("a later one is not heard")
	}
	b.begin(message(initiation, 1, initiationSize), at("192.0.2.3:7442"), now)
	for _, p := range [][]byte{message(initiation, 6, initiationSize), message(response, 1, responseSize)} {
		b.admits(p, at("192.0.2.3:7442"), now)
	}
	if b.admits(message(initiation, 6, initiationSize), at("192.0.2.3:7442"), now) {
		t.Error("a copy of one that has lost is heard after the answer")
	}
	for n := range uint32(2 * maxHeld) { // a flood
		b.admits(message(initiation, 1000+n, initiationSize), at("192.0.2.9:1"), now)
	}
	if len(c.received) > maxHeld {
		t.Errorf("a flood leaves %d numbers", len(c.received))
	}
}
