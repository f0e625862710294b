package clock

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"rivulet/appliance/health"
)

// board is a machine whose clock the test sets. Its time passes with the bubble's.
type board struct {
	begun time.Time // of the bubble, when it was switched on

	mu      sync.Mutex
	wall    time.Time // when it was switched on, by its own clock
	slept   time.Duration
	forbids bool
	dates   Dates
	log     *slog.Logger // nil: nobody reads it
	disc    Discipline
	chip    time.Time
	sets    []time.Time
	change  chan struct{}
}

func newBoard(wall time.Time) *board {
	return &board{begun: time.Now(), wall: wall, change: make(chan struct{}, 1)}
}

func (b *board) Boot() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.boot()
}
func (b *board) boot() time.Duration { return time.Since(b.begun) + b.slept }

func (b *board) Now() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.wall.Add(b.boot())
}

func (b *board) Set(t time.Time) error {
	b.mu.Lock()
	forbids := b.forbids
	b.mu.Unlock()
	if forbids {
		return errors.New("not permitted")
	}
	b.mu.Lock()
	b.sets = append(b.sets, t)
	b.mu.Unlock()
	b.set(t, false)
	return nil
}

// set is somebody else setting the clock.
func (b *board) set(t time.Time, synchronized bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wall, b.disc.Synchronized = t.Add(-b.boot()), synchronized
	select {
	case b.change <- struct{}{}:
	default:
	}
}

// sleep is the machine suspended: the wall clock goes on, and so does the boot clock.
func (b *board) sleep(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.slept += d
}

func (b *board) Discipline() Discipline {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.disc
}

func (b *board) Chip() (time.Time, error) {
	if b.chip.IsZero() {
		return time.Time{}, errors.New("none")
	}
	return b.chip, nil
}

func (b *board) Changes(context.Context) <-chan struct{} { return b.change }

type disk map[string][]byte

var diskMu sync.Mutex // of all disks

func (d disk) Note(name string) ([]byte, error) {
	diskMu.Lock()
	defer diskMu.Unlock()
	return d[name], nil
}

func (d disk) PutNote(name string, b []byte) error {
	diskMu.Lock()
	defer diskMu.Unlock()
	d[name] = b
	return nil
}

func (d disk) saved(t *testing.T, last time.Time) disk { return d.put(t, floor{Last: last}) }
func (d disk) proven(t *testing.T, last time.Time) disk {
	return d.put(t, floor{Last: last, Proven: last})
}
func (d disk) put(t *testing.T, f floor) disk {
	t.Helper()
	c := New(Config{System: newBoard(latest(f.Last, built)), Built: built, Store: d, Log: slog.New(slog.DiscardHandler)})
	c.floor = f
	c.floor.Built = built
	if err := c.save(); err != nil {
		t.Fatal(err)
	}
	return d
}

// built is when the binary of these tests was built.
var built = time.Date(2030, 5, 1, 12, 0, 0, 0, time.UTC)

// device is a running clock.
type device struct {
	*Clock
	*board
	t      *testing.T
	disk   disk
	health health.Tracker
	jumps  []Jump
	begun  time.Time
	cancel context.CancelFunc
	done   chan error

	once  sync.Mutex
	ready time.Duration // after the start; negative: not yet
}

// switchOn starts a clock on a board, inside a bubble.
func switchOn(t *testing.T, b *board, d disk) *device {
	t.Helper()
	v := &device{board: b, t: t, disk: d, begun: time.Now(), ready: -1, done: make(chan error, 1)}
	log := b.log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	v.Clock = New(Config{
		System: b, Built: built, Dates: b.dates, Store: d, Health: &v.health, Log: log,
		Jumped: func(j Jump) { v.once.Lock(); v.jumps = append(v.jumps, j); v.once.Unlock() },
	})
	var ctx context.Context
	ctx, v.cancel = context.WithCancel(context.Background())
	go func() {
		v.done <- v.run(ctx, func(string, ...any) {}, func() { v.once.Lock(); v.ready = time.Since(v.begun); v.once.Unlock() })
	}()
	synctest.Wait()
	return v
}

func (v *device) switchOff() {
	v.t.Helper()
	v.cancel()
	if err := <-v.done; err != nil {
		v.t.Error(err)
	}
}

// after lets time pass.
func (v *device) after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (v *device) wantReady(after time.Duration) {
	v.t.Helper()
	v.once.Lock()
	defer v.once.Unlock()
	if v.ready < 0 || v.ready < after || v.ready > after+checkAtStart {
		v.t.Errorf("ready after %s, want %s", v.ready, after)
	}
}

func (v *device) isReady() bool {
	v.once.Lock()
	defer v.once.Unlock()
	return v.ready >= 0
}

func (v *device) wantTime(want time.Time, source string) {
	v.t.Helper()
	st := v.Status()
	if apart(st.Now, want) > time.Second || st.Source != source || !st.Plausible {
		v.t.Errorf("it is %s, source %s, plausible %v; want %s, source %s", st.Now, st.Source, st.Plausible, want, source)
	}
}

func (v *device) problem(k *health.Kind) string {
	for _, p := range v.health.Problems() {
		if p.Code == k.Code {
			return p.Text
		}
	}
	return ""
}

// hears is a peer that says what it is, by its clock, now.
func (v *device) hears(name string, now time.Time, synchronized bool) {
	v.Received("id-of-"+name, name, now, synchronized, 2*time.Millisecond)
}
