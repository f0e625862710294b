package tree

import (
	"bytes"
	"fmt"
)

// An overlay consists of fragments, each with a node's path and the content for it.
const (
	targetPath = "target-path"
	overlay    = "__overlay__"
	handle     = "phandle" // by which other nodes refer to one
)

// Overlay is what changes from into to. It names nodes by their paths, not by labels, which a tree may lack. An overlay
// cannot remove anything, and the loader renumbers the nodes that it adds: if a change needs either, it returns an
// error.
func Overlay(from, to *Node) (*Node, error) {
	all := &Node{}
	if err := differences(all, "", from, to); err != nil {
		return nil, err
	}
	return all, nil
}

const instead = "; the firmware has to be given the whole tree instead"

func differences(all *Node, path string, from, to *Node) error {
	here := path
	if here == "" {
		here = "/"
	}
	set := &Node{Name: overlay}
	for _, p := range to.Props {
		if old := from.prop(p.Name); old == nil || !bytes.Equal(old.Value, p.Value) {
			if p.Name == handle {
				return fmt.Errorf("%s has another number%s", here, instead)
			}
			set.Props = append(set.Props, p)
		}
	}
	for _, p := range from.Props {
		if to.prop(p.Name) == nil {
			return fmt.Errorf("%s loses %s%s", here, p.Name, instead)
		}
	}
	for _, k := range from.Nodes {
		if to.node(k.Name) == nil {
			return fmt.Errorf("%s loses %s%s", here, k.Name, instead)
		}
	}
	for _, k := range to.Nodes {
		if from.node(k.Name) == nil {
			if k.numbered() {
				return fmt.Errorf("%s gets %s, which others speak of%s", here, k.Name, instead)
			}
			set.Nodes = append(set.Nodes, k)
		}
	}
	if len(set.Props)+len(set.Nodes) > 0 {
		all.Nodes = append(all.Nodes, &Node{Name: fmt.Sprintf("fragment@%d", len(all.Nodes)),
			Props: []Prop{{targetPath, append([]byte(here), 0)}}, Nodes: []*Node{set}})
	}
	for _, k := range to.Nodes {
		if old := from.node(k.Name); old != nil {
			if err := differences(all, path+"/"+k.Name, old, k); err != nil {
				return err
			}
		}
	}
	return nil
}

func (n *Node) numbered() bool {
	if n.prop(handle) != nil {
		return true
	}
	for _, k := range n.Nodes {
		if k.numbered() {
			return true
		}
	}
	return false
}

// Apply applies an overlay to the tree, as the firmware does.
func (n *Node) Apply(o *Node) error {
	for _, f := range o.Nodes {
		content := f.node(overlay)
		if content == nil {
			continue
		}
		at := n.At(f.Text(targetPath))
		if at == nil {
			return fmt.Errorf("%s is for a node that is not there, %q; it belongs to another tree", f.Name, f.Text(targetPath))
		}
		at.merge(content)
	}
	return nil
}

func (n *Node) merge(from *Node) {
	for _, p := range from.Props {
		if old := n.prop(p.Name); old != nil {
			old.Value = bytes.Clone(p.Value)
		} else {
			n.Props = append(n.Props, Prop{p.Name, bytes.Clone(p.Value)})
		}
	}
	for _, k := range from.Nodes {
		old := n.node(k.Name)
		if old == nil {
			old = &Node{Name: k.Name}
			n.Nodes = append(n.Nodes, old)
		}
		old.merge(k)
	}
}

// Same reports whether two trees have the same content, in any order.
func Same(a, b *Node) bool {
	if a.Name != b.Name || len(a.Props) != len(b.Props) || len(a.Nodes) != len(b.Nodes) {
		return false
	}
	for _, p := range a.Props {
		if q := b.prop(p.Name); q == nil || !bytes.Equal(p.Value, q.Value) {
			return false
		}
	}
	for _, k := range a.Nodes {
		if l := b.node(k.Name); l == nil || !Same(k, l) {
			return false
		}
	}
	return true
}
