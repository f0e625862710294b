package offload

import (
	"context"
	"time"
)

const (
	firstWait, longestWait = time.Second, 30 * time.Second
	// settled is how long a part has to run for its problem to be over, steady for
	// its next failure to count as the first.
	settled, steady = 3 * time.Second, time.Minute
)

// keep runs a part again and again until ctx ends, and makes its failures visible.
func (o *Offload) keep(ctx context.Context, part string, run func(context.Context) error) {
	for wait := firstWait; ; wait = min(2*wait, longestWait) {
		started := time.Now()
		over := time.AfterFunc(settled, func() { o.problem(part, nil) })
		err := run(ctx)
		over.Stop()
		if ctx.Err() != nil {
			return
		}
		if time.Since(started) > steady {
			wait = firstWait
		}
		o.problem(part, err)
		o.cfg.Log.Warn("a part of offloading stopped and is started again", "part", part, "err", err, "retry", wait)
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// problem records why a part does not run; nil takes it back.
func (o *Offload) problem(part string, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err == nil {
		delete(o.problems, part)
		return
	}
	o.problems[part] = err.Error()
}
