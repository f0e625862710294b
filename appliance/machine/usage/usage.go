// Package usage measures Rivulet's use of the machine: memory of its processes and writes to the card, compared with
// budgets. It reads /proc of those processes and the counters of the state folder's disk every 10 min, and memory on
// request, at most every 10 s (summing up the engine's pages takes milliseconds). It writes nothing. Restart: the day
// begins again. Failure: a long excess over a budget is a problem; unreadable values are left out.
package usage

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"rivulet/appliance/health"
	"rivulet/fabric/changes"
	"rivulet/fabric/peer"
)

// Budgets, bytes, of DESIGN §7.
const (
	BudgetSupervisor = 60e6  // supervisor and tunnel together
	BudgetPeer       = 1e6   // added by each peer
	BudgetWritten    = 250e6 // a day, by all of Rivulet's processes, on an idle device
	BudgetSmallBoard = 450e6 // all of Rivulet's processes, on a board of 1 GB
	smallBoard       = 1.5e9 // bytes of RAM up to which a board counts as small
)

const (
	sampleEvery = 10 * time.Minute
	keptFor     = 24 * time.Hour
	// judgedAfter is how long writes are measured before they can be a problem: a start, a new image or an afternoon of
	// work are none.
	judgedAfter = 6 * time.Hour
	// heavyAfter is how long memory must exceed the budget by more than a quarter before it is a problem: a start on a
	// slow card or an update is none, a leak is one in time.
	heavyAfter = time.Hour
	freshFor   = 10 * time.Second
)

// Process is one of Rivulet's.
type Process struct {
	Name string `json:"name"`
	PID  int    `json:"pid"`
	// PSS is its part of the machine's memory, bytes, with shared pages divided among their processes. Private is what
	// its end would free.
	PSS     uint64 `json:"pss"`
	Private uint64 `json:"private"`
	// CPU is its time on all processors since its start, nanoseconds.
	CPU time.Duration `json:"cpu"`
}

// Writes are those to the card in the measured time.
type Writes struct {
	Bytes uint64        `json:"bytes"`
	Over  time.Duration `json:"over"`
}

// PerDay extrapolates the writes to a day, bytes.
func (w Writes) PerDay() float64 {
	if w.Over <= 0 {
		return 0
	}
	return float64(w.Bytes) / w.Over.Hours() * 24
}

// Report is the part of `rivulet status` about usage.
type Report struct {
	Processes []Process `json:"processes"`
	// Written is by Rivulet's processes, Disk by everything on the machine, to the disk of the state folder, over the
	// last day or since the supervisor's start.
	Written  Writes `json:"written"`
	Disk     Writes `json:"disk"`
	DiskName string `json:"diskName,omitempty"`
}

// PSS sums the memory of the named processes; of all without a name.
func (r Report) PSS(names ...string) (sum uint64) {
	for _, p := range r.Processes {
		if len(names) == 0 {
			sum += p.PSS
		}
		for _, n := range names {
			if p.Name == n {
				sum += p.PSS
			}
		}
	}
	return sum
}

// Config is the input of New.
type Config struct {
	// PIDs returns the process IDs of supervisor, engine and tunnel by these names.
	PIDs func() map[string]int
	// Peers are the known clusters; connected ones have a budget.
	Peers    func() []peer.View
	StateDir string
	RAM      uint64 // bytes
	Health   *health.Tracker
	Log      *slog.Logger
}

// Watch has the counters of the last day.
type Watch struct {
	cfg  Config
	proc string // path of /proc
	now  func() time.Time

	mu      sync.Mutex
	own     meter
	history []sample
	weighed time.Time
	weights []Process
	heavy   time.Time // start of the excess over the memory budget; zero if there is none
}

// sample is what was written until at, since the Watch began.
type sample struct {
	at        time.Time
	own, disk uint64
}

// New returns a Watch; Run starts it.
func New(cfg Config) *Watch { return &Watch{cfg: cfg, proc: "/proc", now: time.Now} }

// Run takes a sample now and every 10 min until ctx ends.
func (w *Watch) Run(ctx context.Context) {
	w.sample()
	for changes.Wait(ctx, sampleEvery) {
		w.sample()
		w.evaluate(w.Report())
	}
}

