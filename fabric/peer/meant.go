package peer

import "strings"

// shortestPrefix is the shortest part of an ID that identifies a cluster, characters.
const shortestPrefix = 4

// Meant are those of all that a typed word identifies: the one with that ID, otherwise those with that name in any
// case, or with an ID that begins with it. Names are all names of one, and its addresses where these count.
func Meant[T any](all []T, word string, names func(T) (id ID, names []string)) (found []T) {
	for _, one := range all {
		id, has := names(one)
		if string(id) == word {
			return []T{one}
		}
		means := len(word) >= shortestPrefix && strings.HasPrefix(string(id), word)
		for _, name := range has {
			means = means || name != "" && strings.EqualFold(name, word)
		}
		if means {
			found = append(found, one)
		}
	}
	return found
}

// MeantViews is Meant of views, by name and ID.
func MeantViews(all []View, word string) []View {
	return Meant(all, word, func(v View) (ID, []string) { return v.ID, []string{v.Name} })
}
