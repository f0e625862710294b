// Package parts keeps the parts of a role running. One that ends, also by a panic, is restarted after a growing pause,
// does not delay the others, and is a problem until it runs. It writes nothing and has no state across restarts.
package parts

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"time"

	"rivulet/fabric/changes"
	"rivulet/fabric/panics"
)

const (
	// FirstWait and LongestWait bound the pauses, which double.
	FirstWait, LongestWait = time.Second, 30 * time.Second
	// settled is how long a part has to run until its problem is over, steady until its next failure counts as the
	// first.
	settled, steady = 3 * time.Second, time.Minute
)

// Parts are those of one role. All methods may be called concurrently.
type Parts struct {
	log *slog.Logger

	mu       sync.Mutex
	problems map[string]string // the reason, by part
}

// New returns Parts without problems.
func New(log *slog.Logger) *Parts { return &Parts{log: log, problems: map[string]string{}} }

// Keep runs a part repeatedly until ctx ends, and shows its failures as problems.
func (p *Parts) Keep(ctx context.Context, part string, run func(context.Context) error) {
	for pause := (changes.Backoff{First: FirstWait, Longest: LongestWait}); ; {
		started := time.Now()
		over := time.AfterFunc(settled, func() { p.Report(part, nil) })
		err := panics.Call(func() error { return run(ctx) })
		over.Stop()
		if ctx.Err() != nil {
			return
		}
		if time.Since(started) > steady {
			pause.Reset()
		}
		wait := pause.Next()
		p.Report(part, err)
		p.log.Warn("a part of offloading stopped and is started again", "part", part, "err", err, "retry", wait)
		if !changes.Wait(ctx, wait) {
			return
		}
	}
}

// Report records why a part does not run; nil clears it.
func (p *Parts) Report(part string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		delete(p.problems, part)
		return
	}
	p.problems[part] = err.Error()
}

// Problems are the parts that do not run, with the reason. They are retried.
func (p *Parts) Problems() map[string]string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.problems)
}
