package vcluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"rivulet/appliance/engine/controlplane"
	"rivulet/fabric/changes"
	"rivulet/offload/offer"
)

// cluster is one virtual cluster.
//
//	        request, create, resume
//	Asleep ──────────────▶ Starting ──usable──▶ Awake
//	  ▲  ▲                  │    ▲                │ │
//	  │  └─the next request─┤    └── killed ──────┘ │
//	  │                     ▼                       │
//	  │  Paused ◀─pause   Failed                    │
//	  └────────── unused: exit code 0 ──────────────┘
type cluster struct {
	k    *Manager
	name string
	port uint16
	done chan struct{} // closed when run has returned
	gone bool          // deleted; read after done
	poke chan struct{} // receives when the record changed or a start is requested

	mu   sync.Mutex
	rec  record
	want bool // a start is due
	// work: the start is for its own due work only; requested: it is for a user's request, and comes before others.
	work, requested bool
	// forced: its process has the signal to sleep, in use or not.
	forced bool
	// yields is since when its process is to end once it is unused, because another needs the memory; zero: it is not.
	yields time.Time
	waits  bool // for memory
	state  State
	reason string
	since  time.Time
	proc   *process
	took   time.Duration
	// changed is closed at the next change.
	changed chan struct{}
	errands []errand

	debt    debt
	used    atomic.Value // use
	certs   sync.Mutex
	copying sync.Mutex    // held while a snapshot is made
	host    *http.Server  // used by run only; nil: no access to the host
	hostEnd func()        // ends the connections of host
	toPods  chan struct{} // one element for each connection to a pod
}

func newCluster(k *Manager, r record) *cluster {
	return &cluster{k: k, name: r.Name, port: r.Port, rec: r, done: make(chan struct{}), poke: make(chan struct{}, 1), toPods: make(chan struct{}, maxToPods), changed: make(chan struct{}), state: Starting, since: time.Now()}
}

func (c *cluster) record() record { c.mu.Lock(); defer c.mu.Unlock(); return c.rec }

func (c *cluster) dir() string       { return filepath.Join(c.k.folder(), c.name) }
func (c *cluster) rootDir() string   { return filepath.Join(c.dir(), "root") }
func (c *cluster) tlsDir() string    { return filepath.Join(c.rootDir(), controlplane.TLS) }
func (c *cluster) dataDir() string   { return filepath.Join(c.rootDir(), controlplane.Data) }
func (c *cluster) secretDir() string { return filepath.Join(c.dir(), "secret") }
func (c *cluster) logFile() string   { return filepath.Join(c.dir(), "control-plane.log") }
func (c *cluster) pidFile() string   { return filepath.Join(c.k.cfg.Run, "vcluster-"+c.name+".pid") }

// KubeconfigFile is the path of root's kubeconfig for `rivulet vcluster kubectl`; it is deleted with the virtual
// cluster.
func KubeconfigFile(run, name string) string {
	return filepath.Join(run, "vcluster-"+name+".kubeconfig")
}

func (c *cluster) address() netip.AddrPort {
	return netip.AddrPortFrom(c.k.cfg.Address, c.port)
}

func (c *cluster) set(s State, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == s && c.reason == reason {
		return
	}
	if c.state != s {
		c.since = time.Now()
		c.k.cfg.Log.Info("virtual cluster", "name", c.name, "state", s, "reason", reason)
	}
	c.state, c.reason = s, reason
	c.k.states.Notify()
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *cluster) watch() (View, <-chan struct{}) {
	c.mu.Lock()
	changed := c.changed
	c.mu.Unlock()
	return c.brief(), changed
}

// brief is the view without measured values.
func (c *cluster) brief() View {
	c.mu.Lock()
	defer c.mu.Unlock()
	used, _ := c.used.Load().(use)
	v := View{Spec: c.rec.withDefaults(), Owner: c.rec.Owner, Paused: c.rec.Paused, State: c.state, Reason: c.reason, Since: c.since, Address: c.address(), Created: c.rec.Created, Took: c.took, Consumed: c.rec.Consumed, LastUse: used.at, LastUser: used.by, WaitsForMemory: c.waits}
	if c.proc != nil {
		v.PID, v.Old = c.proc.pid, c.proc.old
	}
	switch {
	case v.State == Deleting:
	case c.rec.Paused:
		v.State, v.Reason = Paused, "" // or soon: its process ends
	case c.want && v.State != Awake:
		v.State = Starting // a start is due
	}
	return v
}

