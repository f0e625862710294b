package main

import (
	"fmt"
	"os"
	"runtime"
	"strings"

	"rivulet/test/programs/bench/internal/figures"
)

// heldCPUs is how many cores a device has in the rounds on equal machines: one, or less where this machine has to
// keep half a core for the load generator and the hollow kubelets.
func heldCPUs() float64 { return min(1, (float64(runtime.NumCPU())-0.5)/2) }

// race is the same number of pods offloaded and at the provider itself, under the same conditions. Index 0 is home, 1
// the provider.
type race struct {
	away, direct, ratio  figures.Samples
	lastAway, lastDirect float64 // of this round; 0: not yet
	// idle is how much of the whole machine's time nobody wanted, per cent: near zero the machine was the limit.
	idle figures.Samples
	// All that a device spends until the pods are Ready, CPU seconds for 1000 pods: of the
	// offloaded ones by device, of those at the provider itself there.
	spent       [2]figures.Samples
	spentDirect figures.Samples
	spentRatio  figures.Samples // of the busier device to the provider's own
}

func (r *race) add(at, n int, took, idle float64, before, running moment) {
	spent := func(i int) (sum float64) {
		for _, cpu := range cpuBetween(before.costs[i], running.costs[i]) {
			sum += cpu
		}
		return sum * 1000 / float64(n)
	}
	r.idle = append(r.idle, idle)
	if at == 1 {
		r.spentDirect = append(r.spentDirect, spent(1))
		r.direct, r.lastDirect = append(r.direct, took), took
	} else {
		r.away, r.lastAway = append(r.away, took), took
		for i := range 2 {
			r.spent[i] = append(r.spent[i], spent(i))
		}
	}
	if r.lastAway > 0 && r.lastDirect > 0 {
		last := func(s figures.Samples) float64 { return s[len(s)-1] }
		r.ratio = append(r.ratio, r.lastAway/r.lastDirect)
		r.spentRatio = append(r.spentRatio, max(last(r.spent[0]), last(r.spent[1]))/last(r.spentDirect))
		r.lastAway, r.lastDirect = 0, 0
	}
}

// rows of a race; promised is whether the promise is measured by it.
func (r *race) rows(s *figures.Section, where string, promised bool) {
	away := figures.Row{What: fmt.Sprintf("%s: offloaded, %d", where, awayPods), Figure: r.away.Show("%.1f", "s"), Ratio: r.ratio}
	if promised {
		away.Promise, away.Value, away.Limit = "≤ 1.1", r.ratio.Median(), 1.1
	}
	s.Rows = append(s.Rows, away,
		figures.Row{What: fmt.Sprintf("%s: at the provider itself, %d", where, awayPods), Figure: r.direct.Show("%.1f", "s")},
		figures.Row{What: where + ": all of home and all of the provider, for 1000 away pods to be Ready", Figure: r.spent[0].Show("%.1f", "CPU s") + "; " + r.spent[1].Show("%.1f", "CPU s")},
		figures.Row{What: where + ": all of the provider, for 1000 of its own; ratio: the busier device to that", Figure: r.spentDirect.Show("%.1f", "CPU s"), Ratio: r.spentRatio},
		figures.Row{What: where + ": of the machine's time nobody wanted", Figure: r.idle.Show("%.0f", "%")})
}

// load is what the machine's processors have done since it was switched on, in ticks.
type load struct{ idle, all float64 }

// machineLoad reads the first line of /proc/stat.
func machineLoad() (l load, err error) {
	raw, err := os.ReadFile("/proc/stat")
	if err != nil {
		return l, fmt.Errorf("bench: %w", err)
	}
	first, _, _ := strings.Cut(string(raw), "\n")
	for i, f := range strings.Fields(first)[1:] {
		var ticks float64
		if _, err := fmt.Sscan(f, &ticks); err != nil {
			return l, fmt.Errorf("bench: /proc/stat: %w", err)
		}
		if i == 3 || i == 4 { // idle, and idle while a disk works
			l.idle += ticks
		}
		if i < 8 { // the others are counted in user and nice already
			l.all += ticks
		}
	}
	return l, nil
}

// idleSince is per cent.
func (l load) idleSince(o load) float64 { return 100 * (l.idle - o.idle) / max(1, l.all-o.all) }
