package wgdev

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/conn"
	"pgregory.net/rapid"
)

// nothing is a bind that sends nothing.
type nothing struct{ conn.Bind }

func (nothing) Send([][]byte, conn.Endpoint) error { return nil }

// Of two handshakes that cross, exactly one is heard; alone, late or once answered,
// each is.
func TestHandshakesThatCross(t *testing.T) {
	at := func(s string) conn.Endpoint { return &conn.StdNetEndpoint{AddrPort: netip.MustParseAddrPort(s)} }
	atA, atB, elsewhere := at("192.0.2.1:7442"), at("[::ffff:192.0.2.2]:7442"), at("192.0.2.3:7442")
	begin := time.Unix(1, 0)
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.SliceOfNDistinct(rapid.Uint32(), 2, 2, rapid.ID).Draw(t, "numbers")
		later := time.Duration(rapid.Int64Range(0, int64(2*arbitrationWindow)).Draw(t, "later"))
		fromA, fromB := message(initiation, n[0], initiationSize), message(initiation, n[1], initiationSize)
		quiet := conn.Bind(nothing{})
		a, b := arbiter{Bind: quiet}, arbiter{Bind: quiet}
		if !a.admits(fromB, atB, begin) {
			t.Fatal("nothing was begun, and a does not hear b")
		}
		// a has heard b, and is about to answer: it does not begin itself.
		if a.begin(fromA, atB, begin.Add(arbitrationWindow-1)) {
			t.Fatal("a begins while it answers b")
		}
		a.answer(atB)
		a.accepted = nil
		a.begin(fromA, atB, begin)
		b.begin(fromB, atA, begin)
		heardByA, heardByB := a.admits(fromB, atB, begin.Add(later)), b.admits(fromA, atA, begin.Add(later))
		if crossed := later < arbitrationWindow; crossed && heardByA == heardByB || !crossed && !(heardByA && heardByB) {
			t.Fatalf("%v later a hears %v, b hears %v", later, heardByA, heardByB)
		}
		bufs, sizes, from := [][]byte{make([]byte, 200)}, make([]int, 1), make([]conn.Endpoint, 1)
		if got := a.deliver(bufs, sizes, from, 0, begin.Add(2*arbitrationWindow-1)); got == 1 && later == arbitrationWindow-1 {
			t.Fatal("heard too early")
		}
		if got := a.deliver(bufs, sizes, from, 0, begin.Add(3*arbitrationWindow)); !heardByA && got == 1 && (from[0] != atB || !bytes.Equal(bufs[0][:sizes[0]], fromB)) || heardByA && got != 0 {
			t.Fatalf("no answer came, and %d packets are heard late", got)
		}
		if !a.admits(fromB, elsewhere, begin) {
			t.Fatal("a does not hear somebody else")
		}
		if !a.admits(message(response, n[1], responseSize), atB, begin) || !a.admits(fromB, atB, begin) {
			t.Fatal("answered, and a does not hear b begin again")
		}
	})
}
