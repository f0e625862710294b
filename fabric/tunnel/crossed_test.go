package tunnel

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"golang.zx2c4.com/wireguard/conn"

	"rivulet/fabric/internal/badline"
	"rivulet/fabric/tunnel/paths"
)

// On a line whose round trip is longer than the time in which one of two handshakes
// is held back, each end answers the other's when both begin at once. Without crossed
// nothing ever comes through: the tries after five seconds cross as well.
func TestHandshakesCrossOnALongLine(t *testing.T) {
	t.Parallel()
	w, _ := newFarWorld(t, badline.Quality{Delay: 400 * time.Millisecond})
	answer(w.a.pod.listen(":80"))
	answer(w.b.pod.listen(":80"))
	w.apply(t)
	start := time.Now()
	ends := make(chan error, 2)
	for from, to := range map[*room]string{w.a.pod: "10.200.0.7:80", w.b.pod: "10.201.0.5:80"} {
		go func() {
			c, err := from.dial("tcp4", to, reachLimit)
			if err == nil {
				c.Close()
			}
			ends <- err
		}()
	}
	for range 2 {
		if err := <-ends; err != nil {
			t.Fatal(err)
		}
		t.Logf("a first connection took %v", time.Since(start))
	}
}

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
					again := 0
					var c crossed
					b := c.tie(nothing{})
					c.begin(func(paths.Key) {
						again++
						if !b.begin(message(initiation, 9, initiationSize), at, time.Now()) {
							t.Error("what is begun anew is held back")
						}
					})
					b.begin(message(initiation, story.ours, initiationSize), at, time.Now())
					c.asked = map[uint32]asked{story.ours: {at: time.Now()}} // as the tie above the paths notes it
					time.Sleep(tieWindow)
					reply := func() {
						answer := message(response, 7, responseSize)
						binary.LittleEndian.PutUint32(answer[8:], story.ours)
						if !b.hear(answer, at, time.Now()) {
							t.Error("an answer is not heard")
						}
					}
					if story.heard && !b.hear(message(initiation, story.theirs, initiationSize), at, time.Now()) {
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
					synctest.Wait()
					if again != story.again {
						t.Errorf("begun anew %d times, want %d", again, story.again)
					}
				})
			})
		}
	}
}
