package upgrade

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"rivulet/appliance/lifetime/slots"
	"rivulet/appliance/lifetime/slots/slotstest"
	"rivulet/image/device/layout"
)

// board is a device with two slots: its disk, the loader that it has, and the initrd.
type board struct {
	*model
	uefi, pi bool
	fat      map[string]string
	roots    map[layout.Slot][]byte
	// How FAT's renames are cut short: not at all, or leaving none, or both.
	lossy bool
	// Its syslinux does not start a slot once, though its file has the place for it.
	deaf bool
	// What runs.
	slot  layout.Slot
	boots int
	// builds that never come as far as their judge, and of these those whose kernel
	// does not come to its initrd either.
	dead, dark map[string]bool
}

func newBoard(t *rapid.T) *board {
	b := &board{model: &model{t: t, state: State{Format: format, Phase: Idle}, data: "v0", healthy: map[string]bool{}},
		fat: map[string]string{}, roots: map[layout.Slot][]byte{}, dead: map[string]bool{}, dark: map[string]bool{}}
	b.uefi = rapid.Bool().Draw(t, "uefi")
	b.pi = !b.uefi && rapid.Bool().Draw(t, "pi")
	b.lossy = rapid.Bool().Draw(t, "lossy renames")
	b.deaf = !b.uefi && !b.pi && rapid.Bool().Draw(t, "deaf syslinux")
	l := layout.Syslinux
	if b.pi {
		l = layout.PiFirmware
		b.fat["config.txt"] = "include slot.cfg\n"
	} else {
		b.fat["loader/entries/rivulet-a.conf"] = "title a\nversion 1\nsort-key rivulet\n"
		b.fat[layout.SyslinuxFile] = "core" + string(layout.Once(0))
	}
	b.fat[layout.ChoiceFile] = string(layout.Choice{Load: layout.A, Good: layout.A}.Encode(l))
	b.fat["a/linux"], b.fat["a/good"] = "kernel v0", "good\n"
	b.roots[layout.A] = []byte("root v0")
	return b
}

// The boot partition, whose every change may be the last before a power cut.

func (b *board) List(dir string) (names []string, err error) {
	for name := range b.fat {
		if path.Dir(name) == dir {
			names = append(names, path.Base(name))
		}
	}
	slices.Sort(names)
	return names, nil
}

func (b *board) Read(name string) ([]byte, error) {
	if c, ok := b.fat[name]; ok {
		return []byte(c), nil
	}
	return nil, fs.ErrNotExist
}

func (b *board) Write(name string, content []byte) error {
	b.change(func() { b.fat[name] = string(content[:len(content)/2]) })
	b.change(func() { b.fat[name] = string(content) })
	return nil
}

func (b *board) Overwrite(name string, content []byte) error {
	if len(content) != layout.Sector || len(b.fat[name]) != layout.Sector {
		b.t.Fatalf("%s is overwritten, and is not one sector", name)
	}
	b.change(func() { b.fat[name] = string(content) })
	return nil
}

func (b *board) OverwriteEnd(name string, content []byte) error {
	if len(content)%layout.Sector != 0 || len(b.fat[name]) < len(content) {
		b.t.Fatalf("the end of %s is overwritten, and is not sectors", name)
	}
	for at := 0; at < len(content); at += layout.Sector {
		b.change(func() {
			file := []byte(b.fat[name])
			copy(file[len(file)-len(content)+at:], content[at:at+layout.Sector])
			b.fat[name] = string(file)
		})
	}
	return nil
}

func (b *board) Rename(from, to string) error {
	content, ok := b.fat[from]
	if !ok {
		return fs.ErrNotExist
	}
	steps := []func(){func() { b.fat[to] = content }, func() { delete(b.fat, from) }}
	if !b.lossy {
		b.change(func() { steps[0](); steps[1]() })
		return nil
	}
	if rapid.Bool().Draw(b.t, "none in between") {
		slices.Reverse(steps)
	}
	b.change(steps[0])
	b.change(steps[1])
	return nil
}

func (b *board) Remove(name string) error {
	for _, n := range slices.Sorted(maps.Keys(b.fat)) {
		if n == name || strings.HasPrefix(n, name+"/") {
			b.change(func() { delete(b.fat, n) })
		}
	}
	return nil
}

// root is a slot's partition.
type root struct {
	b *board
	s layout.Slot
}

func (r root) WriteAt(p []byte, off int64) (int, error) {
	put := func(n int) func() {
		return func() {
			c := append([]byte(nil), r.b.roots[r.s]...)
			c = append(c, make([]byte, max(0, int(off)+n-len(c)))...)
			copy(c[off:], p[:n])
			r.b.roots[r.s] = c
		}
	}
	r.b.change(put(len(p) / 2))
	r.b.change(put(len(p)))
	return len(p), nil
}

