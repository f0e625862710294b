package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// Status is the part of `rivulet status -o json` that the lab reads.
type Status struct {
	Ready bool `json:"ready"`
	Peers []struct {
		Name  string `json:"name"`
		State string `json:"state"`
	} `json:"peers"`
	VirtualNodes []struct {
		Name  string `json:"name"`
		Ready bool   `json:"ready"`
	} `json:"virtualNodes"`
}

// Connected counts the peers that are connected.
func (s Status) Connected() int {
	n := 0
	for _, p := range s.Peers {
		if p.State == "Connected" {
			n++
		}
	}
	return n
}

// NodesReady counts the virtual nodes that are Ready.
func (s Status) NodesReady() int {
	n := 0
	for _, v := range s.VirtualNodes {
		if v.Ready {
			n++
		}
	}
	return n
}

// Status asks Rivulet on the device. A status that is "not ready" may come with an exit code: the JSON decides.
func (d *Device) Status(ctx context.Context) (Status, error) {
	var s Status
	out, err := d.Command(ctx, "rivulet", "status", "-o", "json").Output()
	if jsonErr := json.Unmarshal(out, &s); jsonErr == nil {
		return s, nil
	} else if err == nil {
		return s, fmt.Errorf("lab: %s: rivulet status: %w", d.Name, jsonErr)
	}
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return s, fmt.Errorf("lab: %s: rivulet status: %w: %s", d.Name, err, strings.TrimSpace(string(exit.Stderr)))
	}
	return s, fmt.Errorf("lab: %s: rivulet status: %w", d.Name, err)
}

// WaitReady returns when Rivulet on the device says that it is ready.
func (d *Device) WaitReady(ctx context.Context) error {
	return d.waitStatus(ctx, "ready", func(s Status) bool { return s.Ready })
}

// WaitPeered returns when at least n peers are connected and as many virtual nodes are Ready.
func (d *Device) WaitPeered(ctx context.Context, n int) error {
	return d.waitStatus(ctx, fmt.Sprintf("peered with %d", n), func(s Status) bool { return s.Connected() >= n && s.NodesReady() >= n })
}

func (d *Device) waitStatus(ctx context.Context, what string, ok func(Status) bool) error {
	var last string
	err := poll(ctx, time.Second, func() (bool, error) {
		info, err := d.Info(ctx)
		if err == nil && info.On && info.Supervisor == 0 {
			return false, fmt.Errorf("lab: rivulet on %s does not run (%s): see `rivulet-lab logs %s`", d.Name, info.Exit, d.Name)
		}
		s, err := d.Status(ctx)
		if err != nil {
			if ctx.Err() == nil {
				last = err.Error()
			}
			return false, nil
		}
		last = fmt.Sprintf("ready %t, %d of %d peers connected, %d of %d virtual nodes ready",
			s.Ready, s.Connected(), len(s.Peers), s.NodesReady(), len(s.VirtualNodes))
		return ok(s), nil
	})
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return fmt.Errorf("lab: %s is not %s: %w: last seen: %s: see `rivulet-lab logs %s`", d.Name, what, err, last, d.Name)
	}
	return err
}

// WaitReady waits for all devices.
func (l *Lab) WaitReady(ctx context.Context) error {
	return l.each(func(d *Device, _ int) error { return d.WaitReady(ctx) })
}

// WaitPeered waits until every device is peered with all others.
func (l *Lab) WaitPeered(ctx context.Context) error {
	return l.each(func(d *Device, n int) error { return d.WaitPeered(ctx, n-1) })
}

func (l *Lab) each(f func(d *Device, n int) error) error {
	ds, err := l.Devices()
	if err != nil {
		return err
	}
	errs := make(chan error)
	for _, d := range ds {
		go func() { errs <- f(d, len(ds)) }()
	}
	var all []error
	for range ds {
		all = append(all, <-errs)
	}
	return errors.Join(all...)
}
