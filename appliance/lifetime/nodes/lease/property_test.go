package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// world is a database and the devices that use it, in fake time.
type world struct {
	begun time.Time
	calm  atomic.Bool // nothing fails from then on

	mu     sync.Mutex
	row    row
	until  map[string]time.Duration // the deadline of each device's tunnel, in the time of the world
	broken string                   // the first moment with two
	counts struct{ held, taken, statements, late, lost, frozen, released int }
}

func (w *world) elapsed() time.Duration { return time.Since(w.begun) }

// held is a tunnel that receives a deadline. Deadlines change only here, so that a moment with two is found here.
func (w *world) held(node string, until time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.counts.held++
	now := w.elapsed()
	if until > now {
		for other, their := range w.until {
			if other != node && their > now && w.broken == "" {
				w.broken = fmt.Sprintf("at %s %s is within its deadline %s, and %s gets %s", now, other, their, node, until)
			}
		}
	}
	w.until[node] = max(w.until[node], until)
}

// process is one process of a device: its clock, its connection to the database, and what stops it.
type process struct {
	w      *world
	node   string
	rng    *rand.Rand // of the goroutine that runs the device
	offset time.Duration
	ppm    time.Duration // how much faster its clock runs, in millionths

	mu   sync.Mutex
	dead bool
	cut  string // refused, silent
}

func (p *process) now() time.Duration {
	e := p.w.elapsed()
	at := p.offset + e + e*p.ppm/1e6
	p.freeze()
	return at
}

// real is a time of the device's clock in the time of the world.
func (p *process) real(at time.Duration) time.Duration {
	return (at - p.offset) * 1e6 / (1e6 + p.ppm)
}

// freeze stops the device now and then.
func (p *process) freeze() {
	if !p.w.calm.Load() && p.rng.IntN(60) == 0 {
		p.w.mu.Lock()
		p.w.counts.frozen++
		p.w.mu.Unlock()
		time.Sleep(time.Duration(p.rng.Int64N(int64(15 * time.Second))))
	}
}

// way is how long a statement or its answer takes.
func (p *process) way() time.Duration {
	longest := 30 * time.Millisecond
	if n := p.rng.IntN(20); !p.w.calm.Load() && n < 3 {
		longest = []time.Duration{12 * time.Second, timeout, timeout}[n]
	}
	return time.Duration(1 + p.rng.Int64N(int64(longest)))
}

var errLost = errors.New("connection lost")

// statement carries out one that may commit after its sender has given up, or without an answer.
func (p *process) statement(ctx context.Context, commit func(w *world)) error {
	p.freeze()
	p.mu.Lock()
	dead, cut := p.dead, p.cut
	p.mu.Unlock()
	switch {
	case cut == "silent" && !p.w.calm.Load():
		<-ctx.Done()
		return ctx.Err()
	case dead, cut != "" && !p.w.calm.Load():
		return errLost
	}
	there, back, lost := p.way(), p.way(), !p.w.calm.Load() && p.rng.IntN(20) == 0
	done := make(chan struct{})
	go func() {
		time.Sleep(there)
		p.w.mu.Lock()
		p.w.counts.statements++
		if ctx.Err() != nil {
			p.w.counts.late++
		}
		commit(p.w)
		p.w.mu.Unlock()
		time.Sleep(back)
		close(done)
	}()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-done:
	}
	p.freeze()
	if lost {
		p.w.mu.Lock()
		p.w.counts.lost++
		p.w.mu.Unlock()
		return errLost
	}
	return nil
}

func (p *process) read(ctx context.Context) (row, error) {
	var r row
	err := p.statement(ctx, func(w *world) { r = w.row })
	if err != nil {
		return row{}, err
	}
	return r, nil
}

func (p *process) swap(ctx context.Context, old row, holder, note string) (bool, error) {
	var ok bool
	err := p.statement(ctx, func(w *world) {
		if ok = w.row.holder == old.holder && w.row.beat == old.beat; ok {
			if holder != old.holder && holder != "" && old.holder != "" {
				w.counts.taken++
			}
			w.row = row{holder, w.row.beat + 1, note}
		}
	})
	return err == nil && ok, err
}

