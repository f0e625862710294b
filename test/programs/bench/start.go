package main

import (
	"context"
	"fmt"

	"rivulet/test/harness/lab"
	"rivulet/test/programs/bench/internal/device"
	"rivulet/test/programs/bench/internal/figures"
)

const startRounds, startQuick = 6, 3

// start: from the start of the process to the node's Ready condition, on a device
// that has never run, with and without the supervisor.
func (b *bench) start(ctx context.Context, s *figures.Section) error {
	s.Title = "Process start → node Ready"
	s.How = fmt.Sprintf("A fresh device runs `rivulet run` (which first unpacks its bundle), another the same ELF as plain k3s with the same flags, helpers already unpacked; %d interleaved rounds. The clock starts with the process and stops when a watch shows the node Ready.", b.rounds(startRounds, startQuick))
	k, err := b.helpers(ctx)
	if err != nil {
		return err
	}
	ours, plain := &starts{}, &starts{}
	var all figures.Samples
	defer func() {
		for _, r := range []struct {
			what string
			of   func(*starts) figures.Samples
		}{
			{"node Ready", func(s *starts) figures.Samples { return s.node }},
			{"API answers", func(s *starts) figures.Samples { return s.api }},
			{"pods may be made (default service account)", func(s *starts) figures.Samples { return s.pods }},
		} {
			s.Rows = append(s.Rows,
				figures.Row{What: "rivulet run → " + r.what, Figure: r.of(ours).Show("%.2f", "s"), Ratio: r.of(ours).Over(r.of(plain))},
				figures.Row{What: "plain k3s → " + r.what, Figure: r.of(plain).Show("%.2f", "s")})
		}
		s.Rows = append(s.Rows, figures.Row{What: "rivulet run → `rivulet status` says ready (pods and cluster DNS)", Figure: all.Show("%.2f", "s")})
	}()
	for i := range b.rounds(startRounds, startQuick) {
		rivulet := func() error {
			return b.stage.Lab(ctx, b.stage.Binary(), 1, nil, func(_ *lab.Lab, ds []*device.Device) error {
				if err := ours.take(ctx, ds[0]); err != nil {
					return err
				}
				at, err := ds[0].WaitReady(ctx)
				if err != nil {
					return err
				}
				begun, err := ds[0].PoweredOn()
				all = append(all, seconds(at.Sub(begun)))
				return err
			})
		}
		k3s := func() error {
			return b.stage.Lab(ctx, k.plain, 1, nil, func(_ *lab.Lab, ds []*device.Device) error { return plain.take(ctx, ds[0]) })
		}
		pair := []func() error{rivulet, k3s}
		for j := range pair {
			if err := pair[(i+j)%2](); err != nil {
				return err
			}
		}
		b.tell("start, round %d: rivulet %.1f s, plain k3s %.1f s", i+1, ours.node[i], plain.node[i])
	}
	return nil
}

// starts are seconds since the start of a device's first process, a sample per round.
type starts struct{ api, node, pods figures.Samples }

func (s *starts) take(ctx context.Context, d *device.Device) error {
	api, node, err := up(ctx, d)
	if err != nil {
		return err
	}
	pods, err := d.WaitPodsAllowed(ctx)
	if err != nil {
		return err
	}
	begun, err := d.PoweredOn()
	s.api, s.node, s.pods = append(s.api, api), append(s.node, node), append(s.pods, seconds(pods.Sub(begun)))
	return err
}

// up waits for a device's API and node, and returns how long after the start of
// its first process each came, in seconds.
func up(ctx context.Context, d *device.Device) (api, node float64, err error) {
	apiAt, err := d.WaitAPI(ctx)
	if err != nil {
		return 0, 0, err
	}
	nodeAt, err := d.WaitNode(ctx, 1, device.Home)
	if err != nil {
		return 0, 0, err
	}
	begun, err := d.PoweredOn()
	return seconds(apiAt.Sub(begun)), seconds(nodeAt.Sub(begun)), err
}
