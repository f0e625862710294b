package move

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"rivulet/test/harness/await"
)

// betweenPeers shows moves from one peer to another, by way of home: the power gone, and
// each of the two links cut. Whatever happens, there is one copy in the end, and it is
// where the claim says.
func betweenPeers(t *testing.T, w *world) {
	b, c := w.peers["b"], w.peers["c"]
	onB := func(t *testing.T, name string) {
		t.Helper()
		w.t = t
		w.claim(name)
		m, _ := w.mover("", 0)
		w.must(ended(t, w.start(m, name, "b")))
		w.settled(name, "b")
	}

	for i, at := range []string{"prepared", "copied", "switched"} {
		t.Run("power gone: "+at, func(t *testing.T) {
			name := fmt.Sprint("between", i)
			onB(t, name)
			m, gone := w.mover(at, 0)
			_ = ended(t, w.start(m, name, "c"))
			<-gone
			_, _ = w.mover("", 0)
			w.settled(name, "c")
		})
	}

	cut := errors.New("the link is cut")
	for _, x := range []struct {
		what string
		link *atomic.Pointer[error]
	}{{"reading", &b.tear}, {"writing", &c.spoil}} {
		t.Run(x.what+" fails", func(t *testing.T) {
			onB(t, x.what)
			x.link.Store(&cut)
			defer x.link.Store(nil)
			m, _ := w.mover("", 1)
			if err := ended(t, w.start(m, x.what, "c")); err == nil || !strings.Contains(err.Error(), "the link is cut; it was tried for") {
				t.Errorf("for too long: %v", err)
			}
			w.settled(x.what, "b")

			m, _ = w.mover("", 0)
			j := w.start(m, x.what, "c")
			await.NoError(w.t, w.t.Context(), time.Minute, "trouble is told", func() error {
				if !strings.Contains(j.Progress().Trouble, "the link is cut") {
					return fmt.Errorf("%+v", j.Progress())
				}
				return nil
			})
			x.link.Store(nil)
			w.must(ended(t, j))
			w.settled(x.what, "c")
		})
	}

	t.Run("one that is away is named", func(t *testing.T) {
		onB(t, "away")
		m, _ := w.mover("", 0)
		for _, p := range []*peer{b, c} {
			p.ready.Store(false)
			if _, err := m.Start(t.Context(), Request{Namespace: "lab", Claim: "away", To: "c"}); err == nil || !strings.Contains(err.Error(), p.name) || !strings.Contains(err.Error(), "cannot be reached") {
				t.Errorf("%s is away: %v", p.name, err)
			}
			p.ready.Store(true)
		}
		w.settled("away", "b")
	})
}
