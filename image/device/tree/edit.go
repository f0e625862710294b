package tree

import (
	"encoding/binary"
	"strings"
)

// symbols is the node in which a tree keeps its labels: each names a path.
const symbols = "__symbols__"

// At is the node of a path ("/" is the tree itself), or nil.
func (n *Node) At(path string) *Node {
	for name := range strings.SplitSeq(strings.Trim(path, "/"), "/") {
		if name != "" && n != nil {
			n = n.node(name)
		}
	}
	return n
}

// Labelled is the node of a label, by which the sources of a tree and its overlays
// speak of it, or nil.
func (n *Node) Labelled(label string) *Node {
	s := n.node(symbols)
	if s == nil || s.Text(label) == "" {
		return nil
	}
	return n.At(s.Text(label))
}

// Has says whether there is such a property.
func (n *Node) Has(name string) bool { return n.prop(name) != nil }

// Is says whether one of the words in compatible is known.
func (n *Node) Is(known map[string]bool) bool {
	if p := n.prop("compatible"); p != nil {
		for word := range strings.SplitSeq(string(p.Value), "\x00") {
			if known[word] {
				return true
			}
		}
	}
	return false
}

// Words are a property's cells, none where it is not there or is something else.
func (n *Node) Words(name string) []uint32 {
	p := n.prop(name)
	if p == nil || len(p.Value)%4 != 0 {
		return nil
	}
	all := make([]uint32, len(p.Value)/4)
	for i := range all {
		all[i] = binary.BigEndian.Uint32(p.Value[4*i:])
	}
	return all
}

// Set gives the node a property, in place of one of that name.
func (n *Node) Set(p Prop) {
	if old := n.prop(p.Name); old != nil {
		old.Value = p.Value
		return
	}
	n.Props = append(n.Props, p)
}

// Handle is the number by which others speak of the node, 0 where it has none.
func (n *Node) Handle() uint32 {
	if w := n.Words(handle); len(w) == 1 {
		return w[0]
	}
	return 0
}

// Flag is a property that says by being there.
func Flag(name string) Prop { return Prop{Name: name, Value: []byte{}} }

// Cells is a property that is a list of numbers.
func Cells(name string, words ...uint32) Prop {
	p := Flag(name)
	for _, w := range words {
		p.Value = binary.BigEndian.AppendUint32(p.Value, w)
	}
	return p
}

// Strings is a property that is a list of words.
func Strings(name string, words ...string) Prop {
	return Prop{Name: name, Value: []byte(strings.Join(words, "\x00") + "\x00")}
}
