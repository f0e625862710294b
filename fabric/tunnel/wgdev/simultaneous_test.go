package wgdev

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"golang.zx2c4.com/wireguard/conn"

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
					again := 0
					var b *arbiter
					c := &simultaneous{again: func(paths.Key) {
						again++
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
					synctest.Wait()
					if again != story.again {
						t.Errorf("begun anew %d times, want %d", again, story.again)
					}
				})
			})
		}
	}
}
