package paths

import (
	"bytes"
	"encoding/binary"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"rivulet/test/harness/await"
)

// linked are two hosts that have no path but a connection, and its ends: b begins a stream on the second.
func linked(t *testing.T) (a, b *host, ends [2]net.Conn) {
	w := newInternet(t)
	a, b = w.host("a", "192.0.2.1:7442", nil), w.host("b", "192.0.2.2:7442", nil)
	w.setCut("a", "b", true)
	a.start(true, b)
	b.start(true, a)
	for _, h := range []*host{a, b} {
		h.m.SetMTU(1280)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if ends[1], err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if ends[0], err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	return a, b, ends
}

// Two ends of any versions have a stream; packets of any size pass in it if both know them, and otherwise only those are
// lost.
func TestStreamBetweenVersions(t *testing.T) {
	for _, both := range [][2]bool{{true, true}, {true, false}, {false, true}, {false, false}} {
		a, b, ends := linked(t)
		config, err := serverTLS()
		if err != nil {
			t.Fatal(err)
		}
		config = config.Clone()
		protocols := []string{bareProtocol, StreamProtocol}
		if !both[0] {
			config.NextProtos = protocols[1:]
		}
		if !both[1] {
			protocols = protocols[1:]
		}
		welcomed := make(chan error, 1)
		go func() { welcomed <- a.m.welcome(t.Context(), &resumed{Conn: ends[0]}, config) }()
		if err := b.m.begin(t.Context(), ends[1], a.public, protocols...); err != nil {
			t.Fatal(err)
		}
		if err := <-welcomed; err != nil {
			t.Fatal(err)
		}
		awaitTalk(a, b)
		whole := both[0] && both[1]
		if a.m.Whole(b.public) != whole || b.m.Whole(a.public) != whole || a.m.AnyWhole() != whole {
			t.Errorf("%v: whole at a %v, at b %v", both, a.m.Whole(b.public), b.m.Whole(a.public))
		}
		large := strings.Repeat("x", 60000)
		if a.say(b, large) != whole || b.say(a, large) != whole {
			t.Errorf("%v: a large packet passes, or is lost, and should not", both)
		}
		awaitTalk(a, b)
		await.True(t, 20*time.Second, "not whole while no path works, which is a moment", func() bool {
			a.m.Moved()
			return !a.m.Whole(b.public)
		})
		ends[0].Close()
		await.True(t, 20*time.Second, "the stream is gone", func() bool { return !a.m.AnyWhole() && !b.m.AnyWhole() })
	}
}

// What is in a stream is of its peer, even if another peer has sealed it.
func TestStreamIsOfOnePeer(t *testing.T) {
	a, b, ends := linked(t)
	c := a.w.host("c", "192.0.2.3:7442", nil)
	c.start(true, a)
	a.apply(true, b, c)
	awaitTalk(a, c)
	a.m.Accept(t.Context(), ends[0], nil)
	if err := b.m.Begin(t.Context(), ends[1], a.public); err != nil {
		t.Fatal(err)
	}
	a.awaitPath(b, "stream", kind(Stream))
	a.m.mu.Lock()
	w := *a.m.byKey[b.public].best.Load()
	secret, count := a.m.byKey[c.public].secret, len(a.m.byKey[c.public].paths)
	a.m.mu.Unlock()
	was := w.pinged
	a.m.receive(secret.seal(c.m.self, stamp{epoch: 1}, message{kind: bodyPing, id: 1}.encode()), origin{kind: Stream, w: &w})
	a.m.mu.Lock()
	defer a.m.mu.Unlock()
	if w.pinged != was || len(a.m.byKey[c.public].paths) != count {
		t.Error("a ping of c in the stream of b counts")
	}
}

// Whatever is sent, a stream has whole frames in their order, within its bound, and this package's messages first.
func TestOutboxIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &stream{out: outbox{ready: make(chan struct{}, 1)}}
		var want [][]byte
		size := 0
		for range rapid.IntRange(0, 60).Draw(t, "packets") {
			b := make([]byte, rapid.OneOf(rapid.IntRange(2, 2000), rapid.IntRange(2, maxPacket+10)).Draw(t, "size"))
			if rapid.IntRange(0, 9).Draw(t, "own") == 0 {
				b[0], b[1] = magic, kindControl
			} else if len(b) <= maxPacket && size+frameHead+len(b) <= streamBytes {
				size += frameHead + len(b)
				want = append(want, b)
			}
			_ = s.send([][]byte{b}) // it never fails
		}
		if n := len(s.out.first); n > firstBytes || s.out.size != size || len(s.out.pieces)*pieceBytes > 3*streamBytes {
			t.Fatalf("%d bytes first, %d in %d pieces, want %d", n, s.out.size, len(s.out.pieces), size)
		}
		first := len(s.out.first) > 0
		for b, release := s.out.next(); b != nil; b, release = s.out.next() {
			if own := len(b) > 3 && b[2] == magic && b[3] == kindControl; own != first || len(b) > pieceBytes {
				t.Fatalf("%d bytes, of this package %v", len(b), own)
			}
			for rest := b; !first && len(rest) > 0; {
				end := frameHead + int(binary.BigEndian.Uint16(rest))
				if end > len(rest) || !bytes.Equal(rest[frameHead:end], want[0]) {
					t.Fatal("another packet, or a part of one")
				}
				rest, want = rest[end:], slices.Delete(want, 0, 1)
			}
			first = false
			release()
		}
		if s.out.size != 0 {
			t.Fatalf("%d bytes are left", s.out.size)
		}
		if len(want) > 0 {
			t.Fatalf("%d packets are missing", len(want))
		}
	})
}
