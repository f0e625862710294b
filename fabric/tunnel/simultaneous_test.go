package tunnel

import (
	"testing"
	"time"

	"rivulet/test/harness/badline"
)

// On a line whose round trip is longer than the time in which one of two handshakes
// is held back, each end answers the other's when both begin at once. Without the repair
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
