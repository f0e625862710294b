package tunnel

import (
	"bytes"
	"fmt"
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
		later := time.Duration(rapid.Int64Range(0, int64(2*tieWindow)).Draw(t, "later"))
		fromA, fromB := message(initiation, n[0], initiationSize), message(initiation, n[1], initiationSize)
		quiet := conn.Bind(nothing{})
		a, b := tie{Bind: quiet}, tie{Bind: quiet}
		if !a.hear(fromB, atB, begin) {
			t.Fatal("nothing was begun, and a does not hear b")
		}
		// a has heard b, and is about to answer: it does not begin itself.
		if a.begin(fromA, atB, begin.Add(tieWindow-1)) {
			t.Fatal("a begins while it answers b")
		}
		a.answer(atB)
		a.heard = nil
		a.begin(fromA, atB, begin)
		b.begin(fromB, atA, begin)
		heardByA, heardByB := a.hear(fromB, atB, begin.Add(later)), b.hear(fromA, atA, begin.Add(later))
		if crossed := later < tieWindow; crossed && heardByA == heardByB || !crossed && !(heardByA && heardByB) {
			t.Fatalf("%v later a hears %v, b hears %v", later, heardByA, heardByB)
		}
		bufs, sizes, from := [][]byte{make([]byte, 200)}, make([]int, 1), make([]conn.Endpoint, 1)
		if got := a.deliver(bufs, sizes, from, 0, begin.Add(2*tieWindow-1)); got == 1 && later == tieWindow-1 {
			t.Fatal("heard too early")
		}
		if got := a.deliver(bufs, sizes, from, 0, begin.Add(3*tieWindow)); !heardByA && got == 1 && (from[0] != atB || !bytes.Equal(bufs[0][:sizes[0]], fromB)) || heardByA && got != 0 {
			t.Fatalf("no answer came, and %d packets are heard late", got)
		}
		if !a.hear(fromB, elsewhere, begin) {
			t.Fatal("a does not hear somebody else")
		}
		if !a.hear(message(response, n[1], responseSize), atB, begin) || !a.hear(fromB, atB, begin) {
			t.Fatal("answered, and a does not hear b begin again")
		}
	})
}

// Two ends that come up in the same moment talk at once, not after WireGuard's next
// try in five seconds. Handshakes that cross are told by a window of time, so the
// machine must not be so busy that a message takes longer than that.
func TestBothEndsBeginAtOnce(t *testing.T) {
	t.Parallel()
	for i := range 6 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			for range 5 {
				late := lateness()
				took := beginAtOnce(t)
				switch was := late(); {
				case took <= 4*time.Second:
					return
				case was < tieWindow/4:
					t.Fatalf("the first connection took %v", took)
				default:
					t.Logf("not judged: the first connection took %v, on a machine that lets one wait for %v", took, was)
				}
			}
			t.Skip("the machine is too busy to tell")
		})
	}
}

func beginAtOnce(t *testing.T) time.Duration {
	w := newWorld(t)
	errs := make(chan error, 2)
	for _, d := range []*board{w.a, w.b} {
		go func() { errs <- d.Apply(t.Context(), d.want) }()
	}
	for range 2 {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	answer(w.b.pod.listen(":80"))
	start := time.Now()
	c, err := w.a.pod.dial("tcp4", "10.200.0.7:80", reachLimit)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	return time.Since(start)
}

// lateness measures by how much, at most, this process is woken too late until the
// function is called.
func lateness() func() time.Duration {
	done, worst := make(chan struct{}), make(chan time.Duration)
	go func() {
		const nap = 5 * time.Millisecond
		var most time.Duration
		for {
			asleep := time.Now()
			select {
			case <-done:
				worst <- most
				return
			case <-time.After(nap):
				most = max(most, time.Since(asleep)-nap)
			}
		}
	}()
	return func() time.Duration { close(done); return <-worst }
}