func (r root) ReadAt(p []byte, off int64) (int, error) {
	return bytes.NewReader(r.b.roots[r.s]).ReadAt(p, off)
}
func (root) Sync() error { return nil }

func (b *board) Slot() layout.Slot    { return b.slot }
func (b *board) BootID() string       { return fmt.Sprint(b.boots) }
func (b *board) Arm(i Image) error    { return slots.Arm(b, i.from(), i.to()) }
func (b *board) Accept(i Image) error { return slots.Accept(b, i.to()) }
func (b *board) Reject(i Image) error { return slots.Reject(b, i.from()) }
func (b *board) Point(State) bool     { return false }

// Stage is what rivulet upgrade does.
func (b *board) stage(n int) (err error) {
	defer b.power(&err)
	bundle := slotstest.Bundle(b.t, fmt.Sprint("v", n), !b.pi)
	fill := func() error {
		if err := slots.Clear(b, b.slot); err != nil {
			return err
		}
		_, err := slots.Fill(context.Background(), bytes.NewReader(bundle), io.Discard, b, root{b, b.slot.Other()}, func() {}, b.slot.Other())
		return err
	}
	return stageImage(b.state, b.Save, fill, Attempt{Next: version1(n), From: Version{BuildID: b.data}, StagedAt: b.Now(), Window: time.Minute,
		Image: &Image{From: b.slot.String(), To: b.slot.Other().String(), Armed: true, Boot: b.BootID()}}) // flags of an older one: no use
}

func version1(n int) Version { return Version{Name: fmt.Sprint("v", n), BuildID: fmt.Sprint("v", n)} }

func (b *board) power(err *error) {
	if p := recover(); p != nil {
		if p != errPower { //nolint:errorlint // it is the value itself
			panic(p)
		}
		*err = errPower
	}
}

// start is power on: the loader, the initrd, then rivulet. It returns what runs in the
// end, or an error when the power failed; nil and nothing is a restart.
func (b *board) start() (runs string, err error) {
	defer b.power(&err)
	b.boots++
	if b.boots > 500 {
		b.t.Fatal("it restarts for ever")
	}
	if b.uefi {
		b.slot = b.systemdBoot()
	} else {
		b.slot = b.choice()
	}
	for _, s := range []layout.Slot{layout.A, layout.B} { // the initrd of the other may leave that for it
		is := strings.TrimPrefix(string(b.roots[s]), "root ")
		if _, good := b.fat[s.String()+"/"+layout.Good]; good && (is != "v0" && !b.healthy[is] || b.fat[s.String()+"/linux"] != "kernel "+is) {
			b.t.Fatalf("slot %s is called good, and has root %q with kernel %q", s, is, b.fat[s.String()+"/linux"])
		}
	}
	build, ok := strings.CutPrefix(string(b.roots[b.slot]), "root ")
	if !ok || b.fat[b.slot.String()+"/linux"] != "kernel "+build {
		b.t.Fatalf("slot %s boots, and has root %q with kernel %q", b.slot, b.roots[b.slot], b.fat[b.slot.String()+"/linux"])
	}
	if b.dark[build] {
		return "", nil // its kernel panics
	}
	if !b.uefi && !b.initrd() {
		return "", nil // it restarts
	}
	if b.dead[build] {
		return "", nil // it hangs, and the watchdog restarts it
	}
	choice, err := decide(context.Background(), b, build, discard)
	switch {
	case err != nil:
		b.t.Fatal(err)
	case choice.Run != nil:
		b.t.Fatalf("%+v", choice)
	case choice.Restart || choice.Exit:
		return "", nil
	}
	if b.data != build {
		b.t.Fatalf("%s runs on the data of %s; %+v", build, b.data, b.state)
	}
	return build, nil
}