func (w *Watch) sample() {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := w.now()
	w.history = append(w.history, w.read(at))
	for len(w.history) > 1 && at.Sub(w.history[1].at) >= keptFor {
		w.history = w.history[1:]
	}
}

// read must be called with mu held.
func (w *Watch) read(at time.Time) sample {
	s := sample{at: at, own: w.own.add(w.counters())}
	_, s.disk, _ = diskWritten(w.cfg.StateDir)
	return s
}

// counters are the bytes that each process has written since its start.
func (w *Watch) counters() map[int]uint64 {
	out := map[int]uint64{}
	for _, pid := range w.pids() {
		if n, err := written(w.proc, pid); err == nil {
			out[pid] = n
		}
	}
	return out
}

// pids are those of the configuration, and containerd, the engine's child.
func (w *Watch) pids() map[string]int {
	pids := w.cfg.PIDs()
	if e := pids["engine"]; e != 0 {
		if c := child(w.proc, e, "containerd"); c != 0 {
			pids["containerd"] = c
		}
	}
	return pids
}

// Report returns the present values.
func (w *Watch) Report() Report {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := w.now()
	if at.Sub(w.weighed) >= freshFor {
		w.weighed, w.weights = at, w.weigh()
	}
	r := Report{Processes: w.weights}
	r.DiskName, _, _ = diskWritten(w.cfg.StateDir)
	if len(w.history) == 0 {
		return r
	}
	first, last := w.history[0], w.read(at)
	r.Written = Writes{last.own - first.own, at.Sub(first.at)}
	if r.DiskName != "" && last.disk >= first.disk {
		r.Disk = Writes{last.disk - first.disk, at.Sub(first.at)}
	}
	return r
}

func (w *Watch) weigh() (out []Process) {
	pids := w.pids()
	for _, name := range []string{"supervisor", "tunnel", "engine", "containerd"} {
		pid, ok := pids[name]
		if !ok {
			continue
		}
		if p, err := memoryOf(w.proc, pid); err == nil {
			p.Name, p.PID, p.CPU = name, pid, cpuOf(w.proc, pid)
			out = append(out, p)
		}
	}
	return out
}

// evaluate reports what is over its budget, and clears what is not.
func (w *Watch) evaluate(r Report) {
	if problem, cure := w.tooMuch(r); problem == "" {
		w.heavy = time.Time{}
		w.cfg.Health.Clear(health.MemoryOverBudget)
	} else if at := w.now(); w.heavy.IsZero() {
		w.heavy = at
	} else if at.Sub(w.heavy) >= heavyAfter {
		w.cfg.Health.Set(health.MemoryOverBudget, problem, cure)
	}
	w.cfg.Health.SetIf(r.Written.Over >= judgedAfter && r.Written.PerDay() > BudgetWritten, health.WritesOverBudget,
		fmt.Sprintf("%.0f MB a day, promised are %.0f when nobody uses the device", r.Written.PerDay()/1e6, BudgetWritten/1e6),
		"see which objects change all the time: rivulet kubectl get events -A -w; programs that elect leaders or write status often wear out an SD card")
}

// tooMuch returns the problem with the memory in use, and its cure.
func (w *Watch) tooMuch(r Report) (problem, cure string) {
	above := func(sum, limit uint64) bool { return sum > limit+limit/4 }
	limit := uint64(BudgetSupervisor)
	for _, p := range w.cfg.Peers() {
		if p.State == peer.Connected {
			limit += BudgetPeer
		}
	}
	switch sum, all := r.PSS("supervisor", "tunnel"), r.PSS(); {
	case above(sum, limit):
		return fmt.Sprintf("supervisor and tunnel take %d MB, promised are %d", sum/1e6, limit/1e6),
			"end and start rivulet when it suits (pods go on), and please report it with: rivulet support"
	case w.cfg.RAM > 0 && w.cfg.RAM < smallBoard && above(all, BudgetSmallBoard):
		return fmt.Sprintf("Rivulet takes %d MB, on a board of 1 GB promised are %d", all/1e6, uint64(BudgetSmallBoard/1e6)),
			"offload namespaces to a larger device (rivulet offload NAMESPACE), or keep fewer objects in this cluster"
	}
	return "", ""
}
