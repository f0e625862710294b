// Package clock prevents work with an implausible time: boards without a clock chip begin at 1970
// (docs/design/clock.md). It reads the system's clock, the kernel's synchronization state, the clock chip, peers'
// clocks, for want of these the dates of registries' answers, and the note "clock" of state.db; it alone writes that
// note, and sets the system's clock:
//
//	start ── at or above the floor max(build, note) ─────────────────────────────────────▶ Ready
//	   └─ below, or decades above ─▶ set to the chip's time or the floor ─ better time, 15 s ─▶ Ready
//
// Components that issue something with a date wait until this one is Ready. Restart: it begins again with the note.
// Failure: the problems clock-implausible and clock-not-synchronized.
package clock

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"rivulet/appliance/health"
	"rivulet/appliance/lifecycle"
	"rivulet/fabric/changes"
	"rivulet/fabric/cure"
)

// System is the machine's clock.
type System interface {
	// Now is the wall clock.
	Now() time.Time
	// Boot is the time since the machine was switched on, suspended time included; it does not change when the wall
	// clock is set.
	Boot() time.Duration
	// Set sets the wall clock. It fails if that is not permitted.
	Set(time.Time) error
	// Discipline is the kernel's state of clock synchronization.
	Discipline() Discipline
	// Chip reads the battery-backed clock, an error if there is none.
	Chip() (time.Time, error)
	// Changes receives after the wall clock was set, until ctx ends. It may miss changes on kernels without support.
	Changes(ctx context.Context) <-chan struct{}
}

// Discipline is the synchronization of the kernel's clock.
type Discipline struct {
	// Synchronized is true while a time service (NTP, PTP) synchronizes the clock.
	Synchronized bool
	// Offset is the remaining correction by the service.
	Offset time.Duration
}

// Store stores a small blob durably.
type Store interface {
	Note(name string) ([]byte, error)
	PutNote(name string, blob []byte) error
}

// Config is the input of New; all fields but Dates are required.
type Config struct {
	System System
	// Built is the build time of this program: the time is never earlier.
	Built  time.Time
	Dates  Dates
	Store  Store
	Health *health.Tracker
	// Jumped is called with every jump after Ready. It must not block.
	Jumped func(Jump)
	Log    *slog.Logger
}

// Jump is a change of the wall clock other than the passing of time.
type Jump struct {
	// At is the new time of the jump; By is its size, negative: back.
	At time.Time     `json:"at"`
	By time.Duration `json:"by"`
}

// Sources of the time.
const (
	FromNTP    = "ntp"    // synchronized by a time service
	FromChip   = "chip"   // set from the clock chip
	FromPeers  = "peers"  // set from peers with a time service
	FromHTTPS  = "https"  // set from the dates of registries' answers
	FromAdmin  = "admin"  // set by an administrator's browser
	FromFloor  = "floor"  // set to the earliest possible time, for want of another source
	FromSystem = "system" // the machine's own, and plausible
)

const (
	// Far is the least jump, and how far below the floor the clock may be: a chip drifts, and commits are from other
	// machines.
	Far = 5 * time.Minute
	// patience bounds how long a start waits for a better time than the floor.
	patience = 15 * time.Second
	// saveEvery is the greatest age of the note, and so the error of a start without any clock.
	saveEvery = time.Hour
	// checkEvery is the interval of reads of the kernel's state, which has no event for synchronization.
	checkEvery = 10 * time.Second
	// checkAtStart is the same while a start waits for it.
	checkAtStart = 250 * time.Millisecond
	// correctEvery is the shortest interval between two corrections by peers or registries.
	correctEvery = time.Hour
)

// Clock is the device's clock. Its methods may be called concurrently.
type Clock struct {
	cfg Config
	sys System
	log *slog.Logger
	// received receives after a reading of a peer.
	received chan struct{}

	mu        sync.Mutex
	floor     floor
	source    string
	disc      Discipline
	peers     peers
	dates     peers         // of registries, by host
	base      time.Time     // wall clock at boot, by the last check
	saved     time.Duration // time of the note since boot
	corrected time.Duration // time of the last correction by others, since boot
	jump      *Jump
	notSet    error // why the clock could not be set
}

// New returns a clock. Nothing is read or set yet.
func New(cfg Config) *Clock {
	return &Clock{cfg: cfg, sys: cfg.System, log: cfg.Log, received: make(chan struct{}, 1), source: FromSystem,
		floor: floor{Built: cfg.Built}, peers: peers{}, dates: peers{}, corrected: -2 * correctEvery}
}

// Run makes the time plausible, is Ready then, and follows the clock until ctx ends.
func (c *Clock) Run(ctx context.Context, stage *lifecycle.Stage) error {
	return c.run(ctx, stage.Waiting, stage.Ready)
}

