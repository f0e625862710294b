package cli

import (
	"strings"
	"testing"
	"time"
)

// note is what was written, and tells of the first write.
type note struct {
	strings.Builder
	wrote chan struct{}
}

func (n *note) Write(p []byte) (int, error) {
	select {
	case n.wrote <- struct{}{}:
	default:
	}
	return n.Builder.Write(p)
}

// A line is shown while something takes long, and is empty again after that.
func TestSpin(t *testing.T) {
	out, stop, done := &note{wrote: make(chan struct{}, 1)}, make(chan struct{}), make(chan struct{})
	go func() { defer close(done); spin(out, "asking b", time.Millisecond, stop) }()
	select {
	case <-out.wrote:
	case <-time.After(10 * time.Second):
		t.Fatal("nothing is shown")
	}
	close(stop)
	<-done
	text := out.String()
	if !strings.HasPrefix(text, "\rasking b: 0s ") || !strings.HasSuffix(text, "\r"+strings.Repeat(" ", len("asking b: 0s "))+"\r") || strings.Contains(text, "\033") {
		t.Errorf("%q", text)
	}

	quick, ended := &note{wrote: make(chan struct{}, 1)}, make(chan struct{})
	close(ended)
	if spin(quick, "asking b", time.Hour, ended); quick.Len() > 0 {
		t.Errorf("what is done at once shows %q", quick.String())
	}
}
