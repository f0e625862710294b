package config

import (
	"maps"
	"slices"
	"strings"
	"unicode"

	"rivulet/fabric/cure"

	"go.yaml.in/yaml/v3"
)

// variables is the prefix of Rivulet's environment variables.
const variables = "RIVULET_"

// Variable is the environment variable that sets a key: of trust.secretFile RIVULET_TRUST_SECRET_FILE.
func Variable(key string) string {
	var b strings.Builder
	for i, r := range key {
		if r == '.' || unicode.IsUpper(r) && key[i-1] != '.' && !unicode.IsUpper(rune(key[i-1])) {
			b.WriteByte('_')
		}
		if r != '.' {
			b.WriteRune(unicode.ToUpper(r))
		}
	}
	return variables + b.String()
}

// Environment returns overrides by variables, by key; an empty one is ignored. A variable with the prefix that is
// neither a key's nor in others is an error, because its setting would be lost.
func Environment(environ, others []string) (map[string]string, error) {
	known := map[string]string{}
	for _, k := range Keys {
		known[Variable(k)] = k
	}
	out := map[string]string{}
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		if !strings.HasPrefix(name, variables) || value == "" || slices.Contains(others, name) {
			continue
		}
		key, ok := known[name]
		if !ok {
			help := "remove it; the reference of the configuration has all names"
			if near := Nearest(name, slices.Sorted(maps.Keys(known))); near != "" {
				help = "did you mean " + near + "?"
			}
			return nil, cure.Errorf("the environment has %s, which nothing reads; %s", name, help)
		}
		out[key] = value
	}
	return out, nil
}

// overlay adds overrides by variables to the document; root may be nil.
func (d *decoder) overlay(root *yaml.Node) *yaml.Node {
	for _, key := range slices.Sorted(maps.Keys(d.Env)) {
		name, text := Variable(key), d.Env[key]
		if _, list := Table[slices.Index(Keys, key)].to(&Config{}).(*[]string); list && !strings.HasPrefix(strings.TrimSpace(text), "[") {
			text = "[" + text + "]"
		}
		value, problems := document("$"+name, []byte(text))
		for _, p := range problems {
			p.Line, p.Column = 0, 0
			d.out.Problems = append(d.out.Problems, p)
		}
		if value == nil || len(problems) > 0 {
			continue
		}
		d.from(value, name)
		if root == nil {
			root = &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
		}
		at, words := root, strings.Split(key, ".")
		for _, group := range words[:len(words)-1] {
			at = child(at, group, &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}, false)
		}
		child(at, words[len(words)-1], value, true)
	}
	return root
}

// child returns the value of a key in a mapping; made is inserted if it is missing or empty, or with over replaces it.
// In anything but a mapping, which is a mistake by itself, made has no effect.
func child(n *yaml.Node, key string, made *yaml.Node, over bool) *yaml.Node {
	i := index(n, key)
	switch {
	case n.Kind != yaml.MappingNode:
		return made
	case i < 0:
		n.Content = append(n.Content, word(key), made)
		return made
	case over || isNull(n.Content[i+1]):
		n.Content[i+1] = made
	}
	return n.Content[i+1]
}

// from records the variable of a value. A word that YAML parses as a number counts as text there: users do not quote
// twice.
func (d *decoder) from(n *yaml.Node, name string) {
	if d.variable == nil {
		d.variable = map[*yaml.Node]string{}
	}
	d.variable[n] = name
	for _, c := range n.Content {
		d.from(c, name)
	}
}
