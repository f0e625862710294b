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

// Distinct are the found ones of all, each by as much of its ID as means it alone: a name may be the beginning of an ID.
func Distinct[T any](found, all []T, names func(T) (id ID, names []string)) (out []string) {
	for _, one := range found {
		id, _ := names(one)
		n := min(len(id.Short()), len(id))
		for n < len(id) && len(Meant(all, string(id[:n]), names)) > 1 {
			n++
		}
		out = append(out, string(id[:n]))
	}
	return out
}

// MeantViews is Meant of views, by name and ID.
func MeantViews(all []View, word string) []View {
	return Meant(all, word, func(v View) (ID, []string) { return v.ID, []string{v.Name} })
}
