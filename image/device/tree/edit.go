package tree

import (
	"encoding/binary"
	"strings"
)

// At is the node of a path ("/" is the tree itself), or nil.
func (n *Node) At(path string) *Node {
	for name := range strings.SplitSeq(strings.Trim(path, "/"), "/") {
		if name != "" && n != nil {
			n = n.node(name)
		}
	}
	return n
}

func (n *Node) Has(name string) bool { return n.prop(name) != nil }

// Is reports whether one of the strings in compatible is known.
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

// Words are a property's cells; none if it is missing or of another type.
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

// Handle is the number by which other nodes refer to this one, 0 without one.
func (n *Node) Handle() uint32 {
	if w := n.Words(handle); len(w) == 1 {
		return w[0]
	}
	return 0
}