// systemdBoot takes the highest version whose tries are not used up, and counts.
func (b *board) systemdBoot() layout.Slot {
	type entry struct {
		name         string
		slot         layout.Slot
		version      int
		left, failed int
	}
	var es []entry
	for name, text := range b.fat {
		n, ok := strings.CutPrefix(name, "loader/entries/rivulet-")
		if n, is := strings.CutSuffix(n, ".conf"); ok && is {
			e := entry{name: name, slot: layout.Slot(n[0]), version: slots.EntryVersion(text), left: -1}
			if len(n) > 1 {
				fmt.Sscanf(n[1:], "+%d-%d", &e.left, &e.failed)
			}
			if text == "" || e.version == 0 {
				b.t.Fatalf("%s is an entry and not whole: %q", name, text)
			}
			es = append(es, e)
		}
	}
	if len(es) == 0 {
		b.t.Fatal("nothing boots")
	}
	e := slices.MinFunc(es, func(x, y entry) int {
		if (x.left == 0) != (y.left == 0) {
			if x.left == 0 {
				return 1
			}
			return -1
		}
		if x.version != y.version {
			return y.version - x.version
		}
		return strings.Compare(x.name, y.name)
	})
	if e.left > 0 {
		content := b.fat[e.name]
		delete(b.fat, e.name)
		b.fat[fmt.Sprintf("loader/entries/rivulet-%s+%d-%d.conf", e.slot, e.left-1, e.failed+1)] = content
	}
	return e.slot
}

// choice is syslinux or the Pi's firmware.
func (b *board) choice() layout.Slot {
	c, err := layout.DecodeChoice([]byte(b.fat[layout.ChoiceFile]))
	if err != nil {
		b.t.Fatalf("nothing boots: %v", err)
	}
	if file := b.fat[layout.SyslinuxFile]; !b.pi && !b.deaf {
		// The first of the two sectors: neither is ever torn in itself.
		for _, s := range []layout.Slot{layout.A, layout.B} {
			if once := string(layout.Once(s)); file[len(file)-len(once):][:layout.Sector] == once[:layout.Sector] {
				b.fat[layout.SyslinuxFile] = "core" + string(layout.Once(0))
				return s
			}
		}
	}
	return c.Load
}

// initrd is what that of the slot does with slot.cfg, where no loader counts. It says
// whether the slot goes on.
func (b *board) initrd() bool {
	c, err := layout.DecodeChoice([]byte(b.fat[layout.ChoiceFile]))
	if err != nil {
		b.t.Fatal(err)
	}
	l := layout.Syslinux
	if b.pi {
		l = layout.PiFirmware
	}
	write := func(c layout.Choice) { b.change(func() { b.fat[layout.ChoiceFile] = string(c.Encode(l)) }) }
	once, kept := b.fat[c.Try.String()+"/"+layout.OnceFile]
	switch {
	case c.Try == b.slot && c.Tries > 0:
		c.Load = b.slot
		c.Tries--
		write(c)
		return true
	case c.Try == b.slot:
		write(layout.Choice{Load: c.Good, Good: c.Good})
		return false
	case b.pi || c.Try != b.slot.Other() || c.Good != b.slot || c.Load != b.slot || !kept || c.Tries < 2:
		return true
	case strings.HasSuffix(b.fat[layout.SyslinuxFile], once):
		c.Load = c.Try // the loader does not do it
	default:
		_ = b.OverwriteEnd(layout.SyslinuxFile, []byte(once)) // it fails by the power alone
		c.Tries--
	}
	write(c)
	return false
}

// stale leaves what an attempt of before may have left, by whatever way it ended.
func (b *board) stale() {
	x := b.slot.Other()
	l := layout.Syslinux
	if b.pi {
		l = layout.PiFirmware
	}
	b.fat[layout.ChoiceFile] = string(layout.Choice{Load: b.slot, Good: b.slot, Try: x, Tries: rapid.IntRange(0, 9).Draw(b.t, "stale tries")}.Encode(l))
	delete(b.fat, x.String()+"/"+layout.OnceFile) // it went before slot.cfg did
	b.fat[x.String()+"/bcm-old.dtb"] = "old"
	b.fat[x.String()+"/"+layout.EntryFile] = "version 99\n"
	if !b.pi {
		b.fat["loader/entries/rivulet-"+x.String()+"+0-3.conf"] = "version 1\n"
		b.fat["loader/entries/rivulet-"+x.String()+".new"] = "half"
	}
}

