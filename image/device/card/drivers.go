package card

import (
	"path"
	"regexp"
	"strings"

	"rivulet/image/device/tree"
)

// alias is how a module declares its devices, by a string of compatible.
var alias = regexp.MustCompile(`^of:N\*T\*C(.+?)(C\*)?$`)

// drivers are the strings of compatible for which a kernel with this initrd has drivers: in the initrd's modules, and
// built in. Without an initrd the drivers are unknown: nil.
func drivers(initrd map[string][]byte) map[string]bool {
	if initrd == nil {
		return nil
	}
	known := map[string]bool{}
	add := func(text string) {
		if m := alias.FindStringSubmatch(text); m != nil {
			known[m[1]] = true
		}
	}
	for name, raw := range initrd {
		switch path.Base(name) {
		case "modules.alias": // alias of:… module
			for line := range strings.Lines(string(raw)) {
				if w := strings.Fields(line); len(w) == 3 {
					add(w[1])
				}
			}
		case "modules.builtin.modinfo": // module.alias=of:…, ended by zeros
			for entry := range strings.SplitSeq(string(raw), "\x00") {
				if _, text, is := strings.Cut(entry, ".alias="); is {
					add(text)
				}
			}
		}
	}
	return known
}

// reach checks that the initrd has drivers for a board's cards and chips, and for all devices that these depend on:
// supplies, pins, and the lines that switch them. If one is missing, the kernel waits for ever and logs nothing.
func (p *problems) reach(name string, n *tree.Node, known map[string]bool) {
	if known == nil {
		return
	}
	device := map[uint32]*tree.Node{} // by handle: the device that a node belongs to
	var storage []*tree.Node
	var walk func(n, of *tree.Node)
	walk = func(n, of *tree.Node) {
		if n.Has("compatible") {
			of = n
		}
		if h := n.Handle(); h != 0 {
			device[h] = of
		}
		if s := n.Text("status"); strings.HasPrefix(n.Name, "mmc@") && (s == "" || s == "okay") {
			storage = append(storage, n)
		}
		for _, k := range n.Nodes {
			walk(k, of)
		}
	}
	walk(n, n)
	seen := map[*tree.Node]bool{}
	var need func(n *tree.Node)
	need = func(n *tree.Node) {
		if n == nil || seen[n] {
			return
		}
		seen[n] = true
		if !n.Is(known) {
			p.add("%s: the initrd has no driver for %s (%s), which the storage needs; image/device/files/initrd/modules-arm64 names those that it has", name, n.Name, n.Text("compatible"))
		}
		for _, prop := range n.Props {
			if waits(prop.Name) {
				if w := n.Words(prop.Name); len(w) > 0 {
					need(device[w[0]])
				}
			}
		}
	}
	for _, s := range storage {
		need(s)
	}
}

// waits reports whether a device depends on the first one that such a property names.
func waits(name string) bool {
	return strings.HasSuffix(name, "-supply") || name == "pinctrl-0" || name == "gpio" || name == "gpios" || name == "cd-gpios"
}
