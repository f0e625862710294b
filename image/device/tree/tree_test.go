package tree

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

var names = []string{"compatible", "reg", "status", "interrupts", "gpio-line-names"}

// some is a tree of a few nodes; names below one node are not repeated.
func some(depth int) *rapid.Generator[*Node] {
	return rapid.Custom(func(t *rapid.T) *Node {
		n := &Node{Name: "n"}
		for _, name := range rapid.SliceOfNDistinct(rapid.SampledFrom(names), 0, 4, rapid.ID).Draw(t, "props") {
			n.Props = append(n.Props, Prop{name, rapid.SliceOfN(rapid.Byte(), 0, 9).Draw(t, "value")})
		}
		if depth > 0 {
			for _, name := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"soc", "mmc@0", "uart@7d00"}), 0, 3, rapid.ID).Draw(t, "nodes") {
				k := some(depth-1).Draw(t, "node")
				k.Name = name
				n.Nodes = append(n.Nodes, k)
			}
		}
		return n
	})
}

func TestWrittenAndRead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := some(3).Draw(t, "tree")
		raw := n.Encode()
		got, err := Decode(append(bytes.Clone(raw), "what follows is not its own"...))
		if err != nil || !Same(n, got) || !bytes.Equal(got.Encode(), raw) {
			t.Fatalf("%v: %v", err, got)
		}
	})
}

// Whatever is broken in a tree is an error, or another tree; never a crash.
func FuzzDecode(f *testing.F) {
	n := &Node{Props: []Prop{{"model", []byte("x\x00")}}, Nodes: []*Node{{Name: "soc", Props: []Prop{{"reg", []byte{1, 2, 3}}}}}}
	f.Add(n.Encode())
	for i := range n.Encode() {
		broken := n.Encode()
		broken[i] ^= 0xff
		f.Add(broken)
		f.Add(broken[:i])
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		if n, err := Decode(raw); (n == nil) == (err == nil) || (err != nil && !errors.Is(err, ErrFormat)) {
			t.Errorf("%v, %v", n, err)
		}
	})
}

// Laid over the one tree the overlay makes the other, whatever was set or added.
func TestOverlayMakesTheOther(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		from := some(3).Draw(t, "from")
		to, err := Decode(from.Encode())
		if err != nil {
			t.Fatal(err)
		}
		to.merge(some(3).Draw(t, "more"))
		o, err := Overlay(from, to)
		if err != nil {
			t.Fatal(err)
		}
		if o, err = Decode(o.Encode()); err != nil {
			t.Fatal(err)
		}
		if Same(from, to) != (len(o.Nodes) == 0) {
			t.Fatalf("%d fragments", len(o.Nodes))
		}
		if err := from.Apply(o); err != nil || !Same(from, to) {
			t.Fatalf("%v: %v, want %v", err, from, to)
		}
	})
}

// What an overlay cannot do is refused, not left out.
func TestOverlayRefuses(t *testing.T) {
	base := func() *Node {
		return &Node{Props: []Prop{{"model", nil}}, Nodes: []*Node{{Name: "a", Props: []Prop{{handle, []byte{0, 0, 0, 1}}}}}}
	}
	for what, change := range map[string]func(*Node){
		"/ loses model":     func(n *Node) { n.Props = nil },
		"/ loses a":         func(n *Node) { n.Nodes = nil },
		"/a has another":    func(n *Node) { n.Nodes[0].Props[0].Value = []byte{2} },
		"/ gets b, which":   func(n *Node) { n.Nodes = append(n.Nodes, &Node{Name: "b", Props: []Prop{{handle, nil}}}) },
		"/a gets c, which ": func(n *Node) { n.Nodes[0].Nodes = []*Node{{Name: "c", Nodes: []*Node{{Props: []Prop{{handle, nil}}}}}} },
	} {
		to := base()
		change(to)
		if _, err := Overlay(base(), to); err == nil || !strings.Contains(err.Error(), what) || !strings.HasSuffix(err.Error(), instead) {
			t.Errorf("%s: %v", what, err)
		}
	}
	o := &Node{Nodes: []*Node{{Name: "fragment@0", Props: []Prop{{targetPath, []byte("/a/nowhere\x00")}}, Nodes: []*Node{{Name: overlay}}}}}
	if err := base().Apply(o); err == nil || !strings.Contains(err.Error(), "belongs to another tree") {
		t.Errorf("a node that is not there: %v", err)
	}
}

func TestText(t *testing.T) {
	n := &Node{Props: []Prop{{"compatible", []byte("a,b\x00c,d\x00")}}}
	if got := []string{n.Text("compatible"), n.Text("model")}; !slices.Equal(got, []string{"a,b", ""}) {
		t.Errorf("%q", got)
	}
}

// A tree is found its way about in, and changed, by path, label and number.
func TestEdit(t *testing.T) {
	n := &Node{Props: []Prop{Strings("compatible", "a,b", "c,d")}, Nodes: []*Node{
		{Name: "soc", Nodes: []*Node{{Name: "mmc@0", Props: []Prop{Cells(handle, 7), Cells("reg", 1, 2), Flag("non-removable")}}}},
		{Name: symbols, Props: []Prop{Strings("sdio1", "/soc/mmc@0"), Strings("gone", "/soc/mmc@1")}}}}
	disk := n.Labelled("sdio1")
	if disk == nil || disk != n.At("/soc/mmc@0") || disk != n.At("soc/mmc@0/") || disk.Handle() != 7 || n.Handle() != 0 {
		t.Fatalf("%v", disk)
	}
	if n.At("/") != n || n.Labelled("gone") != nil || n.Labelled("other") != nil || n.At("/soc/a/b") != nil || (&Node{}).Labelled("sdio1") != nil {
		t.Error("something that is not there was found")
	}
	if got := disk.Words("reg"); !slices.Equal(got, []uint32{1, 2}) || disk.Words("other") != nil || n.At("/"+symbols).Words("gone") != nil {
		t.Errorf("%v", got)
	}
	if !n.Is(map[string]bool{"c,d": true}) || n.Is(map[string]bool{"c": true}) || disk.Is(map[string]bool{"": true}) {
		t.Error("compatible")
	}
	disk.Set(Cells("reg", 3))
	disk.Set(Flag("broken-cd"))
	disk.Set(Cells("reg", 3))
	disk.Set(Flag("broken-cd"))
	if !disk.Has("non-removable") || !disk.Has("broken-cd") || disk.Words("reg")[0] != 3 {
		t.Errorf("%v", disk)
	}
}

// symbols is the node in which a tree keeps its labels: each names a path.
const symbols = "__symbols__"

// Labelled is the node of a label, by which the sources of a tree and its overlays
// speak of it, or nil.
func (n *Node) Labelled(label string) *Node {
	s := n.node(symbols)
	if s == nil || s.Text(label) == "" {
		return nil
	}
	return n.At(s.Text(label))
}

// Set gives the node a property, in place of one of that name.
func (n *Node) Set(p Prop) {
	if old := n.prop(p.Name); old != nil {
		old.Value = p.Value
		return
	}
	n.Props = append(n.Props, p)
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