// Several images one after the other, good, bad, and dead, on devices with each of the
// loaders, whose power fails between any two writes of the update, its staging and its
// end: something whole boots always, on its own data; a bad one is never taken, a good
// one is, and what an older attempt left behind changes nothing.
func TestPowerMayFailAtEveryStepOfAnImage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := newBoard(t)
		runs := b.until()
		for n := 1; n <= rapid.IntRange(1, 4).Draw(t, "updates"); n++ {
			next := fmt.Sprint("v", n)
			kind := rapid.SampledFrom([]string{"good", "unhealthy", "crashing", "dead", "dark"}).Draw(t, "kind")
			b.tries, b.verdicts = 0, nil
			switch kind {
			case "good":
				for range rapid.IntRange(0, 2).Draw(t, "crashes") {
					b.verdicts = append(b.verdicts, Verdict{Kind: Crashed, Reason: "exit code 1"})
				}
				b.verdicts = append(b.verdicts, Verdict{Kind: Healthy})
			case "unhealthy":
				b.verdicts = []Verdict{{Kind: Unhealthy, Reason: "so it is"}}
			case "crashing":
				b.verdicts = []Verdict{{Kind: Crashed, Reason: "SIGSEGV"}}
			case "dead":
				b.dead[next], b.verdicts = true, []Verdict{{Kind: Healthy}}
			case "dark": // nobody counts on the Pi: docs/design/upgrade.md; and a deaf syslinux is left where it was
				if b.pi || b.deaf {
					kind = "good"
					b.verdicts = []Verdict{{Kind: Healthy}}
					break
				}
				b.dark[next], b.verdicts = true, []Verdict{{Kind: Healthy}}
			}
			if rapid.Bool().Draw(t, "stale") {
				b.stale()
			}
			cuts := rapid.IntRange(0, 3).Draw(t, "cuts")
			some := cuts
			cut := func() {
				if b.cutIn = 0; some > 0 {
					some--
					b.cutIn = rapid.IntRange(1, 40).Draw(t, "cut")
				}
			}
			for {
				cut()
				err := b.stage(n)
				if err == nil {
					break
				}
				if !errors.Is(err, errPower) {
					t.Fatal(err)
				}
				if b.state.Phase == Staged && b.state.Attempt.Next.Name == next {
					break // it was the last write
				}
				if got := b.until(); got != runs {
					t.Fatalf("%s runs after a cut while %s was written, not %s", got, next, runs)
				}
			}
			got := ""
			for got == "" {
				cut()
				got, _ = b.start()
			}
			b.cutIn = 0
			taken := b.state.Last != nil && b.state.Last.OK
			switch {
			case b.state.Phase != Idle || b.state.Last == nil || b.state.Last.Version != next:
				t.Fatalf("%s: %+v", next, b.state)
			case taken != (got == next):
				t.Fatalf("%s runs, %s taken: %v", got, next, taken)
			case taken && (kind != "good" || !b.healthy[next]):
				t.Fatalf("%s is taken and is %s", next, kind)
			case !taken && got != runs:
				t.Fatalf("%s was not taken, %s runs and not %s", next, got, runs)
			case !taken && kind == "good" && (cuts < layout.Tries && !b.lossy || cuts == 0):
				t.Fatalf("%s is good and was not taken after %d cuts: %s", next, cuts, b.state.Last.Reason)
			}
			// It stays so: whatever the loader counts, the next starts come to the same.
			for range 5 {
				if again := b.until(); again != got {
					t.Fatalf("%s ran, %s runs at the next start", got, again)
				}
			}
			runs = got
		}
	})
}

// until starts until something runs.
func (b *board) until() string {
	for {
		b.cutIn = 0
		if got, err := b.start(); got != "" || err != nil {
			return got
		}
	}
}

// The supervisor may end between arming and the restart: that is no failed try.
func TestRestartThatDoesNotComeAtOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := newBoard(t)
		b.until()
		b.verdicts = []Verdict{{Kind: Healthy}}
		if err := b.stage(1); err != nil {
			t.Fatal(err)
		}
		for range rapid.IntRange(1, 4).Draw(t, "starts of the service") {
			if c, err := decide(t.Context(), b, "v0", discard); err != nil || !c.Restart {
				t.Fatalf("%+v %v", c, err)
			}
		}
		if got := b.until(); got != "v1" || !b.state.Last.OK {
			t.Fatalf("%s runs: %+v", got, b.state.Last)
		}
	})
}

// A boot partition that refuses to be written keeps no device down.
func TestLoaderThatCannotBeChanged(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := newBoard(t)
		b.until()
		b.verdicts = []Verdict{{Kind: Healthy}}
		if err := b.stage(1); err != nil {
			t.Fatal(err)
		}
		c, err := decide(t.Context(), readOnly{b}, "v0", discard)
		if err != nil || c.Restart || c.Exit || b.state.Phase != Idle || b.state.Last.OK || !strings.Contains(b.state.Last.Reason, "read-only") {
			t.Fatalf("%+v %v %+v", c, err, b.state)
		}
	})
}

type readOnly struct{ *board }

var errReadOnly = errors.New("read-only file system")

func (readOnly) Arm(Image) error    { return errReadOnly }
func (readOnly) Accept(Image) error { return errReadOnly }
func (readOnly) Reject(Image) error { return errReadOnly }
