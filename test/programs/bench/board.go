package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"rivulet/appliance/engine"
	"rivulet/appliance/machine/host"
	"rivulet/test/harness/lab"
	"rivulet/test/programs/bench/internal/device"
	"rivulet/test/programs/bench/internal/figures"
)

const (
	boardRAM    = 950 << 20       // of a board of 1 GB, bytes
	boardRest   = 2 * time.Minute // after Ready: the start is over, pages of the start are given back after one
	boardWrites = 10 * time.Minute
)

// board: what Rivulet and plain k3s cost a board of 1 GB, side by side at the same time.
func (b *bench) board(ctx context.Context, s *figures.Section) error {
	s.Title = "A board of 1 GB: memory and writes, beside plain k3s"
	s.How = fmt.Sprintf("Devices with a memory cgroup of %d MiB and a `/proc/meminfo` that says so. Rivulet's a has one peer, b; a third device runs the same ELF as upstream's k3s would run: its own flags but for what is switched off (traefik, servicelb, coredns, local-storage, metrics-server), kine's own SQLite settings, no limits. All idle for %v after Ready, then watched at the same time for %v.", boardRAM>>20, boardRest, boardWrites)
	k, err := b.helpers(ctx)
	if err != nil {
		return err
	}
	program, err := b.stage.Beside("board", func(path string) error { return boardProgram(path, k.plain) })
	if err != nil {
		return err
	}
	small := func(o *lab.Options) {
		o.Memory, o.Env = boardRAM, map[string][]string{"c": {upstreamEnv + "=" + ownProduct}}
	}
	return b.stage.Lab(ctx, program, 3, nil, func(_ *lab.Lab, ds []*device.Device) error {
		for _, d := range ds {
			if _, _, err := up(ctx, d); err != nil {
				return err
			}
		}
		if _, err := ds[0].WaitNode(ctx, 1, device.Virtual); err != nil {
			return err
		}
		return compareBoards(ctx, ds[0], ds[2], s)
	}, small)
}

const (
	// upstreamEnv names the product for a device that is to run k3s as upstream does.
	upstreamEnv = "RIVULET_BENCH_UPSTREAM"
	ownProduct  = "/var/lib/product/rivulet" // each device's own copy of the ELF, see device.OwnCopy
)

// boardProgram writes what the devices run: the product, or plain k3s where the
// environment says so. The folder of plain has the helpers and files for that.
func boardProgram(path, plain string) error {
	dir := filepath.Dir(path)
	if err := os.CopyFS(filepath.Join(dir, "bundle"), os.DirFS(filepath.Join(filepath.Dir(plain), "bundle"))); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	if err := os.CopyFS(filepath.Join(dir, "seed"), os.DirFS(filepath.Join(filepath.Dir(plain), "seed"))); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "plain"), 0o755); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	if err := device.CopySelf(filepath.Join(dir, "plain", "rivulet")); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(`#!/bin/sh
own=`+ownProduct+`
if [ "$1" = run ] && [ ! -e "$own" ]; then
	mkdir -p /var/lib/product && cp /opt/rivulet/product "$own.part" && mv "$own.part" "$own"
fi
[ -e "$own" ] || { echo "the copy of the product is not there yet" >&2; exit 1; }
[ "$1" = run ] && [ -n "$`+upstreamEnv+`" ] && exec /opt/rivulet/plain/rivulet
exec "$own" "$@"
`), 0o755)
}

// upstreamArgs are those of a k3s that somebody installs beside nothing else: the
// add-ons we do not have are off, and the rest is as it comes. The database is
// named, because this ELF would otherwise use settings of its own.
func upstreamArgs(e *engine.Engine, node string, facts host.Facts) []string {
	args := []string{"server", "--data-dir=" + e.DataDir(), "--write-kubeconfig=" + e.Kubeconfig(), "--node-name=" + node,
		"--node-ip=100.127.7.7", "--flannel-iface=lo", "--flannel-backend=host-gw", "--pause-image=" + engine.PauseRef,
		"--disable=traefik,servicelb,coredns,local-storage,metrics-server", "--disable-helm-controller", "--disable-cloud-controller", "--disable-network-policy",
		"--datastore-endpoint=sqlite://" + filepath.Join(e.DataDir(), "server/db/state.db") + "?_journal=WAL&cache=shared&_busy_timeout=30000&_txlock=immediate"}
	if facts.CgroupV1 {
		args = append(args, "--kubelet-arg=fail-cgroupv1=false")
	}
	return args
}

func compareBoards(ctx context.Context, ours, plain *device.Device, s *figures.Section) error {
	if err := rest(ctx, boardRest); err != nil {
		return err
	}
	plainKinds := []string{"engine", "containerd"}
	for _, one := range []struct {
		what  string
		d     *device.Device
		kinds []string
		limit float64
	}{{"rivulet, 1 peer", ours, kinds, 450}, {"plain k3s", plain, plainKinds, 0}} {
		m, err := weighKinds(one.d, one.kinds)
		if err != nil {
			return err
		}
		sum := m[one.kinds[0]]
		for _, k := range one.kinds[1:] {
			sum = sum.Add(m[k])
		}
		for _, k := range one.kinds {
			s.Rows = append(s.Rows, figures.Row{What: one.what + ": " + k, Figure: show(m[k])})
		}
		if own, ok := m["supervisor"]; ok {
			own = own.Add(m["tunnel"])
			s.Rows = append(s.Rows, figures.Row{What: "**" + one.what + ": supervisor + tunnel**", Figure: show(own), Promise: "≤ 61 MB", Value: float64(own.PSS) / megabyte, Limit: 61})
		}
		row := figures.Row{What: "**" + one.what + ": all**", Figure: show(sum)}
		if one.limit > 0 {
			row.Promise, row.Value, row.Limit = fmt.Sprintf("≤ %.0f MB", one.limit), float64(sum.PSS)/megabyte, one.limit
		}
		s.Rows = append(s.Rows, row)
	}
	before := map[*device.Device]map[string]cost{}
	for _, d := range []*device.Device{ours, plain} {
		c, err := costs(d)
		if err != nil {
			return err
		}
		before[d] = c
	}
	begun := time.Now()
	if err := rest(ctx, boardWrites); err != nil {
		return err
	}
	day := map[*device.Device]float64{}
	cpu := map[*device.Device]float64{}
	for d, was := range before {
		now, err := costs(d)
		if err != nil {
			return err
		}
		during := seconds(time.Since(begun))
		for _, k := range kinds {
			day[d] += (now[k].written - was[k].written) / during * 86400 / megabyte
			cpu[d] += 100 * (now[k].cpu - was[k].cpu) / during
		}
	}
	s.Rows = append(s.Rows,
		figures.Row{What: "**rivulet, 1 peer: written**", Figure: fmt.Sprintf("%.0f MB a day", day[ours]), Ratio: figures.Samples{day[ours] / day[plain]},
			Promise: "≤ 250 MB a day", Value: day[ours], Limit: 250},
		figures.Row{What: "plain k3s: written", Figure: fmt.Sprintf("%.0f MB a day", day[plain])},
		figures.Row{What: "rivulet, 1 peer: CPU", Figure: fmt.Sprintf("%.2f %% of a core", cpu[ours]), Ratio: figures.Samples{cpu[ours] / cpu[plain]}},
		figures.Row{What: "plain k3s: CPU", Figure: fmt.Sprintf("%.2f %% of a core", cpu[plain])})
	return nil
}

// rest lets a time pass that is part of what is measured.
func rest(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