// view has free, how many more may be awake now.
func (c *cluster) view(free int) View {
	v, id := c.brief(), c.record().ID
	v.Room = free
	if host := c.k.host.Load(); host != nil {
		v.Use = (*host).Use(id)
		v.Pods = int(v.Use.Pods().Value())
	}
	if v.PID != 0 {
		v.Private = memoryOf(v.PID)
	}
	v.Stored = c.stored()
	if share := v.Stored * 100 / v.Datastore; share >= nearlyFull && v.Reason == "" {
		v.Reason = fmt.Sprintf("its datastore is %d %% full: delete what is not needed inside, or give it more: rivulet vcluster set %s --datastore %dMi", share, c.name, 2*v.Datastore>>20)
	}
	_ = filepath.WalkDir(c.dataDir(), func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if info, err := d.Info(); err == nil {
				v.Disk += info.Size()
			}
		}
		return nil
	})
	return v
}

func (c *cluster) nudge() {
	changes.Poke(c.poke)
}

// wake starts it without a request of a client.
func (c *cluster) wake() {
	c.mu.Lock()
	c.want, c.work = c.state != Awake, false
	c.mu.Unlock()
	c.nudge()
}

// request notes that a user asks for it; a start is for that from now on.
func request(c *cluster) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requested, c.work = c.state != Awake, false
}

// withdraw takes back a start that waits for memory.
func withdraw(c *cluster) {
	c.mu.Lock()
	waits := c.waits
	if waits {
		c.want, c.requested, c.work = false, false, false
	}
	c.mu.Unlock()
	if waits {
		c.debt.paid()
		if r, now := c.record(), time.Now(); !r.Due.IsZero() && r.Due.Before(now) {
			c.setDue(now.Add(failedRest), r.Seen)
		}
		c.nudge()
	}
}

// recalled reports whether a start that waits is given up: another state is asked for, or an errand comes first.
func recalled(c *cluster) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rec.Paused || c.rec.Deleting || len(c.errands) > 0 || !c.want
}

// use is the last one that the supervisor knows.
type use struct {
	at time.Time
	by string
}

// change writes a changed record and notifies run.
func (c *cluster) change(f func(*record)) error {
	if err := c.keepRecord(f); err != nil {
		return err
	}
	c.nudge()
	return nil
}

func (c *cluster) keepRecord(f func(*record)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := c.rec
	f(&next)
	if err := c.k.save(next); err != nil {
		return err
	}
	c.rec = next
	return nil
}

