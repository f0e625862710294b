package appliance

import (
	"log/slog"
	"slices"
	"testing"

	"rivulet/appliance/lifecycle"
	"rivulet/appliance/lifetime/nodes"
	"rivulet/appliance/lifetime/nodes/standby"
)

// A name that is misspelt would be waited for by nobody, or for ever.
func TestComponentsNeedEachOther(t *testing.T) {
	of := func(role nodes.Role) []lifecycle.Component {
		all := (&System{worker: role, nodes: nodes.New(&nodes.Device{})}).components()
		if _, err := lifecycle.New(slog.New(slog.DiscardHandler), all...); err != nil {
			t.Errorf("%+v: %v", role, err)
		}
		return all
	}
	for _, role := range []nodes.Role{
		{}, {Serving: &standby.Gateway{}}, {Joined: &nodes.Joined{}}, {Joined: &nodes.Joined{}, Copy: &standby.Copy{}}, {Joined: &nodes.Joined{Removed: true}},
	} {
		// An empty cluster with a new key, while its data cannot be used, would be taken for another one.
		waits := map[string]bool{"data": true}
		for _, c := range of(role) { // each comes after what it needs
			waits[c.Name] = waits[c.Name] || slices.ContainsFunc(c.Needs, func(need string) bool { return waits[need] })
			if slices.Contains([]string{"bundle", "rules", "tunnel", "engine", "fabric", "dns", "vclusters", nodes.Component}, c.Name) && !waits[c.Name] {
				t.Errorf("%+v: %s does not wait for the data", role, c.Name)
			}
		}
	}
	// k3s's agent fetches certificates of a year at its start only.
	renews := func(c lifecycle.Component) bool { return c.Name == "certificates" }
	if !slices.ContainsFunc(of(nodes.Role{Joined: &nodes.Joined{}}), renews) || slices.ContainsFunc(of(nodes.Role{Joined: &nodes.Joined{Removed: true}}), renews) {
		t.Error("certificates of a worker are not renewed, or those of a removed one are")
	}
	all := of(nodes.Role{})
	for _, name := range needed {
		if !slices.ContainsFunc(all, func(c lifecycle.Component) bool { return c.Name == name && c.Run != nil }) {
			t.Errorf("%s is needed, and no component", name)
		}
	}
}
