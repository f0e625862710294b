package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"rivulet/test/harness/lab"
	"rivulet/test/programs/bench/internal/device"
	"rivulet/test/programs/bench/internal/figures"
	"rivulet/test/programs/bench/internal/procs"
)

const (
	steadyFor    = 10 * time.Second // within steadyWithin
	steadyWithin = 0.02
	steadyAtMost = 75 * time.Second
	idleFor      = 60 * time.Second
)

var kinds = []string{"supervisor", "tunnel", "engine", "containerd"}

// memory: what each process of a takes with no, one and two peers, nobody doing
// anything, and what that costs in CPU and writes.
func (b *bench) memory(ctx context.Context, s *figures.Section) error {
	s.Title = "Memory, idle"
	s.How = fmt.Sprintf("PSS from `smaps_rollup`, anonymous and file-backed apart. Each device has its own copy of the ELF, as separate machines have it; supervisor, engine and containerd of one device are the same ELF and share its pages, which PSS divides between them; private is what the machine would get back. Read when supervisor and tunnel changed less than %.0f %% over %v.", 100*steadyWithin, steadyFor)
	own, err := b.stage.Beside("own", device.OwnCopy)
	if err != nil {
		return err
	}
	apart := func(l *lab.Lab) error {
		c, err := l.Device("c")
		if err != nil {
			return err
		}
		return errors.Join(l.Cut("a", ""), c.Kill(ctx, "power"))
	}
	return b.stage.Lab(ctx, own, 3, apart, func(l *lab.Lab, ds []*device.Device) error {
		a := ds[0]
		for _, d := range ds[:2] {
			if _, _, err := up(ctx, d); err != nil {
				return err
			}
		}
		var added []float64 // by supervisor and tunnel, MB
		for peers := range 3 {
			switch peers {
			case 1:
				if err := l.Heal(); err != nil {
					return err
				}
			case 2:
				if err := ds[2].Start(ctx); err != nil {
					return err
				}
			}
			if peers > 0 {
				if _, err := a.WaitNode(ctx, peers, device.Virtual); err != nil {
					return err
				}
			}
			if st, err := a.Status(ctx); err != nil || len(st.Peers) != peers {
				return errors.Join(err, fmt.Errorf("bench: a has %d peers, not %d", len(st.Peers), peers))
			}
			took, steady, err := settle(ctx, a)
			if err != nil {
				return err
			}
			if !steady {
				s.Notes = append(s.Notes, fmt.Sprintf("With %d peers it was not steady after %v.", peers, steadyAtMost))
			}
			m, err := weigh(a)
			if err != nil {
				return err
			}
			b.tell("memory, %d peers, steady after %v: %v", peers, took.Round(time.Second), m)
			sum := m["supervisor"].Add(m["tunnel"])
			added = append(added, float64(sum.PSS)/megabyte)
			for _, k := range kinds {
				s.Rows = append(s.Rows, figures.Row{What: fmt.Sprintf("%s, %d peers", k, peers), Figure: show(m[k])})
			}
			s.Rows = append(s.Rows, figures.Row{What: fmt.Sprintf("**supervisor + tunnel, %d peers**", peers), Figure: show(sum),
				Promise: fmt.Sprintf("≤ %d MB", 60+peers), Value: added[peers], Limit: float64(60 + peers)})
			if peers > 0 {
				s.Rows = append(s.Rows, figures.Row{What: fmt.Sprintf("what peer %d added", peers), Figure: fmt.Sprintf("%.1f MB", added[peers]-added[peers-1]),
					Promise: map[int]string{2: "≤ 1 MB"}[peers], Value: added[peers] - added[peers-1], Limit: 1})
			}
		}
		return b.idle(ctx, a, s)
	})
}

func show(m procs.Memory) string {
	return fmt.Sprintf("%.1f MB (anonymous %.1f, file %.1f; private %.1f)",
		float64(m.PSS)/megabyte, float64(m.Anonymous)/megabyte, float64(m.File)/megabyte, float64(m.Private)/megabyte)
}

// weigh sums the memory of a device's processes by what they are.
func weigh(d *device.Device) (map[string]procs.Memory, error) { return weighKinds(d, kinds) }

func weighKinds(d *device.Device, kinds []string) (map[string]procs.Memory, error) {
	byKind, err := d.Processes()
	if err != nil {
		return nil, err
	}
	out := map[string]procs.Memory{}
	for _, k := range kinds {
		if len(byKind[k]) == 0 {
			return nil, fmt.Errorf("bench: %s has no %s", d.Name, k)
		}
		for _, p := range byKind[k] {
			m, err := procs.MemoryOf(p.PID)
			if err != nil {
				return nil, fmt.Errorf("bench: %w", err)
			}
			out[k] = out[k].Add(m)
		}
	}
	return out, nil
}

// settle waits until supervisor and tunnel have kept their size for a while.
func settle(ctx context.Context, d *device.Device) (took time.Duration, steady bool, err error) {
	begun := time.Now()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var last []uint64
	for time.Since(begun) < steadyAtMost {
		m, err := weigh(d)
		if err != nil {
			return 0, false, err
		}
		last = append(last, m["supervisor"].PSS+m["tunnel"].PSS)
		if n := int(steadyFor / time.Second); len(last) > n {
			last = last[len(last)-n-1:]
			low, high := slices.Min(last), slices.Max(last)
			if float64(high-low) < steadyWithin*float64(high) {
				return time.Since(begun), true, nil
			}
		}
		select {
		case <-ctx.Done():
			return 0, false, ctx.Err()
		case <-tick.C:
		}
	}
	return steadyAtMost, false, nil
}

// cost is CPU time and bytes written so far, by kind.
type cost struct{ cpu, written float64 }

func costs(d *device.Device) (map[string]cost, error) {
	byKind, err := d.Processes()
	if err != nil {
		return nil, err
	}
	out := map[string]cost{}
	for _, k := range kinds {
		for _, p := range byKind[k] {
			w, err := procs.Written(p.PID)
			if err != nil {
				return nil, fmt.Errorf("bench: %w", err)
			}
			c := out[k]
			out[k] = cost{c.cpu + seconds(p.CPU), c.written + float64(w)}
		}
	}
	return out, nil
}

// idle measures CPU and writes of a device that nobody uses.
func (b *bench) idle(ctx context.Context, d *device.Device, s *figures.Section) error {
	before, err := costs(d)
	if err != nil {
		return err
	}
	begun := time.Now()
	timer := time.NewTimer(idleFor)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
	}
	after, err := costs(d)
	if err != nil {
		return err
	}
	during := seconds(time.Since(begun))
	total := 0.0
	for _, k := range kinds {
		cpu := 100 * (after[k].cpu - before[k].cpu) / during
		day := (after[k].written - before[k].written) / during * 86400 / megabyte
		total += day
		s.Rows = append(s.Rows, figures.Row{What: k + ", 2 peers, idle", Figure: fmt.Sprintf("%.2f %% of a core, writes %.0f MB a day", cpu, day)})
	}
	s.Rows = append(s.Rows, figures.Row{What: "**written to disk, all of them**", Figure: fmt.Sprintf("%.0f MB a day", total), Promise: "≤ 250 MB a day", Value: total, Limit: 250})
	s.Notes = append(s.Notes, fmt.Sprintf("CPU and writes are those of %v shortly after the start, carried over to a day; what cron-like work adds in hours is not in it.", idleFor))
	return nil
}