// run manages the virtual cluster until ctx ends or it is deleted.
func (c *cluster) run(ctx context.Context) {
	proc, listener, err := adopt(c.pidFile(), c.rootDir())
	if err == nil {
		proc.logStart = max(0, c.logSize()-4096)
		proc.old = !sameFile(fmt.Sprintf("/proc/%d/exe", proc.pid), c.k.cfg.Executable)
		c.k.cfg.Log.Info("a virtual cluster that runs is found again", "name", c.name, "pid", proc.pid, "old", proc.old)
	} else if !errors.Is(err, fs.ErrNotExist) {
		c.k.cfg.Log.Info("a virtual cluster does not run any more", "name", c.name, "err", err)
	}
	_ = os.RemoveAll(c.copyDir()) // left by a killed supervisor
	defer func() {
		c.closeHost()
		if listener != nil {
			listener.Close()
		}
		if proc != nil && proc.reports != nil {
			proc.reports.Close()
		}
	}()
	var awake time.Time // when it became usable
	var turn bool       // has a turn already
	for pause := time.Duration(0); ; {
		if e, ok := c.errand(); ok {
			if proc != nil {
				c.set(Starting, "it starts again after "+e.what)
				c.endProcess(ctx, proc)
				proc = nil
				c.wake()
			}
			e.done <- e.do()
			continue
		}
		r := c.record()
		switch {
		case r.Deleting, r.Paused:
			if turn {
				<-c.k.turns
				turn = false
			}
			if proc != nil {
				c.endProcess(ctx, proc)
				proc = nil
			}
			c.k.room.leave(c)
			c.closeHost()
			if listener != nil { // clients are refused at once
				listener.Close()
				listener = nil
			}
			if r.Deleting {
				c.set(Deleting, "")
				err := c.evict(ctx)
				if err == nil {
					err = c.remove()
				}
				if err == nil {
					c.gone = true
					return
				}
				c.set(Deleting, err.Error())
				if !c.wait(ctx, c.k.pace.longWait) {
					return
				}
				continue
			}
			c.set(Paused, "")
			if !c.wait(ctx, 0) {
				return
			}
			continue
		}
		if listener == nil {
			if listener, err = listen(c.address()); err != nil {
				c.failed(fmt.Errorf("port %d: %w; another program has it", r.Port, err))
				if !c.wait(ctx, c.k.pace.longWait) {
					return
				}
				continue
			}
		}
		if proc == nil || !proc.usable() {
			if proc == nil && !c.awaitUse(ctx, listener) {
				if ctx.Err() != nil {
					return
				}
				continue
			}
			stop := c.hold(listener)
			if proc == nil && !c.k.room.await(ctx, c) || !turn && !c.turn(ctx) {
				stop()
				if ctx.Err() != nil {
					return
				}
				continue
			}
			if proc == nil {
				proc, err = c.start(ctx, listener)
			} else { // adopted while it started
				proc, err = c.started(ctx, proc, time.Now())
			}
			<-c.k.turns
			turn = false
			stop()
			if ctx.Err() != nil {
				return
			}
			awake = time.Now()
			if err != nil {
				c.failed(err)
				refuse(listener) // otherwise they would wait for ever
				pause = min(max(2*pause, c.k.pace.firstWait), c.k.pace.longWait)
				if !c.wait(ctx, pause) {
					return
				}
				continue
			}
		}
		if err := c.openHost(); err != nil { // of an adopted process
			c.k.cfg.Log.Warn("pods of a virtual cluster do not run", "name", c.name, "err", err)
		}
		c.mu.Lock()
		c.proc, c.want, c.requested = proc, false, false
		yields := c.yields
		c.mu.Unlock()
		c.k.room.usable(c)
		if !yields.IsZero() {
			proc.endIdle()
		}
		c.debt.paid()
		var due <-chan time.Time
		var turns chan<- struct{} // to replace the process
		if by, why := proc.replaceBy(c.k.cfg.Executable, c.pki().renewAt(), c.k.pace.replace); why == "" {
			c.set(Awake, "")
		} else {
			proc.endIdle()
			c.set(Awake, why+"; it is replaced once nobody uses it, at the latest at "+by.UTC().Format(time.DateTime))
			if left := time.Until(by); left > 0 {
				due = time.After(left)
			} else {
				turns = c.k.turns
			}
		}
		select {
		case <-ctx.Done():
			return // the process continues
		case <-due:
		case turns <- struct{}{}:
			turn = true
			c.set(Starting, "it is replaced by a new process")
			c.endProcess(ctx, proc)
			proc = nil
			c.wake()
		case <-c.poke:
		case <-time.After(logLook):
			boundLog(c.logFile())
		case <-proc.ended:
			crashed := c.ended(proc)
			proc = nil
			switch {
			case !crashed || time.Since(awake) >= steady:
				pause = 0
			default:
				pause = min(max(2*pause, c.k.pace.firstWait), c.k.pace.longWait)
				stop := c.hold(listener)
				more := c.wait(ctx, pause)
				stop()
				if !more {
					return
				}
			}
		}
	}
}