func (c *Clock) run(ctx context.Context, waiting func(string, ...any), ready func()) error {
	if err := c.load(); err != nil {
		return err
	}
	changes := c.sys.Changes(ctx)
	if !c.settle(ctx, changes, waiting) {
		return nil
	}
	c.mu.Lock()
	c.base = c.bootTime()
	c.mu.Unlock()
	if err := c.save(); err != nil {
		return err
	}
	ready()
	go c.query(ctx)
	return c.follow(ctx, changes)
}

// settle returns when the time is plausible and no better time is expected soon; false: ctx has ended.
func (c *Clock) settle(ctx context.Context, changes <-chan struct{}, waiting func(string, ...any)) bool {
	c.check()
	if c.plausible() {
		c.report()
		return true
	}
	c.log.Warn("the clock cannot be right", "now", c.sys.Now().UTC(), "not_before", c.floor.at().UTC(), "not_after", c.floor.ceiling().UTC())
	if chip, err := c.sys.Chip(); err == nil && c.floor.admits(chip) && c.set(chip, FromChip) == nil {
		c.report()
		return true
	}
	c.set(c.floor.at(), FromFloor) //nolint:errcheck // stored in notSet, and shown
	tick := time.NewTicker(checkAtStart)
	defer tick.Stop()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	late := false
	for {
		c.check()
		c.correct()
		c.report()
		if c.plausible() {
			if late || c.trusted() {
				return true
			}
			waiting("for a better time than %s: from NTP or a peer, %s at most", c.sys.Now().UTC().Format(time.DateTime), patience)
		} else {
			waiting("for the clock to be set: it says %s and cannot be before %s; set it on the machine that owns it (date -s ...); it goes on by itself then",
				c.sys.Now().UTC().Format(time.DateTime), c.floor.at().UTC().Format(time.DateTime))
		}
		select {
		case <-ctx.Done():
			return false
		case <-deadline.C:
			late = true
		case <-tick.C:
		case <-changes:
		case <-c.received:
		}
	}
}

// follow returns when ctx has ended.
func (c *Clock) follow(ctx context.Context, changes <-chan struct{}) error {
	tick := time.NewTicker(checkEvery)
	defer tick.Stop()
	for {
		was := c.trusted()
		c.check()
		c.correct()
		c.notice()
		c.report()
		if c.due(!was && c.trusted()) { // worth saving before a power cut
			if err := c.save(); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return c.save()
		case <-tick.C:
		case <-changes:
		case <-c.received:
		}
	}
}

// check reads the kernel's state. A synchronized clock takes precedence over all: the floor may be from a wrong clock.
func (c *Clock) check() {
	d := c.sys.Discipline()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.disc = d
	switch {
	case d.Synchronized:
		c.source = FromNTP
		if now := c.sys.Now(); c.floor.possible(now) && now.Before(c.floor.at().Add(-Far)) {
			c.log.Info("a time service says that it is earlier than this device thought; believing it", "now", now.UTC(), "was", c.floor.at().UTC())
			c.floor.Last, c.floor.Proven = now, now
		}
	case c.source == FromNTP:
		c.source = FromSystem
	}
}

// reference returns the time by others, their names, and where it is from: peers, for want of them registries. why is for
// users if they do not agree.
func (c *Clock) reference(boot time.Duration) (now time.Time, names []string, from, why string) {
	now, names, why = c.peers.now(boot, c.floor)
	if len(names) > 0 {
		return now, names, FromPeers, why
	}
	now, names, also := c.dates.date(boot, c.floor)
	return now, names, FromHTTPS, cmp.Or(why, also)
}

// correct sets the clock by others' readings, if needed. Registries do not set it before the floor.
func (c *Clock) correct() {
	c.mu.Lock()
	at, boot := c.sys.Now(), c.sys.Boot()
	now, names, from, _ := c.reference(boot)
	early := now.Before(c.floor.at())
	wanted := !c.disc.Synchronized && c.notSet == nil && len(names) > 0 && apart(now, at) > agreeWithin &&
		boot-c.corrected > correctEvery && (from == FromPeers || !early)
	if wanted {
		c.corrected = boot
		if early {
			c.floor.Last = now // it was saved while the clock was wrong
		}
	}
	c.mu.Unlock()
	if wanted {
		c.log.Warn("the clock is set by what others say", "was", at.UTC(), "now", now.UTC(), "from", from, "names", strings.Join(names, ", "))
		c.set(now, from) //nolint:errcheck // stored in notSet, and shown
	}
}

