package nft

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"rivulet/test/harness/testns"
)

// kept is an owner of one table in a room, with a Keeper that runs.
func kept(t testing.TB, room testns.Room, log slog.Handler) (*Tables, []Program) {
	t.Helper()
	k := NewGuard(int(room.NS), slog.New(log))
	watched(t, k)
	return written(t, k)
}

// watched runs the guard until stop, or the end of the test.
func watched(t testing.TB, k *Guard) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	begun, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- k.Run(ctx, func() { close(begun) }) }()
	select {
	case <-begun:
	case err := <-ended:
		t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// written is the owner of a table.
func written(t testing.TB, k *Guard) (*Tables, []Program) {
	t.Helper()
	program := Program{Family: nftables.TableFamilyIPv4, Sets: map[string]Set{"a": addresses(0, 10)},
		Base: func(c *nftables.Conn, t *nftables.Table) {
			Rule(c, Base(c, t, "input", nftables.ChainHookInput, 0), In(Source, "a"), Drop)
		}}
	tables := k.Tables(table, nftables.TableFamilyIPv4)
	if _, err := tables.Apply([]Program{program}); err != nil {
		t.Fatal(err)
	}
	return tables, []Program{program}
}

// other does something as another program.
func other(t testing.TB, room testns.Room, what func(c *nftables.Conn)) {
	t.Helper()
	c, err := Open(int(room.NS))
	if err != nil {
		t.Fatal(err)
	}
	what(c)
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
}

// A table that was written before Run is not written again, unless another program has changed it since; after a gap
// between two runs all tables are.
func TestWhatIsWrittenBeforeRun(t *testing.T) {
	room := testns.New(t)
	k := NewGuard(int(room.NS), slog.New(slog.DiscardHandler))
	tables, programs := written(t, k)
	stop := watched(t, k)
	quietly(t, tables, "the start of the watch")
	changed := func(after string) {
		t.Helper()
		select {
		case <-tables.Changed():
		case <-time.After(2 * time.Second):
			t.Fatalf("nothing is put back after %s", after)
		}
		if _, err := tables.Apply(programs); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	other(t, room, func(c *nftables.Conn) { c.FlushRuleset() })
	watched(t, k)
	changed("a gap")

	k = NewGuard(int(room.NS), slog.New(slog.DiscardHandler))
	tables, programs = written(t, k)
	other(t, room, func(c *nftables.Conn) { c.FlushRuleset() })
	watched(t, k)
	changed("a change before the watch")
}

// Whatever another program does to a table, its owner hears of it in time, and once.
func TestOthersAreSeen(t *testing.T) {
	room := testns.New(t)
	tables, programs := kept(t, room, slog.DiscardHandler)
	own := &nftables.Table{Name: table, Family: nftables.TableFamilyIPv4}
	input := &nftables.Chain{Name: "input", Table: own}
	for _, c := range []struct {
		name string
		what func(c *nftables.Conn)
	}{
		{"flush ruleset", func(c *nftables.Conn) { c.FlushRuleset() }},
		{"delete table", func(c *nftables.Conn) { c.DelTable(own) }},
		{"flush chain", func(c *nftables.Conn) { c.FlushChain(input) }},
		{"delete chain", func(c *nftables.Conn) { c.FlushChain(input); c.DelChain(input) }},
		{"another rule", func(c *nftables.Conn) { c.InsertRule(&nftables.Rule{Table: own, Chain: input, Exprs: Accept}) }},
		{"delete element", func(c *nftables.Conn) {
			s := NewSet(own, "a", nftables.TypeIPAddr)
			if err := c.SetDeleteElements(s, []nftables.SetElement{{Key: binary.BigEndian.AppendUint32(nil, 3)}}); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		other(t, room, c.what)
		select {
		case <-tables.Changed():
		case <-time.After(2 * time.Second):
			t.Fatalf("%s is not seen", c.name)
		}
		if tables.Known() || !tables.Broken() {
			t.Errorf("%s: what stands is known: %v, broken: %v", c.name, tables.Known(), tables.Broken())
		}
		if _, err := tables.Apply(programs); err != nil {
			t.Fatal(err)
		}
		if n := count(t, int(room.NS), "a"); n != 10 || tables.Broken() {
			t.Errorf("%s: put back with %d elements, broken: %v", c.name, n, tables.Broken())
		}
	}
}

// quietly fails the test when the owner is told something.
func quietly(t *testing.T, tables *Tables, after string) {
	t.Helper()
	select {
	case <-tables.Changed():
		t.Errorf("the owner is told to put its table back after %s", after)
	case <-time.After(pace + 5*settle):
	}
}

// Own writes, whole or in part, and those of others to their own tables put nothing back.
func TestWhatIsNoChangeByOthers(t *testing.T) {
	room := testns.New(t)
	tables, programs := kept(t, room, slog.DiscardHandler)
	for i := range uint32(20) {
		if i%4 == 0 {
			tables.Forget()
		}
		programs[0].Sets = map[string]Set{"a": addresses(i, 10)}
		if _, err := tables.Apply(programs); err != nil {
			t.Fatal(err)
		}
	}
	quietly(t, tables, "own writes")
	for i := range 5 {
		other(t, room, func(c *nftables.Conn) { foreign(c, fmt.Sprint("other-", i), 200) })
	}
	quietly(t, tables, "writes to other tables")
}

// foreign fills a table of another program.
func foreign(c *nftables.Conn, name string, rules int) {
	t := &nftables.Table{Name: name, Family: nftables.TableFamilyIPv4}
	Remove(c, t)
	c.AddTable(t)
	chain := c.AddChain(&nftables.Chain{Name: "KUBE-SERVICES", Table: t})
	for i := range rules {
		Rule(c, chain, TCPPort(uint16(i+1)), []expr.Any{&expr.Counter{}}, Accept)
	}
}

// One that keeps at it has the table put back once in a second, and one line in the log.
func TestOneThatKeepsAtIt(t *testing.T) {
	room := testns.New(t)
	var log bytes.Buffer
	tables, programs := kept(t, room, slog.NewTextHandler(&log, nil))
	times := 0
	for end := time.Now().Add(3*pace - pace/2); time.Now().Before(end); {
		other(t, room, func(c *nftables.Conn) { c.FlushRuleset() })
		select {
		case <-tables.Changed():
			times++
			if _, err := tables.Apply(programs); err != nil {
				t.Fatal(err)
			}
		case <-time.After(time.Millisecond):
		}
	}
	if times < 2 || times > 4 {
		t.Errorf("put back %d times in %v", times, 3*pace)
	}
	if n := strings.Count(log.String(), "\n"); n != 1 {
		t.Errorf("%d lines: %s", n, log.String())
	}
}

// What cannot be written is tried again soon.
func TestWhatFailsIsTriedAgain(t *testing.T) {
	room := testns.New(t)
	tables, _ := kept(t, room, slog.DiscardHandler)
	bad := MakeSet(nftables.TypeIPAddr)
	bad.Add([]byte{1, 2, 3, 4, 5, 6, 7})
	if _, err := tables.Apply([]Program{{Family: nftables.TableFamilyIPv4, Sets: map[string]Set{"a": bad}, Base: func(*nftables.Conn, *nftables.Table) {}}}); err == nil {
		t.Fatal("the kernel took an address of seven bytes")
	}
	select {
	case <-tables.Changed():
	case <-time.After(2 * time.Second):
		t.Fatal("it is not tried again")
	}
}

// A busy table of another program, such as kube-proxy's, costs a small part of a core.
func BenchmarkBusyOthers(b *testing.B) {
	const rules = 5000
	for _, watched := range []bool{false, true} {
		b.Run(fmt.Sprint("watched=", watched), func(b *testing.B) {
			room := testns.New(b)
			if watched {
				kept(b, room, slog.DiscardHandler)
			}
			begun := cpu(b)
			for b.Loop() {
				other(b, room, func(c *nftables.Conn) { foreign(c, "filter", rules) })
			}
			b.ReportMetric(float64((cpu(b)-begun).Microseconds())/float64(b.N)/1000, "cpu-ms/op")
		})
	}
}

func cpu(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
