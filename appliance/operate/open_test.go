package operate

import (
	"strings"
	"testing"

	"rivulet/fabric/peer"
)

// A name that several peers have, or somebody who is none, opens nothing.
func TestOpenTo(t *testing.T) {
	a, b, c := peer.ID(strings.Repeat("a", 32)), peer.ID(strings.Repeat("b", 32)), peer.ID(strings.Repeat("c", 32))
	view := func(id peer.ID, name string, state peer.State) peer.View {
		return peer.View{State: state, Record: peer.Record{ID: id, Name: name}}
	}
	all := []peer.View{view(a, "lab", peer.Connected), view(b, "lab", peer.Lost), view(c, "desk", peer.Connected), view("x", "stranger", peer.Discovered)}
	for named, want := range map[string]string{"lab": "", "stranger": "", "nobody": "", "desk": string(c), string(a): string(a)} {
		if got, err := openTo(all, named); got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v", named, got, err)
		}
	}
}
