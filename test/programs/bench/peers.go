package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	"rivulet/test/harness/lab"
	"rivulet/test/programs/bench/internal/device"
	"rivulet/test/programs/bench/internal/fakepeer"
	"rivulet/test/programs/bench/internal/figures"
	"rivulet/test/programs/bench/internal/procs"
	"rivulet/test/programs/bench/internal/wire"
)

// crowds are how many peers there are, one measurement after the other. Those of a step come one after the other. Two
// hundred fakes that start at the same moment are too much for two cores: each of them receives what all others announce.
var crowds = []int{0, 1, 10, 50, 100}

// quietFor is how long CPU is counted: long enough for a tunnel to have come to rest.
const quietFor = 40 * time.Second

// peers: what one device's supervisor and tunnel take with many peers, and how soon a
// peer is found and connected. The peers are fakes: the product's own fabric and
// tunnel without Kubernetes.
func (b *bench) peers(ctx context.Context, s *figures.Section) (err error) {
	s.Title = "Many peers"
	s.How = fmt.Sprintf("One device of the lab, and fakes on its LAN: processes in network namespaces of their own with the product's discovery, peering, tunnel and stream of offers, and no Kubernetes (`test/programs/bench/internal/fakepeer`). Nobody does anything. PSS as under Memory; anonymous is what is the processes' own, while pages of the program's file come when code runs for the first time and go again (package memory); CPU over %v. Ratio: to one peer; what a device without peers takes is partly what its start has left. Discovery and peering: from the moment a fake begins to announce itself, as the fake sees it, the fakes of a step started one after the other; they share the cores with the device.", quietFor)
	own, err := b.stage.Beside("own", device.OwnCopy)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(b.stage.Dir, "fakes-")
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	return b.stage.Lab(ctx, own, 1, nil, func(l *lab.Lab, ds []*device.Device) error {
		a := ds[0]
		if _, _, err := up(ctx, a); err != nil {
			return err
		}
		if _, err := a.WaitReady(ctx); err != nil {
			return err
		}
		var fakes []*fakepeer.Fake
		defer func() {
			var all errgroup.Group
			for _, f := range fakes {
				all.Go(func() error { f.Stop(); return nil })
			}
			all.Wait()
		}()
		var found, connected figures.Samples
		base, base0, last, lastOwn, lastN := 0.0, 0.0, 0.0, 0.0, 0
		for _, n := range crowds {
			for len(fakes) < n {
				f, err := b.fake(l, dir, len(fakes))
				if err != nil {
					return err
				}
				fakes = append(fakes, f)
				r, err := f.Wait(ctx)
				if err != nil {
					return errors.Join(err, errors.New(a.Describe()))
				}
				if r.Connected > 3 {
					b.tell("fake %d: discovered after %.2f s, connected after %.2f s", len(fakes)-1, r.Discovered, r.Connected)
				}
				found, connected = append(found, r.Discovered), append(connected, r.Connected)
			}
			if n > 0 {
				if _, err := a.WaitNode(ctx, n, device.Virtual); err != nil {
					return err
				}
			}
			m, cpu, err := b.weighCrowd(ctx, a)
			if err != nil {
				return err
			}
			size := func(bytes uint64) float64 { return float64(bytes) / megabyte }
			sum := m[0].Add(m[1])
			mem, own := size(sum.PSS), size(sum.Anonymous)
			b.tell("%d peers: supervisor %.1f and tunnel %.1f MB, anonymous %.1f and %.1f, %.2f %% of a core", n, size(m[0].PSS), size(m[1].PSS), size(m[0].Anonymous), size(m[1].Anonymous), cpu)
			row := figures.Row{What: fmt.Sprintf("supervisor + tunnel, %d peers", n),
				Figure: fmt.Sprintf("%.1f MB (supervisor %.1f, tunnel %.1f); anonymous %.1f (%.1f, %.1f)", mem, size(m[0].PSS), size(m[1].PSS), own, size(m[0].Anonymous), size(m[1].Anonymous))}
			cpuRow := figures.Row{What: fmt.Sprintf("CPU of both, %d peers", n), Figure: fmt.Sprintf("%.2f %% of a core", cpu)}
			switch {
			case n == 1:
				base, base0 = mem, cpu
			case n > 1:
				row.Ratio, cpuRow.Ratio = figures.Samples{mem / base}, figures.Samples{cpu / max(base0, 0.01)}
			}
			s.Rows = append(s.Rows, row, cpuRow)
			if n > 1 {
				each := (mem - last) / float64(n-lastN)
				load := (cpu - base0) / float64(n-1)
				s.Rows = append(s.Rows,
					figures.Row{What: fmt.Sprintf("**what a peer adds, from %d to %d**", lastN, n), Figure: fmt.Sprintf("%.2f MB, anonymous %.2f", each, (own-lastOwn)/float64(n-lastN)),
						Promise: "≤ 0.6 MB", Value: each, Limit: 0.6},
					figures.Row{What: fmt.Sprintf("**CPU of a peer, from 1 to %d**", n), Figure: fmt.Sprintf("%.4f %% of a core", load), Promise: "≤ 0.01 %", Value: load, Limit: 0.01})
			}
			last, lastOwn, lastN = mem, own, n
		}
		s.Rows = append(s.Rows,
			figures.Row{What: "discovery", Figure: found.Show("%.3f", "s") + fmt.Sprintf(", slowest %.2f s", found.Max())},
			figures.Row{What: "discovery and peering, to the first answer through the tunnel", Figure: connected.Show("%.3f", "s") + fmt.Sprintf(", slowest %.2f s", connected.Max()),
				Promise: "≤ 3 s", Value: connected.Max(), Limit: 3})
		return nil
	})
}

// fake starts the nth.
func (b *bench) fake(l *lab.Lab, dir string, n int) (*fakepeer.Fake, error) {
	ns, err := wire.NewNamespace()
	if err != nil {
		return nil, err
	}
	defer ns.Close() // its process holds it from here on
	name := fmt.Sprintf("fake%d", n)
	if err := l.Attach(name, ns.FD(), fmt.Sprintf("10.77.0.%d/24", 20+n)); err != nil {
		return nil, err
	}
	return fakepeer.Start(name, "10.77.0.11", dir, func(start func() error) error { return ns.Do(start) })
}

// crowdKinds are those whose memory a peer may add to.
var crowdKinds = []string{"supervisor", "tunnel"}

// weighCrowd returns the memory of each of crowdKinds, and the CPU of all of them in
// percent of a core.
func (b *bench) weighCrowd(ctx context.Context, a *device.Device) (mem [2]procs.Memory, cpu float64, err error) {
	if _, _, err := settle(ctx, a); err != nil {
		return mem, 0, err
	}
	before, err := costs(a)
	if err != nil {
		return mem, 0, err
	}
	begun := time.Now()
	select {
	case <-ctx.Done():
		return mem, 0, ctx.Err()
	case <-time.After(quietFor):
	}
	after, err := costs(a)
	if err != nil {
		return mem, 0, err
	}
	during := seconds(time.Since(begun))
	m, err := weighKinds(a, crowdKinds)
	if err != nil {
		return mem, 0, err
	}
	for i, k := range crowdKinds {
		mem[i] = m[k]
		b.tell("%s: %.2f %%", k, 100*(after[k].cpu-before[k].cpu)/during)
		cpu += 100 * (after[k].cpu - before[k].cpu) / during
	}
	return mem, cpu, nil
}