// start runs a process, and returns the function that ends it and waits for it.
func (p *process) start() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	d := &device{db: p, now: p.now, mine: true, Config: Config{
		Node: p.node, Log: slog.New(slog.DiscardHandler),
		Note: func() string { p.freeze(); return "" },
		Lead: func(Holder) bool { p.freeze(); return p.w.calm.Load() || p.rng.IntN(8) > 0 },
		Held: func(until time.Duration) {
			p.freeze()
			p.mu.Lock()
			defer p.mu.Unlock()
			if !p.dead {
				p.w.held(p.node, p.real(until))
			}
		},
		Other: func(Holder) { p.freeze() }, Report: func(error) {},
	}}
	go func() { defer close(ended); d.run(ctx) }()
	return func() { cancel(); <-ended }
}

// live is what happens to one device: cuts, restarts of its process while its tunnel goes on, and handovers.
func (w *world) live(node string, rng *rand.Rand, chaos time.Duration) (stop func()) {
	offset, ppm := time.Duration(rng.Int64N(int64(time.Hour))), time.Duration(rng.IntN(100000)-50000)
	begin := func() (*process, func()) {
		p := &process{w: w, node: node, rng: rand.New(rand.NewPCG(rng.Uint64(), 0)), offset: offset, ppm: ppm}
		return p, p.start()
	}
	p, stop := begin()
	for {
		time.Sleep(time.Duration(rng.Int64N(int64(20 * time.Second))))
		if w.elapsed() >= chaos {
			return stop
		}
		switch event := rng.IntN(6); event {
		case 0, 1, 2:
			p.mu.Lock()
			p.cut = []string{"", "refused", "silent"}[event]
			p.mu.Unlock()
		case 3: // a crash: its statements are on their way
			p.mu.Lock()
			p.dead = true
			p.mu.Unlock()
			defer stop()
			p, stop = begin()
		case 4:
			stop()
			w.mu.Lock()
			delete(w.until, node)
			w.counts.released++
			w.mu.Unlock()
			ctx, cancel := context.WithTimeout(context.Background(), timeout)
			_ = release(ctx, p, node) // with any result
			cancel()
			p, stop = begin()
		}
	}
}

// At no moment are two devices within their deadlines, whatever fails; and when nothing fails, one is.
func TestOneHolder(t *testing.T) {
	t.Parallel()
	const chaos, devices, seeds = 4 * time.Minute, 4, 80
	var held, taken, statements, late, lost, frozen, released int
	for seed := range uint64(seeds) {
		synctest.Test(t, func(t *testing.T) {
			w := &world{begun: time.Now(), row: row{"a", 1, ""}, until: map[string]time.Duration{}}
			stops := make([]func(), devices)
			var group sync.WaitGroup
			for i := range devices {
				rng := rand.New(rand.NewPCG(seed, uint64(i)))
				group.Go(func() { stops[i] = w.live(string(rune('a'+i)), rng, chaos) })
			}
			group.Wait()
			time.Sleep(30 * time.Second) // what was begun has ended
			w.calm.Store(true)
			time.Sleep(30 * time.Second)
			holders := 0
			w.mu.Lock()
			for node, until := range w.until {
				if left := until - w.elapsed(); left > 0 {
					holders++
					if node != w.row.holder || left < Life-Every-time.Second || left > Life+time.Second {
						t.Errorf("seed %d: %s is within its deadline for %s, the row has %s", seed, node, left, w.row.holder)
					}
				}
			}
			if holders != 1 {
				t.Errorf("seed %d: %d devices are within their deadlines when nothing fails", seed, holders)
			}
			if w.broken != "" {
				t.Errorf("seed %d: %s", seed, w.broken)
			}
			w.mu.Unlock()
			for _, stop := range stops {
				stop()
			}
			time.Sleep(30 * time.Second)
			w.mu.Lock()
			defer w.mu.Unlock()
			c := w.counts
			held, taken, statements, late, lost, frozen, released = held+c.held, taken+c.taken, statements+c.statements, late+c.late, lost+c.lost, frozen+c.frozen, released+c.released
		})
	}
	t.Logf("%d deadlines, %d changes of the holder, %d statements, %d of them after their timeout, %d lost answers, %d freezes, %d releases", held, taken, statements, late, lost, frozen, released)
	if taken < 5*seeds || min(late, lost, frozen, released) < seeds {
		t.Error("too little has happened")
	}
}
