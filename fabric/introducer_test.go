package fabric

import (
	"slices"
	"testing"

	"rivulet/fabric/peer"
)

// TestAMemberIsIntroducedWhenItsDirectWayIsLost: the report does not change then.
func TestAMemberIsIntroducedWhenItsDirectWayIsLost(t *testing.T) {
	b, c := neighbour{ID: "b", Name: "b"}, neighbour{ID: "c", Name: "c"}
	var known []neighbour
	for _, step := range []struct {
		what      string
		told      []neighbour
		connected []peer.ID
		want      []neighbour
	}{
		{"b is found on the LAN", []neighbour{b, c}, []peer.ID{"b"}, []neighbour{c}},
		{"c is connected by the introduction, which stays", []neighbour{b, c}, []peer.ID{"b", "c"}, []neighbour{c}},
		{"the LAN is lost", []neighbour{b, c}, []peer.ID{"c"}, []neighbour{b, c}},
		{"c has left", []neighbour{b}, []peer.ID{"b"}, []neighbour{b}},
	} {
		known = due(step.told, known, func(id peer.ID) bool { return slices.Contains(step.connected, id) })
		if !slices.Equal(known, step.want) {
			t.Errorf("%s: %v, want %v", step.what, known, step.want)
		}
	}
}
