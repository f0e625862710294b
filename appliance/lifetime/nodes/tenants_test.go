package nodes

import (
	"testing"
	"time"

	"rivulet/fabric/peer"
	"rivulet/offload/policy"
)

// Pods of other clusters are scheduled on a worker as long as it has what the server knows of them, and a restart of the
// server changes nothing.
func TestAWorkerThatIsolates(t *testing.T) {
	s := &server{Device: New(&Device{}), begun: time.Now()}
	const id peer.ID = "w"
	if got := s.label(id); got != "" {
		t.Errorf("a server that has just started changes the label to %q", got)
	}
	changed, stop := s.polled.Changed()
	defer stop()
	s.isolates(id)
	select {
	case <-changed:
	default:
		t.Error("nothing is told of a worker that isolates")
	}
	if got := s.label(id); got != policy.WorkerIsolates {
		t.Errorf("%q, want %q", got, policy.WorkerIsolates)
	}
	s.seen[id] = time.Now().Add(-isolating - time.Second)
	if got := s.label(id); got != policy.WorkerPlain {
		t.Errorf("silent for long: %q, want %q", got, policy.WorkerPlain)
	}
	s.begun = time.Now().Add(-isolating - time.Second)
	if got := s.label("another"); got != policy.WorkerPlain {
		t.Errorf("never heard: %q, want %q", got, policy.WorkerPlain)
	}
}