// SetTo sets the clock to an administrator's, who is signed in: not before the build or what a time service has proven,
// and not while one keeps it. It may be earlier than what others have told: the floor follows, and their word goes.
func (c *Clock) SetTo(now time.Time) error {
	c.check()
	c.mu.Lock()
	synchronized, floor := c.disc.Synchronized, c.floor
	c.mu.Unlock()
	earliest := latest(floor.Built, floor.Proven).Add(-Far)
	switch {
	case synchronized:
		return cure.Errorf("a time service keeps the clock, and would set it back at once; look at that one: timedatectl timesync-status")
	case !floor.likely(now):
		return cure.Errorf("%s cannot be: it is at least %s and at most %s here; set the clock of your own machine right, or this device's: sudo date -s \"YYYY-MM-DD hh:mm\"",
			now.UTC().Format(time.DateTime), earliest.UTC().Format(time.DateTime), floor.ceiling().UTC().Format(time.DateTime))
	}
	if err := c.set(now, FromAdmin); err != nil {
		return fmt.Errorf("the clock cannot be set from here: %w; set it on the machine that owns it: sudo date -s \"YYYY-MM-DD hh:mm\"", err)
	}
	c.mu.Lock()
	c.floor.Last, c.corrected = now, c.sys.Boot()
	clear(c.dates)
	c.mu.Unlock()
	changes.Poke(c.received)
	return c.save()
}

// notice detects a jump of the clock since the last check.
func (c *Clock) notice() {
	c.mu.Lock()
	base := c.bootTime()
	by := base.Sub(c.base)
	c.base = base
	if by.Abs() <= Far {
		c.mu.Unlock()
		return
	}
	now := c.sys.Now()
	c.jump = &Jump{At: now, By: by}
	// The clock may have been set back for a reason, so the floor follows, but not below a time proven by a time
	// service.
	if c.floor.possible(now) && now.Before(c.floor.Last) {
		c.floor.Last = now
	}
	jump := *c.jump
	c.mu.Unlock()
	c.log.Warn("the clock has jumped", "by", by.Round(time.Second), "now", now.UTC())
	c.cfg.Jumped(jump)
}

// set sets the clock and stores the error.
func (c *Clock) set(to time.Time, source string) error {
	err := c.sys.Set(to)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.notSet = err
	if err != nil {
		c.log.Error("cannot set the clock", "to", to.UTC(), "err", err)
		return err
	}
	c.source = source
	c.log.Info("clock set", "to", to.UTC(), "source", source)
	return nil
}

func (c *Clock) plausible() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.floor.admits(c.sys.Now())
}

// trusted reports whether a time service, peers or registries have set or confirmed the time.
func (c *Clock) trusted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	theirs, names, _, _ := c.reference(c.sys.Boot())
	return c.disc.Synchronized || c.source == FromPeers || c.source == FromHTTPS || len(names) > 0 && apart(theirs, c.sys.Now()) <= agreeWithin
}

// bootTime is the wall clock minus the time since boot: constant while nobody sets the clock.
func (c *Clock) bootTime() time.Time { return c.sys.Now().Round(0).Add(-c.sys.Boot()) }

// report updates the two problems of a clock.
func (c *Clock) report() {
	c.mu.Lock()
	defer c.mu.Unlock()
	h, now := c.cfg.Health, c.sys.Now()
	if c.floor.admits(now) {
		h.Clear(health.ClockImplausible)
	} else {
		text := fmt.Sprintf("it says %s, and it is at least %s; no certificate is made meanwhile", now.UTC().Format(time.DateTime), c.floor.at().UTC().Format(time.DateTime))
		if now.After(c.floor.ceiling()) {
			text = fmt.Sprintf("it says %s, decades after this rivulet was built; no certificate is made meanwhile", now.UTC().Format(time.DateTime))
		}
		if c.notSet != nil {
			text += "; it cannot be set from here: " + c.notSet.Error()
		}
		h.Set(health.ClockImplausible, text, "set it on the machine that owns it: date -s, or switch on a time service")
	}
	if c.disc.Synchronized {
		h.Clear(health.ClockNotSynchronized)
		return
	}
	_, names, from, why := c.reference(c.sys.Boot())
	text := "the time is from: " + c.source
	switch {
	case len(names) > 0 && from == FromHTTPS:
		text += "; registries agree with it: " + strings.Join(names, ", ")
	case len(names) > 0:
		text += "; peers that know the time agree with it: " + strings.Join(names, ", ")
	case why != "":
		text += "; " + why
	}
	h.Set(health.ClockNotSynchronized, text, "let this network reach an NTP server, one of the peers, or two of the registries by HTTPS ("+strings.Join(Registries, ", ")+"): nothing else has to be done; or set it from a browser: page Device of the web console")
}

// Reading is for peers: the time, and whether a time service synchronizes it. A time from peers is not passed on.
func (c *Clock) Reading() (now time.Time, synchronized bool) {
	now = c.sys.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	return now, c.disc.Synchronized && c.floor.admits(now)
}

// Received takes a peer's reading: its clock was at now in the middle of a round trip that has just ended.
func (c *Clock) Received(id, name string, now time.Time, synchronized bool, roundTrip time.Duration) {
	boot := c.sys.Boot()
	c.mu.Lock()
	first := c.peers.take(id, sample{name: name, synchronized: synchronized, bootTime: now.Round(0).Add(roundTrip/2 - boot), at: boot, roundTrip: roundTrip})
	c.mu.Unlock()
	if first {
		changes.Poke(c.received)
	}
}
