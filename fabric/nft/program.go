package nft

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"rivulet/fabric/changes"
)

// Program is the content of a table of one family: sets, and chains of rules that use them. Sets and chains of one name
// are equal in all versions of a program, except for the elements of sets; anything else that differs has another name.
type Program struct {
	Family nftables.TableFamily
	Sets   map[string]Set
	// Chains are those that other rules and elements lead to.
	Chains map[string]Chain
	// Base writes the chains at kernel hooks. They never change.
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

func MakeSet(key nftables.SetDatatype) Set {
	return Set{Key: key, Elements: map[string]nftables.SetElement{}}
}

func (s Set) Add(key []byte) { s.Elements[string(key)] = nftables.SetElement{Key: key} }

// Lead adds an element of a map to chains.
func (s Set) Lead(key []byte, kind expr.VerdictKind, chain string) {
	s.Elements[string(key)+chain] = nftables.SetElement{Key: key, VerdictData: &expr.Verdict{Kind: kind, Chain: chain}}
}

// Map adds an element of a map to values.
func (s Set) Map(key, value []byte) {
	s.Elements[string(key)+string(value)] = nftables.SetElement{Key: key, Val: value}
}

// Tables are those of one name, one program per family. Methods may be called concurrently.
type Tables struct {
	Name     string
	Families []nftables.TableFamily
	NetNS    int // the network namespace; 0 is the process's own

	guard   *Guard
	changed chan struct{}

	mu       sync.Mutex
	have     []Program   // what this process has written; nil: unknown
	clean    bool        // no tables exist, for certain
	broken   bool        // changed by other programs
	timer    *time.Timer // nil, or it sends to changed, at next
	next     time.Time
	notified time.Time // when changed received last
	logged   time.Time
	wait     time.Duration // until a failed Apply is retried
}

// Changed receives when the tables have to be written again by Apply: another program has changed them, or may have, or
// the last Apply has failed.
func (k *Tables) Changed() <-chan struct{} { return k.changed }

// Broken reports whether other programs have changed the tables since Apply.
func (k *Tables) Broken() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.broken
}

// touched registers a certain or possible change by another program.
func (k *Tables) touched(certain bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.have == nil {
		return // no tables, or they will be written in any case
	}
	k.broken = k.broken || certain
	now := time.Now()
	if certain && now.Sub(k.logged) > quiet {
		k.logged = now
		k.guard.log.Warn("another program has changed nftables rules of Rivulet; putting them back", "table", k.Name)
	}
	k.notify(max(settle, k.notified.Add(pace).Sub(now)))
}

// notify is called with mu held.
func (k *Tables) notify(in time.Duration) {
	if k.changed == nil {
		return
	}
	at := time.Now().Add(in)
	if k.timer != nil && k.timer.Stop() && k.next.Before(at) {
		at = k.next
	}
	k.next = at
	k.timer = time.AfterFunc(time.Until(at), func() {
		k.mu.Lock()
		k.notified, k.have, k.clean = time.Now(), nil, false
		k.mu.Unlock()
		changes.Poke(k.changed)
	})
}

// Known reports whether the content of the tables is known.
func (k *Tables) Known() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.have != nil
}

// Forget makes the next Apply write everything.
func (k *Tables) Forget() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.have, k.clean = nil, false
}

// Clear removes the tables, once.
func (k *Tables) Clear() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.clean {
		return nil
	}
	if n, err := Stand(k.NetNS, k.Name, k.Families...); err == nil && n > 0 {
		if _, err := k.apply(nil); err != nil {
			return err
		}
	}
	k.have, k.clean, k.broken = nil, true, false
	return nil
}

// Apply makes the tables hold want, a program for each family or nil for no tables, each in one transaction: only the
// differences, or everything if the present content is unknown or the differences fail. It returns the number of
// messages that it took.
func (k *Tables) Apply(want []Program) (messages int, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.apply(want)
}

func (k *Tables) apply(want []Program) (messages int, err error) {
	if k.have != nil && want != nil {
		if messages, err = k.update(want); err == nil {
			return messages, nil
		}
	}
	k.have, k.clean = nil, false
	if messages, err = k.write(want); err != nil {
		k.wait = min(max(2*k.wait, pace), 16*pace)
		k.notify(k.wait)
		return messages, err
	}
	k.have, k.broken, k.wait = want, false, 0
	return messages, nil
}

func (k *Tables) write(want []Program) (messages int, err error) {
	for i, f := range k.Families {
		c, err := k.open()
		if err != nil {
			return messages, err
		}
		t := &nftables.Table{Name: k.Name, Family: f}
		Remove(c, t)
		if want != nil {
			c.AddTable(t)
			n, err := fill(c, t, want[i])
			if err != nil {
				return messages, err
			}
			messages += n
		}
		if err := c.Flush(); err != nil {
			return messages, err
		}
	}
	return messages, nil
}

// Fill adds the content of an empty table to c's transaction.
func Fill(c *nftables.Conn, t *nftables.Table, p Program) error {
	_, err := fill(c, t, p)
	return err
}

func fill(c *nftables.Conn, t *nftables.Table, p Program) (messages int, err error) {
	w := writer{c: c, t: t}
	w.sets(Program{}, p)
	p.Base(c, t)
	w.chains(Program{}, p)
	w.elements(Program{}, p)
	return w.n, w.err
}

func (k *Tables) open() (*nftables.Conn, error) {
	if k.guard != nil {
		return k.guard.open()
	}
	return Open(k.NetNS)
}

// Update writes the differences. A family whose transaction fails stays unchanged.
func (k *Tables) Update(want []Program) (messages int, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.update(want)
}

func (k *Tables) update(want []Program) (messages int, err error) {
	if k.have == nil {
		return 0, errUnknown
	}
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

var errUnknown = errors.New("nft: another program has just changed the table; it is put back")

// differ writes the differences of one table.
func (k *Tables) differ(have, want Program) (messages int, err error) {
	c, err := k.open()
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

// sets creates new sets without elements, whose chains may be created later.
func (w *writer) sets(have, want Program) {
	for _, name := range added(have.Sets, want.Sets) {
		if w.err == nil {
			w.err = w.c.AddSet(w.table(name, want.Sets[name]), nil)
			w.n++
		}
	}
}

// chains creates new chains: first all of them, then their rules, which may refer to any of them.
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

// elements updates the elements of all sets.
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

// chunk bounds the elements of one message. The length of their list has 16 bits, and the library truncates a longer
// one without an error.
const chunk = 256

func (w *writer) each(all []nftables.SetElement, write func([]nftables.SetElement) error) {
	for part := range slices.Chunk(all, chunk) {
		if w.err == nil {
			w.err = write(part)
			w.n++
		}
	}
}

// rest removes what is not referred to. All chains are emptied before any is deleted: the kernel refuses to delete a
// chain that another refers to.
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

// added lists the keys of after that before does not have, in order.
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
