package peer

import (
	"strings"
	"testing"
)

func TestMeant(t *testing.T) {
	var all []View
	for _, r := range []Record{{ID: "aaaabbbb", Name: "lab"}, {ID: "aaaacccc", Name: "Shop"}, {ID: "dddd", Name: "aaaabbbb"}, {ID: "eeee"}, {ID: "ffff", Name: "shop"}} {
		all = append(all, View{Record: r})
	}
	for word, want := range map[string]string{
		"lab": "aaaabbbb", "LAB": "aaaabbbb", "shop": "aaaacccc ffff", "aaaa": "aaaabbbb aaaacccc", "aaaab": "aaaabbbb", "aaa": "", "": "", "none": "",
		"aaaabbbb": "aaaabbbb", // an ID counts more than a name, which anybody can have
	} {
		var got []string
		for _, v := range MeantViews(all, word) {
			got = append(got, string(v.ID))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q: %q, want %q", word, got, want)
		}
	}
}
