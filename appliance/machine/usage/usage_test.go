package usage

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rivulet/appliance/health"
	"rivulet/fabric/peer"
)

func write(t *testing.T, content string, path ...string) {
	t.Helper()
	p := filepath.Join(path...)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// world is a /proc with a supervisor, a tunnel, an engine and its containerd.
type world struct {
	t    *testing.T
	proc string
	at   time.Time
	*Watch
	problems health.Tracker
}

func newWorld(t *testing.T, ram uint64) *world {
	w := &world{t: t, proc: t.TempDir(), at: time.Unix(1e9, 0)}
	w.Watch = New(Config{
		PIDs:  func() map[string]int { return map[string]int{"supervisor": 10, "tunnel": 11, "engine": 12} },
		Peers: func() []peer.View { return []peer.View{{State: peer.Lost}, {State: peer.Connected}} }, StateDir: t.TempDir(), RAM: ram, Health: &w.problems, Log: slog.New(slog.DiscardHandler),
	})
	w.Watch.proc, w.now = w.proc, func() time.Time { return w.at }
	for pid, of := range map[string]struct{ stat, cmdline string }{
		"13": {"13 (rivulet (x) y) S 12 1 1", "containerd \x00-c\x00/etc/x\x00"}, // k3s rewrites its title
		"14": {"14 (containerd) S 99 1 1", "containerd\x00"},                     // of another engine
		"15": {"15 (iptables) S 12 1 1", "iptables\x00-L\x00"},
	} {
		write(t, of.stat, w.proc, pid, "stat")
		write(t, of.cmdline, w.proc, pid, "cmdline")
	}
	for pid, mb := range map[int]uint64{10: 40, 11: 10, 12: 250, 13: 30} {
		w.memory(pid, mb)
		w.wrote(pid, 0)
	}
	return w
}

func (w *world) memory(pid int, mb uint64) {
	write(w.t, fmt.Sprintf("Rss: 9 kB\nPss: %d kB\nPss_Anon: 1 kB\nPrivate_Clean: 1 kB\nPrivate_Dirty: 2 kB\n", mb*1e6/1024), w.proc, fmt.Sprint(pid), "smaps_rollup")
}

func (w *world) wrote(pid int, bytes uint64) {
	write(w.t, fmt.Sprintf("rchar: 7\nwrite_bytes: %d\ncancelled_write_bytes: 1000\n", bytes+1000), w.proc, fmt.Sprint(pid), "io")
}

func (w *world) pass(d time.Duration) Report {
	for end := w.at.Add(d); w.at.Before(end); {
		w.at = w.at.Add(sampleEvery)
		w.sample()
		w.evaluate(w.Report())
	}
	return w.Report()
}

func (w *world) codes() (out []string) {
	for _, p := range w.problems.Problems() {
		out = append(out, p.Code)
	}
	return out
}

func TestReport(t *testing.T) {
	w := newWorld(t, 8e9)
	w.wrote(12, 35e6) // at the start: not counted
	w.sample()
	w.wrote(12, 55e6)
	w.wrote(13, 5e6)
	r := w.pass(6 * time.Hour)
	if len(r.Processes) != 4 || r.Processes[3].Name != "containerd" || r.Processes[3].PID != 13 {
		t.Errorf("%+v", r.Processes)
	}
	if mb := r.PSS() / 1e6; mb < 329 || mb > 330 {
		t.Errorf("%d MB in all", mb)
	}
	if r.Written.Bytes != 25e6 || r.Written.PerDay() != 100e6 {
		t.Errorf("%+v: %.0f a day", r.Written, r.Written.PerDay())
	}
	if c := w.codes(); c != nil {
		t.Errorf("problems %v", c)
	}
}

// The day moves on: what was written before it is forgotten.
func TestOnlyTheLastDayCounts(t *testing.T) {
	w := newWorld(t, 8e9)
	w.sample()
	w.wrote(12, 900e6)
	if r := w.pass(12 * time.Hour); r.Written.Bytes != 900e6 {
		t.Errorf("%+v", r.Written)
	}
	if c := w.codes(); len(c) != 1 || c[0] != "writes-over-budget" {
		t.Errorf("problems %v", c)
	}
	w.wrote(12, 910e6)
	if r := w.pass(24 * time.Hour); r.Written.Bytes > 10e6 || r.Written.Over > keptFor+sampleEvery {
		t.Errorf("%+v", r.Written)
	}
	if c := w.codes(); c != nil {
		t.Errorf("problems %v", c)
	}
}

func TestAnHourOfWorkIsNoProblem(t *testing.T) {
	w := newWorld(t, 8e9)
	w.sample()
	w.wrote(12, 900e6)
	if w.pass(time.Hour); w.codes() != nil {
		t.Errorf("problems %v", w.codes())
	}
}

func TestMemoryOverBudget(t *testing.T) {
	for _, c := range []struct {
		what               string
		ram                uint64
		supervisor, engine uint64
		want               bool
	}{
		{"as promised", 8e9, 50, 300, false},
		{"a little more", 8e9, 60, 300, false},
		{"supervisor too large", 8e9, 75, 300, true},
		{"large engine on a large board", 8e9, 40, 900, false},
		{"large engine on a small board", 0.95e9, 40, 530, true},
		{"as promised on a small board", 0.95e9, 40, 300, false},
	} {
		w := newWorld(t, c.ram)
		w.memory(10, c.supervisor)
		w.memory(12, c.engine)
		w.pass(sampleEvery)
		if w.pass(heavyAfter - sampleEvery); w.codes() != nil {
			t.Errorf("%s: too early: %v", c.what, w.codes())
		}
		w.pass(sampleEvery)
		if got := len(w.codes()) == 1; got != c.want {
			t.Errorf("%s: %v", c.what, w.problems.Problems())
		}
		w.memory(10, 30)
		w.memory(12, 200)
		if w.pass(sampleEvery); w.codes() != nil {
			t.Errorf("%s: not taken back: %v", c.what, w.codes())
		}
	}
}

func TestMeterOfProcessesThatComeAndGo(t *testing.T) {
	var m meter
	for i, c := range []struct {
		now  map[int]uint64
		want uint64
	}{
		{map[int]uint64{1: 100, 2: 50}, 0}, // before we looked
		{map[int]uint64{1: 110, 2: 50}, 10},
		{map[int]uint64{1: 110, 3: 7}, 17}, // 2 ended, 3 is new
		{map[int]uint64{1: 5, 3: 7}, 22},   // 1 is another process now
		{nil, 22},
		{map[int]uint64{4: 1}, 23},
	} {
		if got := m.add(c.now); got != c.want {
			t.Errorf("step %d: %d, want %d", i, got, c.want)
		}
	}
}

func TestDiskOfAPartition(t *testing.T) {
	sys := t.TempDir()
	write(t, "1 2 3 4 5 6 2000 8", sys, "devices/mmcblk0/stat")
	write(t, "1 2 3 4 5 6 10 8", sys, "devices/mmcblk0/mmcblk0p2/stat")
	write(t, "2\n", sys, "devices/mmcblk0/mmcblk0p2/partition")
	if err := os.Symlink("devices/mmcblk0/mmcblk0p2", filepath.Join(sys, "179:2")); err != nil {
		t.Fatal(err)
	}
	if name, n, err := diskOf(sys, 179, 2); name != "mmcblk0" || n != 2000*512 || err != nil {
		t.Errorf("%s %d %v", name, n, err)
	}
	if name, _, err := diskOf(sys, 0, 33); name != "" || err == nil {
		t.Errorf("a file system without a disk has %q", name)
	}
}

func TestOfThisProcess(t *testing.T) {
	p, err := memoryOf("/proc", os.Getpid())
	if err != nil || p.PSS < 1<<20 || p.Private > p.PSS {
		t.Errorf("%+v %v", p, err)
	}
	if _, err := written("/proc", os.Getpid()); err != nil {
		t.Error(err)
	}
	var used unix.Rusage
	for used.Utime.Sec+used.Stime.Sec == 0 && used.Utime.Usec+used.Stime.Usec < 50_000 { // some ticks
		if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
			t.Fatal(err)
		}
	}
	want := time.Duration(used.Utime.Nano() + used.Stime.Nano())
	if got := cpuOf("/proc", os.Getpid()); got < want-5*tick || got > want+time.Second {
		t.Errorf("CPU time is %s, the kernel counts %s", got, want)
	}
	if got := cpuOf("/proc", 4194305); got != 0 {
		t.Errorf("a process that is not there has %s", got)
	}
}

func TestPIDsAreThoseOfLivingProcesses(t *testing.T) {
	run := t.TempDir()
	if err := WritePID(run); err != nil {
		t.Fatal(err)
	}
	write(t, "4194305\n", run, "engine.pid") // above the kernel's greatest
	write(t, "x\n", run, "tunnel.pid")
	if got := PIDs(run); len(got) != 1 || got["supervisor"] != os.Getpid() {
		t.Errorf("%v", got)
	}
}
