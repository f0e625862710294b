package nft

import (
	"cmp"
	"maps"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// Program is what a table of one family holds: sets, and chains of rules that name
// them. Sets and chains of one name are equal in all versions of a program, but for the
// elements of sets; what differs otherwise has another name.
type Program struct {
	Family nftables.TableFamily
	Sets   map[string]Set
	// Chains are those that other rules and elements lead to.
	Chains map[string]Chain
	// Base writes the chains that the kernel calls. They never change.
	Base func(c *nftables.Conn, t *nftables.Table)
}

// Chain calls rule for each of its rules, in order.
type Chain func(rule func(parts ...[]expr.Any))

// Set is a set or map; elements are by key and value.
type Set struct {
	Key      nftables.SetDatatype
	Verdicts bool                 // a map from keys to chains
	Values   nftables.SetDatatype // a map from keys to these, unless it is the zero value
	Ranges   bool                 // its elements never change
	Elements map[string]nftables.SetElement
}

// MakeSet makes one without elements.
func MakeSet(key nftables.SetDatatype) Set {
	return Set{Key: key, Elements: map[string]nftables.SetElement{}}
}

// Add adds an element.
func (s Set) Add(key []byte) { s.Elements[string(key)] = nftables.SetElement{Key: key} }

// Lead adds an element of a map.
func (s Set) Lead(key []byte, kind expr.VerdictKind, chain string) {
	s.Elements[string(key)+chain] = nftables.SetElement{Key: key, VerdictData: &expr.Verdict{Kind: kind, Chain: chain}}
}

// Map adds an element of a map to values.
func (s Set) Map(key, value []byte) {
	s.Elements[string(key)+string(value)] = nftables.SetElement{Key: key, Val: value}
}

// Tables are those of one name, a program for each family.
type Tables struct {
	Name     string
	Families []nftables.TableFamily
	NetNS    int // the network namespace; 0 is the process's own

	have  []Program // what stands, as far as it was written here; nil: not known
	clean bool      // it is known that nothing stands
}

// Known reports whether it is known what stands.
func (k *Tables) Known() bool { return k.have != nil }

// Forget makes the next Apply write everything: somebody else has changed the tables.
func (k *Tables) Forget() { k.have, k.clean = nil, false }

// Stand reports whether the tables are there that were written, and no others.
func (k *Tables) Stand() bool {
	n, err := Stand(k.NetNS, k.Name, k.Families...)
	return err != nil || n == len(k.have) // what cannot be asked is asked again later
}

// Clear removes the tables, once.
func (k *Tables) Clear() error {
	if k.clean {
		return nil
	}
	if n, err := Stand(k.NetNS, k.Name, k.Families...); err == nil && n > 0 {
		if _, err := k.Apply(nil); err != nil {
			return err
		}
	}
	k.have, k.clean = nil, true
	return nil
}

// Apply makes the tables hold want, a program for each family or nil for no tables, each
// in one transaction: what differs from what stands, or everything where that is not
// known or does not work. It returns the number of messages that it took.
func (k *Tables) Apply(want []Program) (messages int, err error) {
	if k.have != nil && want != nil {
		if messages, err = k.Update(want); err == nil {
			return messages, nil
		}
	}
	k.Forget()
	for i, f := range k.Families {
		c, err := Open(k.NetNS)
		if err != nil {
			return messages, err
		}
		t := &nftables.Table{Name: k.Name, Family: f}
		Remove(c, t)
		w := writer{c: c, t: t}
		if want != nil {
			c.AddTable(t)
			w.sets(Program{}, want[i])
			want[i].Base(c, t)
			w.chains(Program{}, want[i])
			w.elements(Program{}, want[i])
		}
		if w.err != nil {
			return messages, w.err
		}
		if err := c.Flush(); err != nil {
			return messages, err
		}
		messages += w.n
	}
	k.have = want
	return messages, nil
}

// Update writes what differs from what stands, which must be known. A family whose
// transaction fails stays as it was.
func (k *Tables) Update(want []Program) (messages int, err error) {
	have := slices.Clone(k.have)
	for i := range want {
		n, err := k.differ(have[i], want[i])
		if err != nil {
			return messages, err
		}
		messages += n
		have[i] = want[i]
		k.have = have
	}
	return messages, nil
}

// differ writes what has changed of one table.
func (k *Tables) differ(have, want Program) (messages int, err error) {
	c, err := Open(k.NetNS)
	if err != nil {
		return 0, err
	}
	w := writer{c: c, t: &nftables.Table{Name: k.Name, Family: want.Family}}
	w.sets(have, want)
	w.chains(have, want)
	w.elements(have, want)
	w.rest(have, want)
	if w.err != nil || w.n == 0 {
		return 0, w.err
	}
	return w.n, c.Flush()
}

// writer fills one transaction.
type writer struct {
	c   *nftables.Conn
	t   *nftables.Table
	n   int // messages
	err error
}

func (w *writer) table(name string, s Set) *nftables.Set {
	out := NewSet(w.t, name, s.Key)
	out.IsMap, out.Interval, out.DataType = s.Verdicts || s.Values.Bytes > 0, s.Ranges, s.Values
	out.Concatenation = len(nftables.ConcatSetTypeElements(s.Key)) > 1
	if s.Verdicts {
		out.DataType = nftables.TypeVerdict
	}
	return out
}

// sets makes those that are new, without elements: what they lead to may come later.
func (w *writer) sets(have, want Program) {
	for _, name := range added(have.Sets, want.Sets) {
		if w.err == nil {
			w.err = w.c.AddSet(w.table(name, want.Sets[name]), nil)
			w.n++
		}
	}
}

// chains makes those that are new: first all of them, then the rules, which may lead to
// any of them.
func (w *writer) chains(have, want Program) {
	names := added(have.Chains, want.Chains)
	for _, name := range names {
		w.c.AddChain(&nftables.Chain{Name: name, Table: w.t})
		w.n++
	}
	for _, name := range names {
		want.Chains[name](func(parts ...[]expr.Any) {
			Rule(w.c, &nftables.Chain{Name: name, Table: w.t}, parts...)
			w.n++
		})
	}
}

// elements brings those of all sets up to date.
func (w *writer) elements(have, want Program) {
	for _, name := range slices.Sorted(maps.Keys(want.Sets)) {
		next, before := want.Sets[name], have.Sets[name]
		s := w.table(name, next)
		var gone, come []nftables.SetElement
		for _, key := range added(next.Elements, before.Elements) {
			gone = append(gone, nftables.SetElement{Key: before.Elements[key].Key})
		}
		for _, key := range added(before.Elements, next.Elements) {
			come = append(come, next.Elements[key])
		}
		w.each(gone, func(part []nftables.SetElement) error { return w.c.SetDeleteElements(s, part) })
		w.each(come, func(part []nftables.SetElement) error { return w.c.SetAddElements(s, part) })
	}
}

// chunk is how many elements go into one message. The length of their list is 16 bits,
// and the library cuts a longer one short without an error.
const chunk = 256

func (w *writer) each(all []nftables.SetElement, write func([]nftables.SetElement) error) {
	for part := range slices.Chunk(all, chunk) {
		if w.err == nil {
			w.err = write(part)
			w.n++
		}
	}
}

// rest removes what nothing leads to. A chain is emptied before any is deleted: one that
// another leads to cannot go.
func (w *writer) rest(have, want Program) {
	chains := added(want.Chains, have.Chains)
	for _, name := range chains {
		w.c.FlushChain(&nftables.Chain{Name: name, Table: w.t})
		w.n++
	}
	for _, name := range chains {
		w.c.DelChain(&nftables.Chain{Name: name, Table: w.t})
		w.n++
	}
	for _, name := range added(want.Sets, have.Sets) {
		w.c.DelSet(w.table(name, have.Sets[name]))
		w.n++
	}
}

// added lists the keys of after that before has not, in order.
func added[K cmp.Ordered, V any](before, after map[K]V) []K {
	var out []K
	for key := range after {
		if _, there := before[key]; !there {
			out = append(out, key)
		}
	}
	slices.Sort(out)
	return out
}
