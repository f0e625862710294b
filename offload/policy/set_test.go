package policy

import (
	"log/slog"
	"testing"

	"k8s.io/client-go/kubernetes/fake"
)

// A watcher tells of a namespace when what it asks for has changed, and only then.
func TestOnlyChangesAreTold(t *testing.T) {
	w := New(fake.NewClientset(), slog.New(slog.DiscardHandler))
	changed, end := w.Changed()
	defer end()
	told := func() bool {
		select {
		case <-changed:
			return true
		default:
			return false
		}
	}
	told() // whatever a new subscription begins with
	off, remote, burst := Namespace{When: Off}, Namespace{When: Remote}, Namespace{When: Burst}
	for _, step := range []struct {
		name string
		now  Namespace
		want bool
	}{
		{"lab", off, false}, {"lab", remote, true}, {"lab", remote, false}, {"lab", burst, true}, {"exam", off, false}, {"lab", off, true}, {"lab", off, false},
	} {
		w.set(step.name, step.now, "")
		if got := told(); got != step.want {
			t.Errorf("%s becomes %v: told %v", step.name, step.now.When, got)
		}
	}
	if w.set("lab", off, "a") || !w.set("lab", off, "a") || w.set("lab", off, "b") || w.set("lab", off, "") || w.set("lab", off, "b") {
		t.Error("a warning is repeated for the same value, or missing for another")
	}
}