// turn waits for a turn to start, in the order of requests, and returns false when ctx ends or the start is recalled. There
// are as many turns as cores: a start takes one core for 1 to 2 s, and more at once would exceed the start time limits
// of the control plane's parts and the watchdog of the engine.
func (c *cluster) turn(ctx context.Context) bool {
	select {
	case c.k.turns <- struct{}{}:
		return true
	default:
	}
	c.set(Starting, "others start before it")
	for {
		select {
		case c.k.turns <- struct{}{}:
			return true
		case <-c.poke:
			if recalled(c) {
				return false
			}
		case <-ctx.Done():
			return false
		}
	}
}

// errand is work that is done while no process runs.
type errand struct {
	what string
	do   func() error
	done chan error // receives the result
}

func (c *cluster) errand() (e errand, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.errands) == 0 {
		return e, false
	}
	e, c.errands = c.errands[0], c.errands[1:]
	return e, true
}

// still stops the process, calls do, and starts the process again if it ran. Requests wait meanwhile.
func (c *cluster) still(ctx context.Context, what string, do func() error) error {
	e := errand{what, do, make(chan error, 1)}
	c.mu.Lock()
	c.errands = append(c.errands, e)
	c.mu.Unlock()
	c.nudge()
	select {
	case err := <-e.done:
		return err
	case <-c.done:
		return errors.New("rivulet stops, or the virtual cluster is deleted; see: rivulet vcluster list")
	case <-ctx.Done():
		return ctx.Err()
	}
}

// awaitUse returns true when the process has to start: for a waiting request, or because a caller wants it.
func (c *cluster) awaitUse(ctx context.Context, l *os.File) bool {
	c.mu.Lock()
	want, state := c.want, c.state
	c.work = c.work && want
	c.mu.Unlock()
	if want {
		return true
	}
	c.k.room.leave(c)
	if state != Failed {
		c.set(Asleep, "")
	}
	c.compare()
	came := make(chan error, 1)
	_ = l.SetReadDeadline(time.Time{})
	go func() { came <- awaitReadable(l) }()
	look := time.NewTimer(c.untilDue())
	defer look.Stop()
	due := false
	select {
	case err := <-came:
		return err == nil && begins(c, false)
	case <-look.C:
		c.compare() // it may be as it was
		due = c.untilDue() <= 0
		c.debt.begin()
	case <-c.poke:
	case <-ctx.Done():
	}
	_ = l.SetReadDeadline(time.Now())
	if err := <-came; err == nil {
		return begins(c, false)
	}
	return due && begins(c, true)
}

// begins notes that a start is due, for a request or for due work, until it is usable, fails or is withdrawn.
func begins(c *cluster, due bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.work = due && !c.want
	c.want, c.requested = true, c.requested || !due
	return true
}

// untilDue is how long it may sleep. It is at most one minute, because the clock may be set.
func (c *cluster) untilDue() time.Duration {
	wait := time.Minute
	for _, at := range []time.Time{c.record().Due, c.debt.due()} {
		if !at.IsZero() {
			wait = min(wait, time.Until(at))
		}
	}
	return max(wait, 0)
}

// compare schedules a start while its pods at the host are in another state than when it fell asleep.
func (c *cluster) compare() {
	pods := c.k.pods.Load()
	if pods == nil {
		return
	}
	r := c.record()
	now, known := (*pods).StateOf(r.ID)
	c.mu.Lock()
	sleeps := c.proc == nil && !c.rec.Paused && c.state != Failed
	c.mu.Unlock()
	switch {
	case !known || !sleeps:
	case r.Seen == offer.PodsState{}: // of a version that did not write it
		if err := c.keepRecord(func(r *record) { r.Seen = now }); err != nil {
			c.k.cfg.Log.Warn("the state of a virtual cluster's pods is not written", "name", c.name, "err", err)
		}
	default:
		c.debt.compare(now, r.Seen, c.k.pace.debt)
	}
}

// setDue stores when it has to run again, and which state of its pods it knows.
func (c *cluster) setDue(at time.Time, seen offer.PodsState) {
	if r := c.record(); r.Due.Equal(at) && r.Seen == seen {
		return
	}
	if err := c.keepRecord(func(r *record) { r.Due, r.Seen = at, seen }); err != nil {
		c.k.cfg.Log.Warn("when a virtual cluster is due again is not written", "name", c.name, "err", err)
	}
}

