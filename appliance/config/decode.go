package config

import (
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Options are those of a check.
type Options struct {
	// File is the name in problems.
	File string
	// Mode has the file's permissions; 0 is unknown.
	Mode fs.FileMode
	// Host bounds what can be reserved; the zero value does not.
	Host Host
	// Files also reads the named files.
	Files bool
	// Env has overrides by environment variables, by key (Environment).
	Env map[string]string
}

// Host has the device's limits for values.
type Host struct {
	CPUs        int
	MemoryBytes uint64
}

// Origin is the source of a value.
type Origin struct {
	// Kind is file, environment, flag, cluster (Source.Cluster) or default.
	Kind string `json:"kind"`
	// Name is file:line:column, the variable or the flag.
	Name string `json:"name,omitempty"`
}

// String is the origin in the form of `config show --origin`.
func (o Origin) String() string {
	if o.Name == "" {
		return o.Kind
	}
	return o.Kind + " " + o.Name
}

// Parsed is the content of a text.
type Parsed struct {
	Config Config
	// Origins has the keys that the text sets, for example share.cpu.
	Origins map[string]Origin
	// Problems make the text unusable, Warnings do not.
	Problems, Warnings Problems
}

// Parse reads and checks a text. It finds all problems, not only the first.
func Parse(data []byte, o Options) Parsed {
	d := &decoder{Options: o, out: Parsed{Origins: map[string]Origin{}}}
	root, problems := document(o.File, data)
	d.out.Problems = problems
	if len(problems) == 0 {
		root = d.overlay(root)
	}
	if root != nil && len(d.out.Problems) == 0 {
		d.config(root)
	}
	d.out.Problems.sort()
	d.out.Warnings.sort()
	return d.out
}

type decoder struct {
	Options
	out Parsed
	// card is set for the file on the boot partition, which has more keys.
	card *Card
	// variable is the environment variable of a value.
	variable map[*yaml.Node]string
}

func (d *decoder) problem(n *yaml.Node, key, cure, text string, args ...any) {
	d.out.Problems = append(d.out.Problems, d.at(n, key, cure, text, args...))
}

func (d *decoder) warn(n *yaml.Node, key, cure, text string, args ...any) {
	d.out.Warnings = append(d.out.Warnings, d.at(n, key, cure, text, args...))
}

func (d *decoder) at(n *yaml.Node, key, cure, text string, args ...any) Problem {
	if name := d.variable[n]; name != "" {
		return Problem{File: "$" + name, Key: key, Text: fmt.Sprintf(text, args...), Cure: cure}
	}
	return Problem{File: d.File, Line: max(n.Line, 1), Column: max(n.Column, 1), Key: key, Text: fmt.Sprintf(text, args...), Cure: cure}
}

// form is the condition on a value; its zero value has none.
type form struct {
	// check and fits refuse a text with an error that has a cure.
	check func(string) error
	fits  func(string, Host) error
	// example is a correct list, or amount: a text that may be a bare number.
	example     string
	least, most int64 // of a number
}

// field is one key of a group: the destination of its value, and its form. to is a pointer to a value of one of the
// types below, or a func(*yaml.Node) that reads the value itself.
type field struct {
	key string
	to  any
	form
}

// value reads the value of a key.
func (d *decoder) value(n *yaml.Node, path string, f field) {
	switch to := f.to.(type) {
	case func(*yaml.Node):
		to(n)
	case *string:
		d.word(n, path, f.form, func(s string) { *to = s })
	case *Percent:
		d.word(n, path, f.form, func(s string) { *to = Percent(s) })
	case *Secret:
		d.word(n, path, form{example: f.example}, func(s string) {
			*to = Secret(s) // a refused one must stay secret, too
			if !d.card.moved(n) {
				d.accept(n, path, s, f.form, func() {})
			}
		})
	case *[]string:
		d.list(n, path, f.example, func(i int, n *yaml.Node) {
			d.text(n, fmt.Sprintf("%s[%d]", path, i), func(s string) {
				d.accept(n, path, s, f.form, func() { *to = append(*to, s) })
			})
		})
	case *bool:
		d.truth(n, path, func(v bool) { *to = v })
	case **bool:
		d.truth(n, path, func(v bool) { *to = &v })
	case *int64:
		d.number(n, path, f.least, f.most, func(v int64) { *to = v })
	case **int64:
		d.number(n, path, f.least, f.most, func(v int64) { *to = &v })
	case *map[string]Mirror:
		registries(d, n, path, `docker.io: {endpoint: ["https://mirror.example"]}`, to, d.mirror)
	case *map[string]Registry:
		registries(d, n, path, "mirror.example: {auth: {username: x, password: y}}", to, d.registry)
	case *[]Burst:
		d.burst(n, path, to)
	default:
		panic(fmt.Sprintf("config: %s is %T, which nothing reads", path, to))
	}
}

// word reads a text, or, if the form has an example, an amount.
func (d *decoder) word(n *yaml.Node, path string, f form, set func(string)) {
	accept := func(s string) { d.accept(n, path, s, f, func() { set(s) }) }
	if f.example != "" {
		d.amount(n, path, f.example, accept)
		return
	}
	d.text(n, path, accept)
}

// accept takes a text that has the form.
func (d *decoder) accept(n *yaml.Node, path, s string, f form, take func()) {
	var err error
	if f.check != nil {
		err = f.check(s)
	} else if f.fits != nil {
		err = f.fits(s, d.Host)
	}
	if err != nil {
		d.reject(n, path, err)
		return
	}
	take()
}

// group reads a mapping; path "" is the whole file. example shows the correct form.
func (d *decoder) group(n *yaml.Node, path, example string, fields ...field) {
	var names []string
	for _, f := range fields {
		names = append(names, f.key)
	}
	d.pairs(n, path, example, func(key, value *yaml.Node) {
		for _, f := range fields {
			if f.key == key.Value {
				d.value(value, join(path, f.key), f)
				return
			}
		}
		d.problem(key, join(path, key.Value), unknownCure(path, key.Value, names), "unknown key %.60q", key.Value)
	})
}

// pairs reads a mapping with any keys, each of them once.
func (d *decoder) pairs(n *yaml.Node, path, example string, read func(key, value *yaml.Node)) {
	if isNull(n) {
		return // all of its keys are commented out
	}
	where := path
	if where == "" {
		where = "the file"
	}
	if n.Kind == yaml.ScalarNode && strings.Contains(n.Value, ":") {
		d.problem(n, path, "write a space after the colon", "%s is a text, not keys with values", where)
		return
	}
	if n.Kind != yaml.MappingNode {
		d.problem(n, path, "write "+example, "%s is %s, not keys with values", where, kind(n))
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind != yaml.ScalarNode {
			d.problem(key, path, "write "+example, "a key of %s is %s, not a word", where, kind(key))
			continue
		}
		if first, ok := seen[key.Value]; ok {
			d.problem(key, join(path, key.Value), "remove one of them", "%.60q is here a second time, first in line %d", key.Value, first)
			continue
		}
		seen[key.Value] = key.Line
		read(key, value)
	}
}

// list reads a sequence.
func (d *decoder) list(n *yaml.Node, path, example string, read func(i int, n *yaml.Node)) {
	if isNull(n) {
		return
	}
	if n.Kind != yaml.SequenceNode {
		d.problem(n, path, "write "+example, "%s is %s, not a list", path, kind(n))
		return
	}
	d.found(n, path)
	for i, item := range n.Content {
		read(i, item)
	}
}

// text reads a string; what YAML parses as another type has to be in quotes.
func (d *decoder) text(n *yaml.Node, path string, set func(string)) {
	switch {
	case n.Kind != yaml.ScalarNode || isNull(n):
		d.problem(n, path, "write a text, or remove the line", "%s is %s, not a text", path, kind(n))
	case n.ShortTag() != "!!str" && d.variable[n] == "":
		d.problem(n, path, "put it in quotes", "%s is %s, not a text", path, kind(n))
	case n.Value == "":
		d.problem(n, path, "write a text, or remove the line", "%s is empty", path)
	case strings.ContainsAny(n.Value, "\x00\n\r"):
		d.problem(n, path, "write it on one line", "%s has several lines", path)
	default:
		d.found(n, path)
		set(n.Value)
	}
}

// amount reads a text or a bare number: 50%, 500m, 2.
func (d *decoder) amount(n *yaml.Node, path, example string, set func(string)) {
	switch tag := n.ShortTag(); {
	case n.Kind == yaml.ScalarNode && (tag == "!!str" || tag == "!!int" || tag == "!!float") && n.Value != "":
		d.found(n, path)
		set(n.Value)
	default:
		d.problem(n, path, "write for example "+example, "%s is %s, not an amount", path, kind(n))
	}
}

// number reads a whole number.
func (d *decoder) number(n *yaml.Node, path string, least, most int64, set func(int64)) {
	v, err := strconv.ParseInt(n.Value, 10, 64)
	switch {
	case n.Kind != yaml.ScalarNode || n.ShortTag() != "!!int":
		d.problem(n, path, "write a whole number without quotes", "%s is %s, not a number", path, kind(n))
	case err != nil || v < least || v > most:
		d.problem(n, path, fmt.Sprintf("write a whole number from %d to %d", least, most), "%s is %.30s", path, n.Value)
	default:
		d.found(n, path)
		set(v)
	}
}

func (d *decoder) truth(n *yaml.Node, path string, set func(bool)) {
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!bool" {
		d.problem(n, path, "write true or false", "%s is %s", path, kind(n))
		return
	}
	d.found(n, path)
	set(strings.EqualFold(n.Value, "true"))
}

func (d *decoder) found(n *yaml.Node, path string) {
	if name := d.variable[n]; name != "" {
		d.out.Origins[path] = Origin{Kind: "environment", Name: name}
		return
	}
	d.out.Origins[path] = Origin{Kind: "file", Name: d.at(n, "", "", "").Place()}
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// kind is the kind of a node without its value, which may be secret.
func kind(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a group of keys"
	case yaml.SequenceNode:
		return "a list"
	}
	switch n.ShortTag() {
	case "!!null":
		return "empty"
	case "!!bool":
		return "true or false"
	case "!!int", "!!float":
		return "a number"
	case "!!timestamp":
		return "a date"
	}
	return "a text"
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
