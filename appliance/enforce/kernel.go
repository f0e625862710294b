package enforce

import (
	"maps"
	"slices"
	"strings"

	"github.com/google/nftables"

	"rivulet/fabric/nft"
	"rivulet/offload/netpol"
)

// chunk is how many elements go into one message: its length is 16 bits.
const chunk = 256

var families = []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyBridge}

// kernel is what stands there, as far as we have written it.
type kernel struct {
	netns int
	have  []program // nil: not known
	clean bool      // it is known that nothing stands
}

// stands reports whether the tables are there that we have written, and no others.
func (k *kernel) stands() bool {
	n, err := nft.Stand(k.netns, Table, families...)
	return err != nil || n == len(k.have) // what cannot be asked is asked again later
}

// clear removes both tables, once.
func (k *kernel) clear() error {
	if k.clean {
		return nil
	}
	if n, err := nft.Stand(k.netns, Table, families...); err == nil && n > 0 {
		if _, err := k.apply(nil); err != nil {
			return err
		}
	}
	k.have, k.clean = nil, true
	return nil
}

// apply makes the tables say want, each in one transaction: what differs from what
// stands, or everything where that is not known or does not work. It returns the number
// of messages that it took.
func (k *kernel) apply(want []program) (messages int, err error) {
	k.clean = false
	if k.have != nil && want != nil {
		for i := range want {
			n, err := k.differ(k.have[i], want[i])
			messages += n
			if err != nil {
				k.have = nil
				break
			}
		}
		if k.have != nil {
			k.have = want
			return messages, nil
		}
	}
	k.have = nil
	for i, f := range families {
		c, err := nft.Open(k.netns)
		if err != nil {
			return messages, err
		}
		t := &nftables.Table{Name: Table, Family: f}
		nft.Remove(c, t)
		w := writer{c: c, t: t}
		if want != nil {
			c.AddTable(t)
			w.sets(program{}, want[i])
			want[i].base(c, t)
			w.chains(program{}, want[i])
			w.elements(program{}, want[i])
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

// differ writes what has changed of one table.
func (k *kernel) differ(have, want program) (messages int, err error) {
	c, err := nft.Open(k.netns)
	if err != nil {
		return 0, err
	}
	w := writer{c: c, t: &nftables.Table{Name: Table, Family: want.family}}
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

func (w *writer) table(name string, s set) *nftables.Set {
	out := nft.NewSet(w.t, name, s.key)
	out.IsMap, out.Interval = s.verdicts, s.ranges
	out.Concatenation = len(nftables.ConcatSetTypeElements(s.key)) > 1
	if s.verdicts {
		out.DataType = nftables.TypeVerdict
	}
	return out
}

// sets makes those that are new, without elements: what they lead to may come later.
func (w *writer) sets(have, want program) {
	for _, name := range slices.Sorted(maps.Keys(want.sets)) {
		if _, there := have.sets[name]; !there && w.err == nil {
			w.err = w.c.AddSet(w.table(name, want.sets[name]), nil)
			w.n++
		}
	}
}

// chains makes those that are new: of policies first, then of classes, which jump there.
func (w *writer) chains(have, want program) {
	for _, name := range slices.Sorted(maps.Keys(want.chains)) {
		if _, there := have.chains[name]; there {
			continue
		}
		chain := w.chain(name)
		otherEnd := uint32(nft.Source)
		if strings.HasPrefix(name, netpol.OutPrefix) {
			otherEnd = nft.Destination
		}
		for _, r := range want.chains[name] {
			nft.Rule(w.c, chain, rule(r, otherEnd))
			w.n++
		}
	}
	for _, name := range slices.Sorted(maps.Keys(want.classes)) {
		if _, there := have.classes[name]; there {
			continue
		}
		chain := w.chain(name)
		for _, policy := range want.classes[name] {
			nft.Rule(w.c, chain, nft.Jump(policy))
		}
		nft.Rule(w.c, chain, nft.Drop)
		w.n += len(want.classes[name]) + 1
	}
}

func (w *writer) chain(name string) *nftables.Chain {
	w.n++
	return w.c.AddChain(&nftables.Chain{Name: name, Table: w.t})
}

// elements brings those of all sets up to date.
func (w *writer) elements(have, want program) {
	for _, name := range slices.Sorted(maps.Keys(want.sets)) {
		next, before := want.sets[name], have.sets[name]
		s := w.table(name, next)
		var gone, come []nftables.SetElement
		for _, key := range slices.Sorted(maps.Keys(before.elements)) {
			if _, stays := next.elements[key]; !stays {
				gone = append(gone, nftables.SetElement{Key: before.elements[key].Key})
			}
		}
		for _, key := range slices.Sorted(maps.Keys(next.elements)) {
			if _, there := before.elements[key]; !there {
				come = append(come, next.elements[key])
			}
		}
		w.each(gone, func(part []nftables.SetElement) error { return w.c.SetDeleteElements(s, part) })
		w.each(come, func(part []nftables.SetElement) error { return w.c.SetAddElements(s, part) })
	}
}

func (w *writer) each(all []nftables.SetElement, write func([]nftables.SetElement) error) {
	for part := range slices.Chunk(all, chunk) {
		if w.err == nil {
			w.err = write(part)
			w.n++
		}
	}
}

// rest removes what nothing leads to any more.
func (w *writer) rest(have, want program) {
	for name := range have.classes {
		if _, stays := want.classes[name]; !stays {
			w.c.DelChain(&nftables.Chain{Name: name, Table: w.t})
			w.n++
		}
	}
	for name := range have.chains {
		if _, stays := want.chains[name]; !stays {
			w.c.DelChain(&nftables.Chain{Name: name, Table: w.t})
			w.n++
		}
	}
	for name, s := range have.sets {
		if _, stays := want.sets[name]; !stays {
			w.c.DelSet(w.table(name, s))
			w.n++
		}
	}
}
