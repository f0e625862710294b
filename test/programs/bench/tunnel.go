package main

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"rivulet/test/programs/bench/internal/figures"
	"rivulet/test/programs/bench/internal/procs"
	"rivulet/test/programs/bench/internal/wire"
)

const (
	tunnelRounds = 5
	tunnelQuick  = 4
	tunnelFor    = 2 * time.Second
	tunnelTrips  = 1000
)

// The tunnel as shipped between devices against bare wireguard-go, without their tables to
// tell what those cost, and each under the other's memory limit, to tell what the limit costs
// from what we do to packets.
var (
	shipped  = wire.Kind{Name: "rivulet-tunnel as shipped", Device: true}
	alone    = wire.Kind{Name: "rivulet-tunnel without a device's tables"}
	bare     = wire.Kind{Name: "bare wireguard-go", Bare: true}
	noLimit  = wire.Kind{Name: "rivulet-tunnel, GOMEMLIMIT=off", Device: true, Env: []string{"GOMEMLIMIT=off"}}
	small    = wire.Kind{Name: "rivulet-tunnel of a board of 1 GB, GOMEMLIMIT=64MiB", Device: true, Env: []string{"GOMEMLIMIT=64MiB"}}
	withSame = wire.Kind{Name: "bare wireguard-go, GOMEMLIMIT=128MiB", Bare: true, Env: []string{"GOMEMLIMIT=128MiB"}}
)

// of is what is measured of one kind, a sample per round.
type of struct{ one, four, many, pps, cpu, p50, p99, peak figures.Samples }

func (b *bench) tunnel(ctx context.Context, s *figures.Section) error {
	s.Title = "Tunnel with translation : bare wireguard-go"
	s.How = fmt.Sprintf("Two pods behind two nodes on one cable, four network namespaces; the shipped helper with equal pod CIDRs at both ends (so both translate), or bare wireguard-go of the same module with distinct addresses. As shipped the nodes have the tables of devices of which one runs a pod of the other: the host's firewall, what a peer reaches, isolation of tenants, addresses of home in the pod; \"without a device's tables\" only those that the helper makes itself, with everything open. Nodes and both ends are made anew each time; %d rounds, rotated. TCP, and UDP of 64 bytes as fast as it is taken, for %v after settling; %d UDP echoes of 64 bytes. Load, both tunnels and kernel share the cores.", b.rounds(tunnelRounds, tunnelQuick), tunnelFor, tunnelTrips)
	k, err := b.helpers(ctx)
	if err != nil {
		return err
	}
	kinds := []wire.Kind{shipped, bare, alone, small, noLimit, withSame}
	if b.quick {
		kinds = kinds[:2]
	}
	got := map[string]*of{}
	for _, kind := range kinds {
		got[kind.Name] = &of{}
	}
	defer func() { s.Rows = tunnelRows(kinds, got) }()
	for i := range b.rounds(tunnelRounds, tunnelQuick) {
		for j := range kinds {
			kind := kinds[(i+j)%len(kinds)]
			if err := measure(ctx, kind, k.tunnel, filepath.Dir(k.plain), got[kind.Name]); err != nil {
				return err
			}
		}
		b.tell("tunnel, round %d: shipped %.2f / %.2f Gbit/s, bare %.2f / %.2f (1 / 4 flows)", i+1,
			got[shipped.Name].one[i]/1e9, got[shipped.Name].four[i]/1e9, got[bare.Name].one[i]/1e9, got[bare.Name].four[i]/1e9)
	}
	return nil
}