// start starts the process and returns when it is usable.
func (c *cluster) start(ctx context.Context, l *os.File) (*process, error) {
	began := time.Now()
	c.set(Starting, "")
	if err := c.certificates(); err != nil {
		return nil, err
	}
	r := c.record()
	if err := c.folders(r.UID); err != nil {
		return nil, err
	}
	if err := c.openHost(); err != nil {
		return nil, err
	}
	c.mu.Lock()
	work := c.work
	c.work, c.forced = false, false
	c.mu.Unlock()
	if r.Due.IsZero() || r.Due.After(began) { // in case the next supervisor finds neither the process nor its report: work may be due
		c.setDue(began, r.Seen)
	}
	from := c.logSize()
	p, err := launch{
		executable: c.k.cfg.Executable, dir: c.rootDir(), log: c.logFile(), pidFile: c.pidFile(), listener: l, memory: r.Memory,
		settings: controlplane.Settings{Name: r.Name, ID: string(r.ID), UID: r.UID, Idle: r.Sleep, WatchKeepsAwake: r.WatchKeepsAwake, Work: work, Datastore: r.datastore(), Advertise: c.address(), DNS: c.k.cfg.DNS, ServiceCIDR: c.k.cfg.Services.String(), PodCIDR: c.k.cfg.Pods.String()},
	}.start()
	if err != nil {
		return nil, err
	}
	p.logStart = from
	return c.started(ctx, p, began)
}

// started waits until the process p, which started at began, is usable.
func (c *cluster) started(ctx context.Context, p *process, began time.Time) (*process, error) {
	c.mu.Lock()
	c.proc = p
	c.mu.Unlock()
	c.set(Starting, "")
	limit := time.NewTimer(wakeLimit)
	defer limit.Stop()
	select {
	case <-ctx.Done():
		return p, ctx.Err() // the process continues, and is adopted later
	case <-p.ended:
	case <-p.awaitUsable():
	case <-limit.C:
		c.endProcess(ctx, p)
		return nil, fmt.Errorf("it is not usable after %s: %s", wakeLimit, c.whyEnded(p.logStart))
	}
	if !p.usable() { // it ended first
		c.endProcess(ctx, p)
		return nil, fmt.Errorf("its control plane ended with code %d: %s", p.code, c.whyEnded(p.logStart))
	}
	c.mu.Lock()
	c.took = time.Since(began)
	c.mu.Unlock()
	return p, nil
}

func (c *cluster) logSize() int64 {
	boundLog(c.logFile())
	st, err := os.Stat(c.logFile())
	if err != nil {
		return 0
	}
	return st.Size()
}

