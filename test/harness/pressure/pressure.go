// Package pressure measures how busy the machine was while a test ran, so that a failure of the machine is told from
// one of the product: how late a clock of 10 ms was, and the share of the time in which something waited for
// processors, disk or memory (PSI, where the kernel has it). It reads /proc/pressure and writes nothing.
package pressure

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// Bound is the P99 from which a failure is not judged: half of the shortest limit that tests of devices have, a second.
const Bound = 500 * time.Millisecond

const tick = 10 * time.Millisecond

// kinds of PSI, in the order in which they are told.
var kinds = []string{"cpu", "io", "memory"}

// Meter measures from Start to Stop.
type Meter struct {
	end  chan struct{}
	done sync.WaitGroup

	begun  time.Time
	before map[string]time.Duration
	late   []time.Duration // of each look
}

// Figures are what a Meter measured.
type Figures struct {
	// P99 is how late a look was in the worst hundredth of the time, at the least; Max is the latest.
	P99, Max time.Duration
	Some     map[string]float64 // by kind: the share of the time, 0 to 1; without those that the kernel does not tell
}

// Start begins to measure.
func Start() *Meter {
	m := &Meter{end: make(chan struct{}), begun: time.Now(), before: stalls()}
	m.done.Go(m.look)
	return m
}

func (m *Meter) look() {
	t := time.NewTicker(tick)
	defer t.Stop()
	for last := time.Now(); ; {
		select {
		case <-m.end:
			m.late = append(m.late, max(0, time.Since(last)-tick)) // one that did not come yet
			return
		case <-t.C:
			now := time.Now()
			m.late = append(m.late, max(0, now.Sub(last)-tick))
			last = now
		}
	}
}

// Stop ends the measurement; it may be called once.
func (m *Meter) Stop() Figures {
	close(m.end)
	m.done.Wait()
	took := time.Since(m.begun)
	f := Figures{Some: map[string]float64{}}
	f.P99, f.Max = tail(m.late)
	for kind, now := range stalls() {
		f.Some[kind] = min(1, (now-m.before[kind]).Seconds()/took.Seconds())
	}
	return f
}

// tail is what one look in a hundred was late at the least, weighed by time: a look that was late for a second stands
// for the hundred that should have been made meanwhile.
func tail(late []time.Duration) (p99, most time.Duration) {
	slices.Sort(late)
	slices.Reverse(late)
	var all time.Duration
	for _, l := range late {
		all += l + tick
	}
	var seen time.Duration
	for i, l := range late {
		if i == 0 {
			most = l
		}
		if seen += l + tick; seen*100 >= all {
			return l, most
		}
	}
	return 0, most
}

// Exceeded reports whether a failure at these figures may be the machine's.
func (f Figures) Exceeded() bool { return f.P99 >= Bound }

func (f Figures) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "late p99 %d ms, most %d ms", f.P99.Milliseconds(), f.Max.Milliseconds())
	for _, kind := range kinds {
		if some, ok := f.Some[kind]; ok {
			fmt.Fprintf(&b, ", %s some %.0f %%", kind, 100*some)
		}
	}
	return b.String()
}

// OfProcessors is for how long something has waited for a processor since boot; 0 where the kernel does not tell.
func OfProcessors() time.Duration { return stalls()["cpu"] }

// stalls reads for how long something has waited since boot, by kind.
func stalls() map[string]time.Duration {
	out := map[string]time.Duration{}
	for _, kind := range kinds {
		raw, err := os.ReadFile("/proc/pressure/" + kind)
		if err != nil {
			continue
		}
		if total, ok := someTotal(string(raw)); ok {
			out[kind] = total
		}
	}
	return out
}

// someTotal takes the total of the line "some avg10=0.00 avg60=0.00 avg300=0.00 total=MICROSECONDS".
func someTotal(text string) (time.Duration, bool) {
	for line := range strings.Lines(text) {
		var a, b, c float64
		var total int64
		if n, _ := fmt.Sscanf(line, "some avg10=%f avg60=%f avg300=%f total=%d", &a, &b, &c, &total); n == 4 {
			return time.Duration(total) * time.Microsecond, true
		}
	}
	return 0, false
}
