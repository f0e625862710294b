// Package lifecycle starts the appliance's components in the order of their needs, restarts failed ones, and stops all
// in reverse order. It reads and writes nothing and has no state across restarts; `rivulet status` shows its
// components, a failure with its cure and the time of the next attempt.
//
//	Waiting ──needs ready──▶ Starting ──Ready()──▶ Ready
//	   ▲                        │ error              │ error
//	   └──────back-off──── Failed ◀──────────────────┘
//
// The contract:
//   - Run of a component is called when all its needs are Ready, and never twice at the same time.
//   - A need that fails later does not stop the components that need it: each of them detects that itself, and
//     continues with what it has. A component that has to be restarted waits for its needs again.
//   - Stopping is in reverse order of the list, one at a time: when a component is stopped, every component that may
//     need it has stopped already, or was abandoned after 20 s.
//   - A component that returns nil without having been stopped has failed.
package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"syscall"
	"time"
)

// State is the state of a component.
type State string

// The states of a component.
const (
	Waiting  State = "Waiting"
	Starting State = "Starting"
	Ready    State = "Ready"
	Failed   State = "Failed"
	Stopped  State = "Stopped"
)

// Component is one part of the appliance.
type Component struct {
	Name string
	// Needs names the components that must be Ready before Run is called; they come
	// earlier in the list.
	Needs []string
	// Run does the work until ctx ends and then returns nil. It calls stage.Ready once it serves. An error is logged
	// once here, and Run is called again after a back-off, unless the error is Fatal. If another program has the port
	// (EADDRINUSE), Run is retried every second and logged once.
	Run func(ctx context.Context, stage *Stage) error
}

// AtOnce is the Run of a component that serves as soon as it runs.
func AtOnce(run func(context.Context) error) func(context.Context, *Stage) error {
	return func(ctx context.Context, stage *Stage) error {
		stage.Ready()
		return run(ctx)
	}
}

// Status is the state of one component with details.
type Status struct {
	Name   string    `json:"name"`
	State  State     `json:"state"`
	Detail string    `json:"detail,omitempty"` // what it waits for, or the last error with its cure
	Since  time.Time `json:"since"`
	// Took and SinceBoot are the times to the first Ready, from the start of the process and of the kernel,
	// nanoseconds. They do not depend on the clock, which may be set in between.
	Took      time.Duration `json:"took,omitempty"`
	SinceBoot time.Duration `json:"sinceBoot,omitempty"`
	Starts    int           `json:"starts"` // number of calls of Run
}

// Stage is a component's access to its own status.
type Stage struct {
	m *Manager
	i int
}

// Log is the component's own.
func (s *Stage) Log() *slog.Logger { return s.m.log.With("component", s.m.comps[s.i].Name) }

// Ready reports that the component serves. It may be called more than once.
func (s *Stage) Ready() { s.m.set(s.i, Ready, "") }

// Waiting sets what the component waits for before it can serve.
func (s *Stage) Waiting(format string, args ...any) {
	s.m.set(s.i, Starting, fmt.Sprintf(format, args...))
}

// Manager runs components.
type Manager struct {
	log    *slog.Logger
	comps  []Component
	uptime func() (process, boot time.Duration)
	grace  time.Duration

	mu     sync.Mutex
	status []Status
	change chan struct{} // closed and replaced on every change
}

// Backoff bounds the pause before a failed component is restarted.
const (
	backoffMin = 500 * time.Millisecond
	backoffMax = 30 * time.Second
	// backoffTaken is the constant pause while another program has the port: an attempt costs nothing, and the user who
	// ends that program waits.
	backoffTaken = time.Second
	// steady is how long a component must have run for the back-off to be reset.
	steady = time.Minute
	// grace is how long a component may take to stop.
	grace = 20 * time.Second
)

