// Package tree decodes and encodes device trees, which describe a board to the kernel (flattened, version 17 of the
// format), and makes the overlay that turns one into another. The image builder and its tests use it; it does no I/O.
package tree

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// Node is a node with its children, in the order of the file.
type Node struct {
	Name  string // the root's is ""
	Props []Prop
	Nodes []*Node
}

// Prop is a property. The meaning of its bytes depends on its name.
type Prop struct {
	Name  string
	Value []byte
}

// Of the format: the header's first and last words, and the tokens.
const (
	magic   = 0xd00dfeed
	version = 17
	oldest  = 16 // the oldest version that a reader has to support

	header    = 40
	beginNode = 1
	endNode   = 2
	property  = 3
	nop       = 4
	end       = 9
)

// ErrFormat is in every error of Decode.
var ErrFormat = errors.New("this is no device tree; look where the file came from")

// Decode reads a tree. Memory reservations in its header are left out.
func Decode(raw []byte) (*Node, error) {
	// Values above 1<<30 exceed every file and are errors below; this bound fits an int on every machine.
	word := func(at int) int { return int(min(binary.BigEndian.Uint32(raw[at:]), 1<<30)) }
	if len(raw) < header || binary.BigEndian.Uint32(raw) != magic || word(4) > len(raw) || word(4) < header || word(24) > version {
		return nil, fmt.Errorf("the header: %w", ErrFormat)
	}
	raw = raw[:word(4)]
	names, at := word(12), word(8)
	if names > len(raw) || at > len(raw) {
		return nil, fmt.Errorf("the header: %w", ErrFormat)
	}
	text := func(at int) (string, int, bool) {
		if at < 0 || at > len(raw) {
			return "", 0, false
		}
		n := bytes.IndexByte(raw[at:], 0)
		if n < 0 {
			return "", 0, false
		}
		return string(raw[at : at+n]), n + 1, true
	}
	var above []*Node
	for at+4 <= len(raw) {
		token := word(at)
		at += 4
		switch token {
		case beginNode:
			name, n, ok := text(at)
			if !ok {
				return nil, fmt.Errorf("at %d: %w", at, ErrFormat)
			}
			above, at = append(above, &Node{Name: name}), aligned(at+n)
		case endNode:
			switch n := len(above); {
			case n > 1:
				above[n-2].Nodes, above = append(above[n-2].Nodes, above[n-1]), above[:n-1]
			case n == 1:
				return above[0], nil
			default:
				return nil, fmt.Errorf("at %d: %w", at, ErrFormat)
			}
		case property:
			if at+8 > len(raw) || len(above) == 0 {
				return nil, fmt.Errorf("at %d: %w", at, ErrFormat)
			}
			size := word(at)
			name, _, ok := text(names + word(at+4))
			if at += 8; !ok || size > len(raw)-at {
				return nil, fmt.Errorf("at %d: %w", at, ErrFormat)
			}
			n := above[len(above)-1]
			n.Props, at = append(n.Props, Prop{name, bytes.Clone(raw[at : at+size])}), aligned(at+size)
		case nop:
		default:
			return nil, fmt.Errorf("at %d: %w", at, ErrFormat)
		}
	}
	return nil, fmt.Errorf("it ends too soon: %w", ErrFormat)
}

func aligned(at int) int { return (at + 3) &^ 3 }

// Encode writes a tree, the same bytes for the same tree.
func (n *Node) Encode() []byte {
	var nodes, names []byte
	at := map[string]uint32{}
	word := binary.BigEndian.AppendUint32
	pad := func() {
		for len(nodes)%4 != 0 {
			nodes = append(nodes, 0)
		}
	}
	var put func(n *Node)
	put = func(n *Node) {
		nodes = append(append(word(nodes, beginNode), n.Name...), 0)
		pad()
		for _, p := range n.Props {
			if _, known := at[p.Name]; !known {
				at[p.Name] = uint32(len(names))
				names = append(append(names, p.Name...), 0)
			}
			nodes = append(word(word(word(nodes, property), uint32(len(p.Value))), at[p.Name]), p.Value...)
			pad()
		}
		for _, k := range n.Nodes {
			put(k)
		}
		nodes = word(nodes, endNode)
	}
	put(n)
	nodes = word(nodes, end)
	const reserved = 16 // no memory reservation: two zeros of 64 bits
	total := header + reserved + len(nodes) + len(names)
	out := []byte{}
	out = word(out, magic)
	for _, w := range []int{total, header + reserved, header + reserved + len(nodes), header, version, oldest, 0, len(names), len(nodes)} {
		out = word(out, uint32(w))
	}
	return slices.Concat(out, make([]byte, reserved), nodes, names)
}

// Text is the first string of a property, or "".
func (n *Node) Text(name string) string {
	for _, p := range n.Props {
		if p.Name == name {
			word, _, _ := bytes.Cut(p.Value, []byte{0})
			return string(word)
		}
	}
	return ""
}

func (n *Node) node(name string) *Node {
	for _, k := range n.Nodes {
		if k.Name == name {
			return k
		}
	}
	return nil
}

func (n *Node) prop(name string) *Prop {
	for i := range n.Props {
		if n.Props[i].Name == name {
			return &n.Props[i]
		}
	}
	return nil
}
