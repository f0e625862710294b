package fabric

import (
	"strings"
	"testing"
	"time"

	"rivulet/fabric/peer"
)

// Whoever ends a peering with a cluster whose version cannot be told hears what is left
// to do; of others that are away nothing has to be done, they hear it when they call.
func TestUnpeerSaysWhatIsLeftToDo(t *testing.T) {
	for protocol, says := range map[int]bool{1: true, 2: false} {
		w := newWorld(t)
		a, b := w.cluster(1, "a"), w.cluster(2, "b")
		a.awaitState(b, peer.Connected)
		b.stop()
		a.mu.Lock()
		m := a.members[string(b.id())]
		r := m.Record()
		r.Protocol = protocol
		m.Pin(time.Now(), r)
		a.mu.Unlock()
		v, err := a.Unpeer(t.Context(), "b", Unpeer{Force: true})
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(v.Notice, "rivulet unpeer there") != says {
			t.Errorf("protocol %d: %q", protocol, v.Notice)
		}
	}
}
