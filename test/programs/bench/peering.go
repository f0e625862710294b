package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"rivulet/test/harness/lab"
	"rivulet/test/programs/bench/internal/device"
	"rivulet/test/programs/bench/internal/figures"
)

const (
	peeringRounds = 5
	cableRounds   = 5
)

// peering: two devices that never met, from the moment both can until each shows
// the other as a Ready node.
func (b *bench) peering(ctx context.Context, s *figures.Section) error {
	s.Title = "Both APIs up → both virtual nodes Ready"
	s.How = fmt.Sprintf("Two fresh devices on one LAN, nothing configured. From the later of the two `/readyz` (asked every 50 ms) to the later of the two virtual nodes Ready (watched); %d rounds. With the cable out until both devices say ready: from plugging it in; %d rounds.", peeringRounds, cableRounds)
	var both, cable, again figures.Samples
	defer func() {
		s.Rows = []figures.Row{
			{What: "both switched on together", Figure: both.Show("%.2f", "s") + fmt.Sprintf(", slowest %.2f s", both.Max()), Promise: "≤ 5 s", Value: both.Max(), Limit: 5},
			{What: "cable plugged in later", Figure: cable.Show("%.2f", "s") + fmt.Sprintf(", slowest %.2f s", cable.Max()), Promise: "≤ 5 s", Value: cable.Max(), Limit: 5},
			{What: "same cable out until the nodes are not Ready, and in again", Figure: again.Show("%.2f", "s")},
		}
	}()
	for range peeringRounds {
		err := b.stage.Lab(ctx, b.stage.Binary(), 2, nil, func(_ *lab.Lab, ds []*device.Device) error {
			from, err := together(ds, func(d *device.Device) (time.Time, error) { return d.WaitAPI(ctx) })
			if err != nil {
				return err
			}
			to, err := together(ds, func(d *device.Device) (time.Time, error) { return d.WaitNode(ctx, 1, device.Virtual) })
			both = append(both, seconds(to.Sub(from)))
			return err
		})
		if err != nil {
			return err
		}
		b.tell("peering: %.2f s", both[len(both)-1])
	}
	for range cableRounds {
		out := func(l *lab.Lab) error { return l.Cut("a", "") }
		err := b.stage.Lab(ctx, b.stage.Binary(), 2, out, func(l *lab.Lab, ds []*device.Device) error {
			for _, d := range ds {
				if _, _, err := up(ctx, d); err != nil {
					return err
				}
				if _, err := d.WaitReady(ctx); err != nil {
					return err
				}
				if st, err := d.Status(ctx); err != nil || len(st.Peers) > 0 {
					return errors.Join(err, fmt.Errorf("bench: %s has %d peers without a cable", d.Name, len(st.Peers)))
				}
			}
			for _, samples := range []*figures.Samples{&cable, &again} {
				from := time.Now()
				if err := l.Heal(); err != nil {
					return err
				}
				to, err := together(ds, func(d *device.Device) (time.Time, error) { return d.WaitNode(ctx, 1, device.Virtual) })
				if err != nil {
					return err
				}
				*samples = append(*samples, seconds(to.Sub(from)))
				b.tell("peering, cable in: %.2f s", seconds(to.Sub(from)))
				if samples == &again {
					break
				}
				if err := l.Cut("a", ""); err != nil {
					return err
				}
				gone := func(d *device.Device) (time.Time, error) { return d.WaitGone(ctx, 1) }
				if _, err := together(ds, gone); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// together waits for all devices and returns the latest moment.
func together(ds []*device.Device, f func(*device.Device) (time.Time, error)) (time.Time, error) {
	at := make([]time.Time, len(ds))
	var g errgroup.Group
	for i, d := range ds {
		g.Go(func() (err error) {
			at[i], err = f(d)
			return err
		})
	}
	err := g.Wait()
	last := at[0]
	for _, t := range at {
		if t.After(last) {
			last = t
		}
	}
	return last, err
}