// New checks that every need is satisfied by an earlier component.
func New(log *slog.Logger, comps ...Component) (*Manager, error) {
	m := &Manager{log: log, comps: comps, uptime: Uptime, grace: grace, change: make(chan struct{})}
	begun := time.Now()
	seen := map[string]bool{}
	for _, c := range comps {
		for _, n := range c.Needs {
			if !seen[n] {
				return nil, fmt.Errorf("lifecycle: %s needs %s, which is not started before it", c.Name, n)
			}
		}
		if seen[c.Name] {
			return nil, fmt.Errorf("lifecycle: two components are named %s", c.Name)
		}
		seen[c.Name] = true
		m.status = append(m.status, Status{Name: c.Name, State: Waiting, Since: begun})
	}
	return m, nil
}

// Run starts everything and blocks until ctx ends; then it stops the components in reverse order.
func (m *Manager) Run(ctx context.Context) {
	cancels := make([]context.CancelFunc, len(m.comps))
	done := make([]chan struct{}, len(m.comps))
	for i := range m.comps {
		// Not a child of ctx, because components are stopped in order.
		cctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		cancels[i], done[i] = cancel, make(chan struct{})
		go func() {
			defer close(done[i])
			m.keep(cctx, i)
		}()
	}
	<-ctx.Done()
	for i := len(m.comps) - 1; i >= 0; i-- {
		cancels[i]()
		select {
		case <-done[i]:
		case <-time.After(m.grace):
			m.log.Warn("component does not stop; going on without it", "component", m.comps[i].Name)
		}
	}
}

// keep runs one component until ctx ends.
func (m *Manager) keep(ctx context.Context, i int) {
	c := m.comps[i]
	pause, said := backoffMin, ""
	for {
		if !m.waitNeeds(ctx, i) {
			m.set(i, Stopped, "")
			return
		}
		started := time.Now()
		m.started(i)
		err := c.Run(ctx, &Stage{m, i})
		if ctx.Err() != nil {
			m.set(i, Stopped, "")
			return // stopped: its error is no failure
		}
		if time.Since(started) > steady {
			pause = backoffMin
		}
		if err == nil {
			err = errors.New("ended by itself")
		}
		taken := errors.Is(err, syscall.EADDRINUSE)
		if taken {
			pause = backoffTaken
		}
		if !taken || err.Error() != said {
			m.log.Error("component failed", "component", c.Name, "err", err, "again_in", pause)
		}
		said = err.Error()
		m.set(i, Failed, fmt.Sprintf("%v (again in %s)", err, pause))
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, backoffMax)
	}
}

// waitNeeds blocks until all needs are Ready; it reports false if ctx ended.
func (m *Manager) waitNeeds(ctx context.Context, i int) bool {
	for {
		if ctx.Err() != nil {
			return false
		}
		m.mu.Lock()
		missing := ""
		for _, n := range m.comps[i].Needs {
			for _, s := range m.status {
				if s.Name == n && s.State != Ready && missing == "" {
					missing = n
				}
			}
		}
		change := m.change
		m.mu.Unlock()
		if missing == "" {
			return true
		}
		m.set(i, Waiting, "for "+missing)
		select {
		case <-ctx.Done():
		case <-change:
		}
	}
}

func (m *Manager) started(i int) {
	m.mu.Lock()
	m.status[i].Starts++
	m.mu.Unlock()
	m.set(i, Starting, "")
}

func (m *Manager) set(i int, state State, detail string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := &m.status[i]
	if s.State == state && s.Detail == detail {
		return
	}
	if s.State != state {
		s.Since = time.Now()
		if state == Ready {
			process, boot := m.uptime()
			if s.Took == 0 {
				s.Took, s.SinceBoot = process, boot
			}
			m.log.Info("ready", "component", s.Name, "after", process.Round(time.Millisecond))
		}
	}
	s.State, s.Detail = state, detail
	close(m.change)
	m.change = make(chan struct{})
}

// Status returns a snapshot in start order.
func (m *Manager) Status() []Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]Status(nil), m.status...)
}

// Changed returns a channel that is closed at the next change.
func (m *Manager) Changed() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.change
}
