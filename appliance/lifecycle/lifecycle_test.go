package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

var quiet = slog.New(slog.DiscardHandler)

type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) add(s string) { j.mu.Lock(); j.lines = append(j.lines, s); j.mu.Unlock() }

// A component that is ready at once and writes its starts and stops down.
func (j *journal) component(name string, needs ...string) Component {
	return Component{Name: name, Needs: needs, Run: func(ctx context.Context, s *Stage) error {
		j.add("+" + name)
		s.Ready()
		<-ctx.Done()
		j.add("-" + name)
		return nil
	}}
}

func waitReady(t *testing.T, m *Manager, name string) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	for {
		change := m.Changed()
		for _, s := range m.Status() {
			if s.Name == name && s.State == Ready {
				return
			}
		}
		select {
		case <-change:
		case <-deadline:
			t.Fatalf("%s did not become ready: %+v", name, m.Status())
		}
	}
}

func TestStartsInOrderAndStopsInReverse(t *testing.T) {
	var j journal
	m, err := New(quiet, j.component("a"), j.component("b", "a"), j.component("c", "b"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	end := make(chan struct{})
	go func() { m.Run(ctx); close(end) }()
	waitReady(t, m, "c")
	cancel()
	<-end
	if want := []string{"+a", "+b", "+c", "-c", "-b", "-a"}; !slices.Equal(j.lines, want) {
		t.Fatalf("order %v, want %v", j.lines, want)
	}
}

func TestFailureIsShownAndStartedAgainWhileOthersRun(t *testing.T) {
	var j journal
	fails := 2
	flaky := Component{Name: "flaky", Run: func(ctx context.Context, s *Stage) error {
		if fails > 0 {
			fails--
			return errors.New("port taken; free it")
		}
		s.Ready()
		<-ctx.Done()
		return nil
	}}
	m, err := New(quiet, j.component("steady"), flaky, j.component("after", "flaky"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go m.Run(ctx)
	waitReady(t, m, "steady")
	sawCure := false
	deadline := time.After(10 * time.Second)
	for m.Status()[2].State != Ready {
		change := m.Changed()
		s := m.Status()[1]
		sawCure = sawCure || s.State == Failed && strings.Contains(s.Detail, "free it")
		select {
		case <-change:
		case <-deadline:
			t.Fatalf("never ready: %+v", m.Status())
		}
	}
	if st := m.Status()[1]; !sawCure || st.Starts != 3 {
		t.Fatalf("sawCure=%v, status %+v; want the error shown and three starts", sawCure, st)
	}
	if st := m.Status()[0]; st.Starts != 1 {
		t.Fatalf("the steady component was started %d times", st.Starts)
	}
}

func TestNeedsMustComeEarlier(t *testing.T) {
	var j journal
	if _, err := New(quiet, j.component("a", "b"), j.component("b")); err == nil {
		t.Fatal("a need that is started later was accepted")
	}
	if _, err := New(quiet, j.component("a"), j.component("a")); err == nil {
		t.Fatal("two components of one name were accepted")
	}
}

// While another program has the port nothing is logged twice and the pause does
// not grow: the component is back soon after the port is free.
func TestATakenPortIsTriedSteadilyAndLoggedOnce(t *testing.T) {
	var log strings.Builder
	tries := 0
	c := Component{Name: "c", Run: func(ctx context.Context, s *Stage) error {
		if tries++; tries < 4 {
			return fmt.Errorf("port 53 is taken: %w", syscall.EADDRINUSE)
		}
		s.Ready()
		<-ctx.Done()
		return nil
	}}
	m, err := New(slog.New(slog.NewTextHandler(&log, nil)), c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	end := make(chan struct{})
	started := time.Now()
	go func() { m.Run(ctx); close(end) }()
	waitReady(t, m, "c")
	cancel()
	<-end
	if took := time.Since(started); took > 4*backoffTaken {
		t.Errorf("ready after %s, want about three times %s", took, backoffTaken)
	}
	if n := strings.Count(log.String(), "component failed"); n != 1 {
		t.Errorf("logged %d times, want once:\n%s", n, log.String())
	}
}

// A need that fails later leaves those that need it running; one of them that has
// to be started again waits for it.
func TestNeedsThatFailLater(t *testing.T) {
	var j journal
	fail, failed := make(chan struct{}), make(chan struct{})
	engine := Component{Name: "engine", Run: func(ctx context.Context, s *Stage) error {
		select {
		case <-failed: // the second time it waits
			s.Waiting("for a port")
			<-ctx.Done()
			return nil
		default:
		}
		s.Ready()
		<-fail
		close(failed)
		return errors.New("ended; look at its log")
	}}
	end := make(chan struct{})
	restarted := Component{Name: "restarted", Needs: []string{"engine"}, Run: func(ctx context.Context, s *Stage) error {
		j.add("+restarted")
		s.Ready()
		select {
		case <-end:
			return errors.New("broke; mend it")
		case <-ctx.Done():
			return nil
		}
	}}
	m, err := New(quiet, engine, j.component("stays", "engine"), restarted)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { m.Run(ctx); close(done) }()
	waitReady(t, m, "stays")
	waitReady(t, m, "restarted")
	close(fail)
	waitState(t, m, "engine", Starting, "for a port")
	if st := m.Status()[1]; st.State != Ready || st.Starts != 1 {
		t.Errorf("what needs it: %+v, want untouched", st)
	}
	close(end)
	waitState(t, m, "restarted", Waiting, "for engine")
	cancel()
	<-done
	j.mu.Lock()
	defer j.mu.Unlock()
	if n := strings.Count(strings.Join(j.lines, " "), "+restarted"); n != 1 {
		t.Errorf("started %d times without its need", n)
	}
}

// Every order of stopping is the reverse of the list, whatever needs what, and
// one that does not stop does not keep the others.
func TestStoppingIsOneAtATime(t *testing.T) {
	var j journal
	stuck := Component{Name: "stuck", Run: func(_ context.Context, s *Stage) error { s.Ready(); select {} }}
	m, err := New(quiet, j.component("a"), j.component("b"), stuck, j.component("c", "a"), j.component("d"))
	if err != nil {
		t.Fatal(err)
	}
	m.grace = 50 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	end := make(chan struct{})
	go func() { m.Run(ctx); close(end) }()
	for _, name := range []string{"a", "b", "stuck", "c", "d"} {
		waitReady(t, m, name)
	}
	cancel()
	<-end
	j.mu.Lock()
	defer j.mu.Unlock()
	if got, want := strings.Join(j.lines[4:], " "), "-d -c -b -a"; got != want {
		t.Errorf("stopped in the order %s, want %s", got, want)
	}
}

// Times to the first Ready are of the process and of the kernel, and stay.
func TestTimesToReady(t *testing.T) {
	ready := make(chan struct{})
	c := Component{Name: "c", Run: func(ctx context.Context, s *Stage) error {
		s.Ready()
		s.Waiting("for a moment")
		<-ready
		s.Ready()
		<-ctx.Done()
		return nil
	}}
	m, err := New(quiet, c)
	if err != nil {
		t.Fatal(err)
	}
	process, boot := 3*time.Second, 40*time.Second
	m.uptime = func() (time.Duration, time.Duration) {
		defer func() { process, boot = time.Hour, time.Hour }()
		return process, boot
	}
	ctx, cancel := context.WithCancel(t.Context())
	end := make(chan struct{})
	go func() { m.Run(ctx); close(end) }()
	waitState(t, m, "c", Starting, "for a moment")
	close(ready)
	waitReady(t, m, "c")
	cancel()
	<-end
	if st := m.Status()[0]; st.Took != 3*time.Second || st.SinceBoot != 40*time.Second {
		t.Errorf("%+v, want the times of the first Ready", st)
	}
	p, b := Uptime()
	if p <= 0 || b < p {
		t.Errorf("this process runs for %s, the kernel for %s", p, b)
	}
}

func waitState(t *testing.T, m *Manager, name string, state State, detail string) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	for {
		change := m.Changed()
		for _, s := range m.Status() {
			if s.Name == name && s.State == state && s.Detail == detail {
				return
			}
		}
		select {
		case <-change:
		case <-deadline:
			t.Fatalf("%s is not %s (%s): %+v", name, state, detail, m.Status())
		}
	}
}
