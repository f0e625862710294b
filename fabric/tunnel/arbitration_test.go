package tunnel

import (
	"fmt"
	"testing"
	"time"

	"rivulet/test/harness/await"
	"rivulet/test/harness/race"
)

// arbitrationWindow is that of wgdev, which tells handshakes that cross by it.
const arbitrationWindow = 250 * time.Millisecond

// Two ends that come up in the same moment talk at once, not after WireGuard's next
// try in five seconds. Handshakes that cross are told by a window of time, so the
// machine must not be so busy that a message takes longer than that.
func TestBothEndsBeginAtOnce(t *testing.T) {
	t.Parallel()
	for i := range 6 {
		t.Run(fmt.Sprint(i), func(t *testing.T) { t.Parallel(); promptly(t, beginAtOnce) })
	}
}

// The first handshake of the end that is configured first is ignored by the other. It is not the reason for another five
// seconds, however soon the other is configured.
func TestOneEndBeginsTooEarly(t *testing.T) {
	t.Parallel()
	for i := range 8 {
		t.Run(fmt.Sprint(i), func(t *testing.T) { t.Parallel(); promptly(t, beginTooEarly) })
	}
}

// promptly fails if the first connection takes as long as WireGuard's second try.
func promptly(t *testing.T, first func(*testing.T) time.Duration) {
	for range 5 {
		late := lateness()
		took := first(t)
		switch was := late(); {
		case took <= 4*time.Second:
			return
		case race.Enabled: // the detector makes a handshake longer than the window
			t.Logf("not judged: the first connection took %v, under the race detector", took)
			return
		case was < arbitrationWindow/4:
			t.Fatalf("the first connection took %v", took)
		default:
			t.Logf("not judged: the first connection took %v, on a machine that lets one wait for %v", took, was)
		}
	}
	t.Skip("the machine is too busy to tell")
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

func beginTooEarly(t *testing.T) time.Duration {
	w := newWorld(t)
	alone := w.b.want
	alone.Peers = nil
	answer(w.a.pod.listen(":80"))
	answer(w.b.pod.listen(":80"))
	for d, want := range map[*board]Config{w.b: alone, w.a: w.a.want} {
		if err := d.Apply(t.Context(), want); err != nil {
			t.Fatal(err)
		}
	}
	ends := make(chan error, 2)
	dial := func(from *room, to string) {
		c, err := from.dial("tcp4", to, reachLimit)
		if err == nil {
			c.Close()
		}
		ends <- err
	}
	go dial(w.a.pod, "10.200.0.7:80")
	await.True(t, 5*time.Second, "a has begun", func() bool {
		st, err := w.a.Status(t.Context())
		return err == nil && len(st.Peers) == 1 && st.Peers[0].Sent > 0
	})
	if err := w.b.Apply(t.Context(), w.b.want); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	go dial(w.b.pod, "10.201.0.5:80")
	for range 2 {
		if err := <-ends; err != nil {
			t.Fatal(err)
		}
	}
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
