package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"rivulet/test/harness/await"
)

// What `shop load` prints (examples/shop/load.go).
type loadReport struct {
	Requests, Failed, Orders int
	P50, P95, P99, Max       float64
	LongestGap               float64
	Reasons                  map[string]int
	BySecond, SlowBySecond   map[int]int
	Sockets                  struct {
		Sessions, Messages, Moved, Lost int
		LongestSilence                  float64
		Reasons                         map[string]int
	}
}

type result struct {
	fault
	loadReport
}

// A fault happens in the middle of a load.
type fault struct {
	name    string
	lasting time.Duration
	begin   func(context.Context) error // a quarter of the load after its beginning; nil: nothing happens
	undo    func(context.Context) error // a third of the load later
	mend    func(context.Context) error // after the load
	target  float64                     // the share of requests that may fail, with begin
}

const (
	visits  = "10" // a second, of three requests each
	sockets = "6"
)

// load loads the shop from home as its users do.
func (p *pilot) load(ctx context.Context, lasting time.Duration) (r loadReport, err error) {
	out, err := p.home.Run(ctx, "/opt/rivulet/shop", "load", "-shop", p.shop, "-prices", p.prices, "-rate", visits, "-sockets", sockets, "-for", lasting.String())
	if err == nil {
		err = json.Unmarshal([]byte(out), &r)
	}
	if err != nil {
		return r, fmt.Errorf("demo: the load: %w", err)
	}
	p.ordersConfirmed += r.Orders
	return r, nil
}

// settled waits until users notice nothing of what happened before.
func (p *pilot) settled(ctx context.Context) error {
	const look = 3 * time.Second
	return await.Until(ctx, func() error {
		r, err := p.load(ctx, look)
		if err == nil && (r.Failed > 0 || len(r.SlowBySecond) > 0 || r.Sockets.Lost > 0) {
			err = fmt.Errorf("demo: the shop has not settled: %+v", r)
		}
		return err
	})
}

// measure loads the shop, with a fault in the middle.
func (p *pilot) measure(ctx context.Context, f fault) error {
	if err := p.settled(ctx); err != nil {
		return err
	}
	p.tell("%s: a load of %s", f.name, f.lasting)
	happened := make(chan error, 1)
	within, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { happened <- f.happen(within) }()
	r, err := p.load(ctx, f.lasting)
	if err != nil {
		return err
	}
	if err := <-happened; err != nil {
		return err
	}
	p.results = append(p.results, result{f, r})
	p.print(r)
	if f.mend == nil {
		return nil
	}
	if err := f.mend(ctx); err != nil {
		return err
	}
	return p.targets(ctx)
}

func (f fault) happen(ctx context.Context) error {
	for _, part := range []struct {
		at time.Duration
		do func(context.Context) error
	}{{f.lasting / 4, f.begin}, {f.lasting / 3, f.undo}} {
		if part.do == nil {
			continue
		}
		select {
		case <-time.After(part.at):
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := part.do(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (p *pilot) print(r loadReport) {
	p.tell("%d requests, %d failed; p50 %.0f, p95 %.0f, p99 %.0f, longest %.0f ms; longest gap %.0f ms; WebSocket sessions: %d moved, %d lost, longest silence %.0f ms",
		r.Requests, r.Failed, r.P50, r.P95, r.P99, r.Max, r.LongestGap, r.Sockets.Moved, r.Sockets.Lost, r.Sockets.LongestSilence)
	for _, reason := range slices.Sorted(maps.Keys(r.Reasons)) {
		p.tell("  %d failed: %s", r.Reasons[reason], reason)
	}
	for _, reason := range slices.Sorted(maps.Keys(r.Sockets.Reasons)) {
		p.tell("  %d WebSocket sessions lost: %s", r.Sockets.Reasons[reason], reason)
	}
	for name, by := range map[string]map[int]int{"failed": r.BySecond, "took more than 200 ms": r.SlowBySecond} {
		var parts []string
		for _, s := range slices.Sorted(maps.Keys(by)) {
			parts = append(parts, fmt.Sprintf("%d:%d", s, by[s]))
		}
		if len(parts) > 0 {
			p.tell("  %s, by second: %s", name, strings.Join(parts, " "))
		}
	}
}

// table prints all results.
func (p *pilot) table() error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nIN THE MIDDLE\tREQUESTS\tFAILED\tTARGET\tP50 MS\tP95 MS\tP99 MS\tLONGEST GAP MS\tSESSIONS MOVED\tLOST")
	for _, r := range p.results {
		target := "-"
		if r.begin != nil {
			target = fmt.Sprintf("%g %%", 100*r.target)
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%.0f\t%.0f\t%.0f\t%.0f\t%d\t%d\n", r.name, r.Requests, r.Failed, target, r.P50, r.P95, r.P99, r.LongestGap, r.Sockets.Moved, r.Sockets.Lost)
	}
	if home, spread := p.results[0], p.results[1]; home.P50 > 0 {
		fmt.Fprintf(w, "\nspread : home\t\t\t\t%.2f\t%.2f\t%.2f\n", spread.P50/home.P50, spread.P95/home.P95, spread.P99/home.P99)
	}
	return w.Flush()
}

// missed is an error that names the targets that were missed.
func (p *pilot) missed(context.Context) error {
	var errs []error
	for _, r := range p.results {
		if r.Requests == 0 {
			errs = append(errs, fmt.Errorf("demo: %s: no request was sent", r.name))
		}
		if share := float64(r.Failed) / float64(max(r.Requests, 1)); share > r.target {
			errs = append(errs, fmt.Errorf("demo: %s: %d of %d requests failed, %.2f %%, and the target is %g %%", r.name, r.Failed, r.Requests, 100*share, 100*r.target))
		}
	}
	return errors.Join(errs...)
}