// whyEnded returns why a process ended whose output begins at byte at of the log.
func (c *cluster) whyEnded(at int64) string {
	f, err := os.Open(c.logFile())
	if err != nil {
		return lastLine(nil)
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || st.Size() < at { // truncated meanwhile
		at = 0
	}
	return lastLine(io.NewSectionReader(f, at, logBound))
}

// fatal matches the last line before a dump of goroutines.
var fatal = regexp.MustCompile(`^(panic: |fatal error: |F\d{4} )`)

// ofStack matches the lines of a Go program's dump of goroutines.
var ofStack = regexp.MustCompile(`^(\t|goroutine \d|created by |[\w./*()%-]+\(.*\)$|\s*$)`)

// lastLine returns the fatal line, or else the last line of a log, without the dump of goroutines.
func lastLine(log io.Reader) string {
	line := ""
	for r := bufio.NewReader(log); ; {
		raw, long, err := r.ReadLine()
		text := string(raw)
		for ; long && err == nil; _, long, err = r.ReadLine() { // skips the rest of a long line
		}
		if err != nil {
			break
		}
		if !ofStack.MatchString(text) {
			line = text
		}
		if fatal.MatchString(text) {
			break
		}
	}
	if line = klogLine.ReplaceAllString(line, ""); line == "" {
		return "it said nothing"
	}
	return fmt.Sprintf("%.300s", strings.TrimPrefix(line, controlplane.Name+": "))
}

// folders creates the folders of the process's root. It owns only data.
func (c *cluster) folders(uid int) error {
	if err := os.MkdirAll(c.dataDir(), 0o700); err != nil {
		return diskErr(err)
	}
	if err := os.Chmod(c.rootDir(), 0o755); err != nil {
		return diskErr(err)
	}
	return diskErr(os.Lchown(c.dataDir(), uid, uid))
}

// certificates creates missing certificates and renews those that expire. No process may run.
func (c *cluster) certificates() error {
	c.certs.Lock()
	defer c.certs.Unlock()
	if err := os.MkdirAll(c.rootDir(), 0o755); err != nil {
		return diskErr(err)
	}
	return c.pki().write(net.IP(c.k.cfg.Address.AsSlice()), net.IP(c.k.cfg.Services.Addr().Next().AsSlice()))
}

func (c *cluster) pki() pki {
	return pki{secret: c.secretDir(), tls: c.tlsDir(), gid: c.record().UID, now: time.Now()}
}

// ended updates the state after the process ended by itself: asleep, or crashed.
func (c *cluster) ended(p *process) (crashed bool) {
	asleep, due := p.asleep()
	c.forget(p) // before the state changes
	last := c.whyEnded(p.logStart)
	if asleep {
		if rest := time.Now().Add(leastRest); !due.IsZero() && due.Before(rest) {
			due = rest
		}
		r := c.record()
		seen := r.Seen
		if pods := c.k.pods.Load(); pods != nil {
			if now, known := (*pods).StateOf(r.ID); known {
				seen = c.debt.seen(now, r.Seen)
			}
		}
		c.setDue(due, seen)
		c.set(Asleep, "")
		c.mu.Lock()
		replaced := c.rec.Sleep == 0 && !c.forced
		c.want = c.want || replaced
		c.mu.Unlock()
		if !replaced { // others may wait for its place
			c.k.room.leave(c)
		}
		return false
	}
	c.set(Starting, "it has ended: "+last)
	c.k.cfg.Log.Warn("the control plane of a virtual cluster has ended; it is started again", "name", c.name, "code", p.code, "last", last)
	c.mu.Lock()
	c.want = true
	c.mu.Unlock()
	return true
}

// failed sets the state that waiting callers receive. The next request, or wake, tries again.
func (c *cluster) failed(err error) {
	c.mu.Lock()
	c.want, c.requested = false, false
	c.mu.Unlock()
	c.k.room.leave(c)
	c.debt.paid()
	if now := time.Now(); c.record().Due.Before(now) {
		c.setDue(now.Add(failedRest), c.record().Seen)
	}
	c.set(Failed, err.Error())
}

func (c *cluster) endProcess(ctx context.Context, p *process) {
	p.end(ctx)
	c.forget(p)
}

func (c *cluster) forget(p *process) {
	<-p.ended
	p.forget()
	_ = os.Remove(c.pidFile())
	removeCgroup(c.name)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.proc = nil
}

// remove notes its end for peers, and deletes all files; the record last, so that an interrupted removal is continued.
func (c *cluster) remove() error {
	if err := c.k.ended.add(c.record().Seed); err != nil {
		return err
	}
	for _, part := range []string{c.rootDir(), c.secretDir(), c.logFile(), c.pidFile(), KubeconfigFile(c.k.cfg.Run, c.name), filepath.Join(c.dir(), recordName), c.dir()} {
		if err := os.RemoveAll(part); err != nil {
			return diskErr(err)
		}
	}
	return nil
}

// wait returns false when ctx ends, true after a poke or after limit; limit 0 is none.
func (c *cluster) wait(ctx context.Context, limit time.Duration) bool {
	var over <-chan time.Time
	if limit > 0 {
		over = time.After(limit)
	}
	select {
	case <-ctx.Done():
		return false
	case <-c.poke:
	case <-over:
	}
	return true
}
