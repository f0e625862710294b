package nft

import (
	"encoding/binary"
	"maps"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"rivulet/test/harness/testns"
)

const table = "rivulet-test"

func addresses(first, n uint32) Set {
	s := MakeSet(nftables.TypeIPAddr)
	for i := range n {
		s.Add(binary.BigEndian.AppendUint32(nil, first+i))
	}
	return s
}

// count is how many elements the kernel has in a set; -1 is no set.
func count(t *testing.T, netns int, name string) int {
	t.Helper()
	c, err := Open(netns)
	if err != nil {
		t.Fatal(err)
	}
	s, err := c.GetSetByName(&nftables.Table{Name: table, Family: nftables.TableFamilyIPv4}, name)
	if err != nil {
		return -1
	}
	elements, err := c.GetSetElements(s)
	if err != nil {
		t.Fatal(err)
	}
	return len(elements)
}

// Sets of any size are whole, made at once and made larger and smaller in place, maps
// and keys of several parts too.
func TestLargeSetsAreWhole(t *testing.T) {
	room := testns.New(t)
	k := Tables{Name: table, Families: []nftables.TableFamily{nftables.TableFamilyIPv4}, NetNS: int(room.NS)}
	program := func(n uint32) []Program {
		leads := MakeSet(nftables.TypeIPAddr)
		leads.Verdicts = true
		pairs := MakeSet(nftables.MustConcatSetType(nftables.TypeIFName, nftables.TypeIPAddr))
		for i := range n {
			key := binary.BigEndian.AppendUint32(nil, i)
			leads.Lead(key, expr.VerdictGoto, "other")
			pairs.Add(append(InterfaceKey("eth0"), key...))
		}
		return []Program{{Family: nftables.TableFamilyIPv4, Sets: map[string]Set{"addrs": addresses(0, n), "leads": leads, "pairs": pairs},
			Chains: map[string]Chain{"other": func(rule func(parts ...[]expr.Any)) { rule(Drop) }},
			Base:   func(c *nftables.Conn, t *nftables.Table) { Base(c, t, "input", nftables.ChainHookInput, 0) }}}
	}
	for _, n := range []uint32{20000, 4097, 65537, 255, 0} {
		if _, err := k.Apply(program(n)); err != nil {
			t.Fatalf("%d elements: %v", n, err)
		}
		for _, set := range []string{"addrs", "leads", "pairs"} {
			if got := count(t, k.NetNS, set); got != int(n) {
				t.Errorf("%s has %d elements, want %d", set, got, n)
			}
		}
	}
	if err := k.Clear(); err != nil {
		t.Fatal(err)
	}
}

// A transaction that the kernel refuses leaves the tables as they were, and the next one
// goes on from there.
func TestARefusedUpdateChangesNothing(t *testing.T) {
	room := testns.New(t)
	k := Tables{Name: table, Families: []nftables.TableFamily{nftables.TableFamilyIPv4}, NetNS: int(room.NS)}
	program := func(sets map[string]Set) []Program {
		return []Program{{Family: nftables.TableFamilyIPv4, Sets: sets, Base: func(*nftables.Conn, *nftables.Table) {}}}
	}
	sets := map[string]Set{"a": addresses(0, 10), "b": addresses(0, 10)}
	if _, err := k.Apply(program(sets)); err != nil {
		t.Fatal(err)
	}
	bad := maps.Clone(sets)
	bad["a"], bad["b"] = addresses(0, 1000), MakeSet(nftables.TypeIPAddr)
	bad["b"].Add([]byte{1, 2, 3, 4, 5, 6, 7}) // no address
	if _, err := k.Update(program(bad)); err == nil {
		t.Fatal("the kernel took an address of seven bytes")
	}
	if a, b := count(t, k.NetNS, "a"), count(t, k.NetNS, "b"); a != 10 || b != 10 {
		t.Errorf("after a refused transaction the sets have %d and %d elements", a, b)
	}
	good := maps.Clone(sets)
	good["a"] = addresses(5, 1000)
	if _, err := k.Update(program(good)); err != nil {
		t.Fatal(err)
	}
	if a := count(t, k.NetNS, "a"); a != 1000 {
		t.Errorf("%d elements, want 1000", a)
	}
}

// Chains that lead to each other go together.
func TestChainsGo(t *testing.T) {
	room := testns.New(t)
	k := Tables{Name: table, Families: []nftables.TableFamily{nftables.TableFamilyIPv4}, NetNS: int(room.NS)}
	program := func(chains map[string]Chain) []Program {
		return []Program{{Family: nftables.TableFamilyIPv4, Chains: chains, Base: func(*nftables.Conn, *nftables.Table) {}}}
	}
	last := func(rule func(parts ...[]expr.Any)) { rule(Drop) }
	to := func(name string) Chain { return func(rule func(parts ...[]expr.Any)) { rule(Jump(name)) } }
	for i, chains := range []map[string]Chain{
		{"a": to("b"), "b": to("c"), "c": last}, {"c": last}, {"c": last, "b": to("c")}, {"z": to("a"), "a": last}, {},
	} {
		var err error
		if i == 0 {
			_, err = k.Apply(program(chains))
		} else {
			_, err = k.Update(program(chains))
		}
		if err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
	}
}
