package upgrade

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"rivulet/image/device/layout"
)

// model is a device with a disk, whose power can fail at any change to it.
type model struct {
	t *rapid.T
	// On disk.
	state    State
	data     string // the version that wrote the data last
	saved    string // the snapshot's content, empty if there is none
	link     string // build that the installed place leads to
	writable bool   // the installed place can be changed
	// How the new version behaves: verdicts in turn, the last for ever.
	verdicts []Verdict
	// The power fails before (odd) or after (even) a change from now; 0 never.
	cutIn int
	// What was seen.
	tries   int
	healthy map[string]bool
	now     time.Time
}

var errPower = errors.New("power cut")

// change is one durable change; the power may fail before it or after it.
func (m *model) change(f func()) {
	if m.cutIn--; m.cutIn == 0 {
		panic(errPower)
	}
	f()
	if m.cutIn--; m.cutIn == 0 {
		panic(errPower)
	}
}

// A model without slots: image_test.go has those.
func (*model) Slot() layout.Slot  { return 0 }
func (*model) BootID() string     { return "" }
func (*model) Arm(Image) error    { panic("no slots") }
func (*model) Accept(Image) error { panic("no slots") }
func (*model) Reject(Image) error { panic("no slots") }

func (m *model) Load() (State, error) { return m.state, nil }
func (m *model) Now() time.Time       { m.now = m.now.Add(time.Second); return m.now }
func (m *model) Save(s State) error   { m.change(func() { m.state = s }); return nil }

func (m *model) Snapshot(context.Context, State) (string, Saved, error) {
	m.change(func() { m.saved = m.data })
	return "snapshot", Saved{Kind: savedBackup}, nil
}

func (m *model) Restore(_ context.Context, s State) (string, error) {
	if s.Attempt.Snapshot == "" {
		m.t.Fatal("there is no snapshot to return to")
	}
	m.change(func() { m.data = m.saved })
	return "aside", nil
}

func (m *model) Try(_ context.Context, s State) Verdict {
	if m.saved != s.Attempt.From.BuildID {
		m.t.Fatalf("tried with a snapshot of %q", m.saved)
	}
	m.change(func() { m.data = s.Attempt.Next.BuildID })
	v := m.verdicts[min(m.tries, len(m.verdicts)-1)]
	m.tries++
	if v.Kind == Healthy {
		m.healthy[s.Attempt.Next.BuildID] = true
	}
	return v
}

func (m *model) Point(s State) bool {
	if s.Current == nil || !m.writable {
		return s.Current != nil && m.link == s.Current.BuildID
	}
	m.change(func() { m.link = s.Current.BuildID })
	return true
}

// boot starts the binary that is installed, which may become another; it returns
// what runs in the end, empty if the power failed or it was stopped.
func (m *model) boot() (runs string) {
	defer func() {
		if p := recover(); p != nil && p != errPower { //nolint:errorlint // it is the value itself
			panic(p)
		}
	}()
	self := m.link
	choice, err := decide(context.Background(), m, self, slog.New(slog.DiscardHandler))
	if err != nil {
		m.t.Fatal(err)
	}
	switch {
	case choice.Exit:
		return ""
	case choice.Run != nil:
		self = choice.Run.BuildID
		// It looks at the state again when it begins.
		if again, err := decide(context.Background(), m, self, slog.New(slog.DiscardHandler)); err != nil || again.Exit || again.Run != nil {
			m.t.Fatalf("%s was chosen and does not run: %+v %v", self, again, err)
		}
	}
	if m.data != self {
		m.t.Fatalf("%s runs on the data of %s", self, m.data)
	}
	return self
}

func build(n int) Version {
	return Version{Name: fmt.Sprint("v", n), Dir: fmt.Sprint("v", n, "-0"), BuildID: fmt.Sprint("build", n)}
}

