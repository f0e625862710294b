package appliance

import (
	"log/slog"
	"slices"
	"testing"

	"rivulet/appliance/lifecycle"
	"rivulet/appliance/lifetime/nodes"
)

// A name that is misspelt would be waited for by nobody, or for ever.
func TestComponentsNeedEachOther(t *testing.T) {
	all := (&System{nodes: nodes.New(&nodes.Device{})}).components()
	if _, err := lifecycle.New(slog.New(slog.DiscardHandler), all...); err != nil {
		t.Error(err)
	}
	for _, name := range needed {
		if !slices.ContainsFunc(all, func(c lifecycle.Component) bool { return c.Name == name && c.Run != nil }) {
			t.Errorf("%s is needed, and no component", name)
		}
	}
}
