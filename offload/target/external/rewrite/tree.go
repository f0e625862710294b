package rewrite

import "strings"

// tree is a JSON object. Objects are not decoded into Go types: fields that this version does not have must not be
// lost.
type tree = map[string]any

// at returns the object under the path, nil if there is none.
func at(o tree, path ...string) tree {
	for _, key := range path {
		next, ok := o[key].(tree)
		if !ok {
			return nil
		}
		o = next
	}
	return o
}

// need is at, and makes missing objects.
func need(o tree, path ...string) tree {
	for _, key := range path {
		next, ok := o[key].(tree)
		if !ok {
			next = tree{}
			o[key] = next
		}
		o = next
	}
	return o
}

func text(o tree, key string) string {
	s, _ := o[key].(string)
	return s
}

// each calls f for every object of the list under key.
func each(o tree, key string, f func(tree)) {
	list, _ := o[key].([]any)
	for _, item := range list {
		if t, ok := item.(tree); ok {
			f(t)
		}
	}
}

// every calls f with all objects of the dotted path; a list in it means each of its elements.
func every(o tree, path string, f func(tree)) {
	head, rest, more := strings.Cut(path, ".")
	visit := func(next tree) {
		if more {
			every(next, rest, f)
		} else {
			f(next)
		}
	}
	switch v := o[head].(type) {
	case tree:
		visit(v)
	case []any:
		for _, item := range v {
			if t, ok := item.(tree); ok {
				visit(t)
			}
		}
	}
}