func measure(ctx context.Context, kind wire.Kind, helper, dir string, o *of) (err error) {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	l, err := wire.Open(ctx, kind, helper, dir)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := l.Close(); err == nil {
			err = cerr
		}
	}()
	trips, err := l.RTT(tunnelTrips, time.Second)
	if err != nil {
		return err
	}
	o.p50 = append(o.p50, figures.Samples(trips).Quantile(0.5))
	o.p99 = append(o.p99, figures.Samples(trips).Quantile(0.99))
	before, err := spent(l.PIDs())
	if err != nil {
		return err
	}
	one, carried, err := l.Throughput(1, tunnelFor)
	if err != nil {
		return err
	}
	after, err := spent(l.PIDs())
	if err != nil {
		return err
	}
	o.cpu = append(o.cpu, (after-before).Seconds()/(float64(carried)/1e9))
	pps, err := l.Packets(tunnelFor)
	if err != nil {
		return err
	}
	o.pps = append(o.pps, pps)
	four, _, err := l.Throughput(4, tunnelFor)
	if err != nil {
		return err
	}
	many, _, err := l.Throughput(16, tunnelFor)
	if err != nil {
		return err
	}
	o.one, o.four, o.many = append(o.one, one), append(o.four, four), append(o.many, many)
	var peak uint64
	for _, pid := range l.PIDs() {
		p, err := procs.Peak(pid)
		if err != nil {
			return fmt.Errorf("bench: %w", err)
		}
		peak = max(peak, p)
	}
	o.peak = append(o.peak, float64(peak))
	return nil
}

// spent is the CPU time that processes have taken so far.
func spent(pids []int) (sum time.Duration, err error) {
	for _, pid := range pids {
		tree, err := procs.Tree(pid)
		if err != nil {
			return 0, fmt.Errorf("bench: %w", err)
		}
		for _, p := range tree {
			sum += p.CPU
		}
	}
	return sum, nil
}

func scaled(s figures.Samples, by float64) figures.Samples {
	out := make(figures.Samples, len(s))
	for i := range s {
		out[i] = s[i] * by
	}
	return out
}

func tunnelRows(kinds []wire.Kind, got map[string]*of) (rows []figures.Row) {
	base := got[bare.Name]
	for _, kind := range kinds {
		o := got[kind.Name]
		for _, f := range []struct {
			what         string
			of           func(*of) figures.Samples
			scale        float64
			format, unit string
			limit        float64
			more         bool // is better
		}{
			{"TCP, 1 flow", func(o *of) figures.Samples { return o.one }, 1e-9, "%.2f", "Gbit/s", 0.95, true},
			{"TCP, 4 flows", func(o *of) figures.Samples { return o.four }, 1e-9, "%.2f", "Gbit/s", 0.95, true},
			{"TCP, 16 flows", func(o *of) figures.Samples { return o.many }, 1e-9, "%.2f", "Gbit/s", 0.95, true},
			{"UDP of 64 bytes", func(o *of) figures.Samples { return o.pps }, 1e-3, "%.0f", "thousand packets/s", 0, true},
			{"CPU of both ends per GB, TCP, 1 flow", func(o *of) figures.Samples { return o.cpu }, 1, "%.1f", "s", 0, false},
			{"UDP round trip, p50", func(o *of) figures.Samples { return o.p50 }, 1e3, "%.3f", "ms", 1 / 0.95, false},
			{"UDP round trip, p99", func(o *of) figures.Samples { return o.p99 }, 1e3, "%.3f", "ms", 0, false},
		} {
			row := figures.Row{What: kind.Name + ": " + f.what, Figure: scaled(f.of(o), f.scale).Show(f.format, f.unit)}
			if kind.Name != bare.Name {
				row.Ratio = f.of(o).Over(f.of(base))
			}
			if (kind.Name == shipped.Name || kind.Name == small.Name && f.more) && f.limit > 0 {
				row.Promise, row.Value, row.Limit, row.AtLeast = "≤ 1.05", row.Ratio.Median(), f.limit, f.more
				if f.more {
					row.Promise = "≥ 0.95"
				}
			}
			rows = append(rows, row)
		}
		row := figures.Row{What: kind.Name + ": peak resident memory, the larger end", Figure: scaled(o.peak, 1/megabyte).Show("%.0f", "MB")}
		switch kind.Name {
		case shipped.Name:
			row.Promise, row.Value, row.Limit = "≤ 128 MB", o.peak.Max()/megabyte, 128
		case small.Name:
			row.Promise, row.Value, row.Limit = "≤ 64 MB", o.peak.Max()/megabyte, 64
		}
		rows = append(rows, row)
	}
	return rows
}
