// Package parts keeps the parts of a role running: each that ends is started again after a
// pause that grows, holds up no other, and is a problem until it runs. It writes nothing,
// and forgets everything with the process.
package parts

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"time"

	"rivulet/fabric/changes"
)

const (
	// FirstWait and LongestWait bound the pauses, which double.
	FirstWait, LongestWait = time.Second, 30 * time.Second
	// settled is how long a part has to run for its problem to be over, steady for
	// its next failure to count as the first.
	settled, steady = 3 * time.Second, time.Minute
)

// Parts are those of one role. All methods may be called concurrently.
type Parts struct {
	log *slog.Logger

	mu       sync.Mutex
	problems map[string]string // what does not run, and why, by part
}

// New returns Parts without problems.
func New(log *slog.Logger) *Parts { return &Parts{log: log, problems: map[string]string{}} }

// Keep runs a part again and again until ctx ends, and makes its failures visible.
func (p *Parts) Keep(ctx context.Context, part string, run func(context.Context) error) {
	for pause := (changes.Backoff{First: FirstWait, Longest: LongestWait}); ; {
		started := time.Now()
		over := time.AfterFunc(settled, func() { p.Report(part, nil) })
		err := run(ctx)
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

// Report records why a part does not run; nil takes it back.
func (p *Parts) Report(part string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		delete(p.problems, part)
		return
	}
	p.problems[part] = err.Error()
}

// Problems say which parts do not run, and why. They are tried again.
func (p *Parts) Problems() map[string]string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.problems)
}