// Several updates one after the other, each good or bad in its own way, on a device
// whose power fails again and again: a good one is taken, a bad one is undone with
// its data, and nothing of one attempt is felt by the next.
func TestPowerMayFailAtEveryStep(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &model{t: t, state: State{Format: format, Phase: Idle}, link: "build0", data: "build0",
			writable: rapid.Bool().Draw(t, "writable"), healthy: map[string]bool{}}
		runs := 0
		for n := 1; n <= rapid.IntRange(1, 4).Draw(t, "updates"); n++ {
			good := rapid.Bool().Draw(t, "good")
			m.tries, m.verdicts = 0, nil
			for range rapid.IntRange(0, 2).Draw(t, "stops") {
				m.verdicts = append(m.verdicts, Verdict{Kind: Stopped})
			}
			for range rapid.IntRange(0, maxCrashes-1).Draw(t, "crashes") {
				m.verdicts = append(m.verdicts, Verdict{Kind: Crashed, Reason: "exit code 78"})
			}
			if good {
				m.verdicts = append(m.verdicts, Verdict{Kind: Healthy})
			} else {
				m.verdicts = append(m.verdicts, Verdict{Kind: rapid.SampledFrom([]Kind{Unhealthy, Crashed}).Draw(t, "bad"), Reason: "it is so"})
			}
			next, from := build(n), build(runs)
			if m.state.Base == "" {
				m.state.Base = "build0"
			}
			m.state = m.state.staged(Attempt{Next: next, From: from,
				// What an attempt before may have left in the caller's hands.
				Starts: 7, Crashes: 2, Snapshot: "old", Reason: "old"})

			got := ""
			cuts := rapid.IntRange(0, 3).Draw(t, "cuts")
			for range 40 {
				m.cutIn = 0
				if cuts > 0 {
					cuts--
					m.cutIn = rapid.IntRange(1, 14).Draw(t, "cut")
				}
				if got = m.boot(); got != "" {
					break
				}
			}
			if good {
				runs = n
			}
			if want := build(runs).BuildID; got != want {
				t.Fatalf("update %d (good: %v): %q runs in the end, want %s; %+v", n, good, got, want, m.state)
			}
			if m.state.Phase != Idle || m.state.Attempt != nil || m.state.Last == nil || m.state.Last.OK != good || m.state.Last.Version != next.Name {
				t.Fatalf("update %d: %+v, last %+v", n, m.state, m.state.Last)
			}
			if good != m.healthy[next.BuildID] && good {
				t.Fatalf("update %d was taken and never healthy", n)
			}
		}
	})
}

// A device that is switched off again and again while an update is tried comes to
// an end too.
func TestStartsAreCounted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &model{t: t, link: "build0", data: "build0", healthy: map[string]bool{}, verdicts: []Verdict{{Kind: Healthy}}}
		m.state, m.saved = State{Base: "build0"}.staged(Attempt{Next: build(1), From: build(0)}).begun("x", Saved{}), "build0"
		for i := range maxStarts {
			m.cutIn = rapid.IntRange(3, 4).Draw(t, "cut") // after the start's note, around the new version's first write
			if got := m.boot(); got != "" {
				t.Fatalf("start %d: %s runs", i, got)
			}
		}
		m.cutIn = 0
		if got := m.boot(); got != "build0" || m.state.Last == nil || m.state.Last.OK {
			t.Fatalf("%s runs, %+v", got, m.state.Last)
		}
	})
}

func TestAnotherBinaryByHandCounts(t *testing.T) {
	v1, v2 := build(1), build(2)
	linked := State{Phase: Idle, Current: &v2, Previous: &v1, Base: "build0", Linked: true}
	unlinked := linked
	unlinked.Linked = false
	trying := unlinked.staged(Attempt{Next: build(3), From: v2}).begun("x", Saved{})
	for _, tc := range []struct {
		name string
		s    State
		self string
		want bool
	}{
		{"never updated", State{Phase: Idle}, "any", false},
		{"current", linked, "build2", false},
		{"the one before was installed again", linked, "build1", true},
		{"a new one was installed", linked, "build9", true},
		{"the installed place could not be changed", unlinked, "build0", false},
		{"something else at that place", unlinked, "build9", true},
		{"next", trying, "build3", false},
		{"from", trying, "build2", false},
		{"base", trying, "build0", false},
		{"installed while another is tried", trying, "build9", true},
	} {
		if got := tc.s.replaced(tc.self); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
	if s := (State{Generation: 4, Current: &v1, Phase: Trying}).reset(time.Time{}); s.Generation != 4 || s.Current != nil || s.Phase != Idle {
		t.Errorf("%+v, want nothing but the keys' generation", s)
	}
	if s := trying.reset(time.Time{}); s.Phase != Idle || s.Attempt != nil || s.Current != nil || s.Snapshot != "x" || s.Previous.buildID() != "build2" || s.Last.OK || !strings.Contains(s.Last.Reason, "versions/x") {
		t.Errorf("%+v, want the way back by hand: the data of before and the version that wrote them", s)
	}
}

// What cannot be read must not keep a device down.
func TestAnUnreadableStateIsNoReasonToStayDown(t *testing.T) {
	w := &failing{}
	if c, err := decide(t.Context(), w, "x", slog.New(slog.DiscardHandler)); err != nil || c.Run != nil || c.Exit {
		t.Errorf("%+v %v", c, err)
	}
}

type failing struct{ World }

var discard = slog.New(slog.DiscardHandler)

func (*failing) Load() (State, error) { return State{}, errors.New("garbage") }
