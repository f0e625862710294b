package main

import (
	"context"
	"fmt"
	"time"

	"rivulet/test/bench/internal/device"
	"rivulet/test/bench/internal/figures"
	"rivulet/test/lab"
)

const startRounds = 5

// start: from the start of the process to the node's Ready condition, on a device
// that has never run, with and without the supervisor.
func (b *bench) start(ctx context.Context, s *figures.Section) error {
	s.Title = "Process start → node Ready"
	s.How = fmt.Sprintf("A fresh device runs `rivulet run` (which first unpacks its bundle), another the same ELF as plain k3s with the same flags, helpers already unpacked; %d interleaved rounds. The clock starts with the process and stops when a watch shows the node Ready.", startRounds)
	k, err := b.helpers(ctx)
	if err != nil {
		return err
	}
	var ours, oursAPI, oursAll, plain, plainAPI figures.Samples
	defer func() {
		s.Rows = []figures.Row{
			{What: "rivulet run → node Ready", Figure: ours.Show("%.2f", "s"), Ratio: ours.Over(plain)},
			{What: "plain k3s → node Ready", Figure: plain.Show("%.2f", "s")},
			{What: "rivulet run → API answers", Figure: oursAPI.Show("%.2f", "s"), Ratio: oursAPI.Over(plainAPI)},
			{What: "plain k3s → API answers", Figure: plainAPI.Show("%.2f", "s")},
			{What: "rivulet run → `rivulet status` says ready (cluster DNS too)", Figure: oursAll.Show("%.2f", "s")},
		}
	}()
	for i := range startRounds {
		rivulet := func() error {
			return b.stage.Lab(ctx, b.stage.Binary(), 1, nil, func(_ *lab.Lab, ds []*device.Device) error {
				api, node, err := up(ctx, ds[0])
				if err != nil {
					return err
				}
				begun, err := ds[0].PoweredOn()
				if err != nil {
					return err
				}
				for st := false; !st; {
					now, err := ds[0].Status(ctx)
					if err != nil {
						return err
					}
					st = now.Ready
				}
				oursAll = append(oursAll, seconds(time.Since(begun)))
				oursAPI, ours = append(oursAPI, api), append(ours, node)
				return nil
			})
		}
		k3s := func() error {
			return b.stage.Lab(ctx, k.plain, 1, nil, func(_ *lab.Lab, ds []*device.Device) error {
				api, node, err := up(ctx, ds[0])
				plainAPI, plain = append(plainAPI, api), append(plain, node)
				return err
			})
		}
		pair := []func() error{rivulet, k3s}
		for j := range pair {
			if err := pair[(i+j)%2](); err != nil {
				return err
			}
		}
		b.tell("start, round %d: rivulet %.1f s, plain k3s %.1f s", i+1, ours[i], plain[i])
	}
	return nil
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
