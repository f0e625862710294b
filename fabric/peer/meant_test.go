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

// Each is told by a word that means it alone, also if another one has that word as its name.
func TestDistinct(t *testing.T) {
	var all []View
	for _, r := range []Record{
		{ID: "aaaaaaaabbbbcccc", Name: "lab"}, {ID: "aaaaaaaabbbbdddd", Name: "lab"}, {ID: "eeeeeeeeeeee", Name: "lab"}, {ID: "ffff", Name: "lab"},
		{ID: "gggggggg", Name: "aaaaaaaabbbbc"}, {ID: "hhhhhhhh", Name: "EEEEEEEE"},
	} {
		all = append(all, View{Record: r})
	}
	names := func(v View) (ID, []string) { return v.ID, []string{v.Name} }
	got := Distinct(MeantViews(all, "lab"), all, names)
	if want := "aaaaaaaabbbbcc aaaaaaaabbbbd eeeeeeeee ffff"; strings.Join(got, " ") != want {
		t.Errorf("%q, want %q", got, want)
	}
	for i, word := range got {
		if found := MeantViews(all, word); len(found) != 1 || found[0].ID != all[i].ID {
			t.Errorf("%s means %+v", word, found)
		}
	}
}
