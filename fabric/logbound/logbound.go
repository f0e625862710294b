// Package logbound bounds a log by the minute, so that whoever causes records cannot fill it: a record of a text that was
// written often enough in this minute is counted and left out, and the next one has the number. It reads the records'
// times, and writes nothing itself. After a restart it counts anew.
package logbound

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// PerMinute is the limit per text and minute.
const PerMinute = 30

// bounded is a handler that shares its counts with those that are derived from it.
type bounded struct {
	slog.Handler
	*counts
}

type counts struct {
	mu   sync.Mutex
	seen map[string]*count
}

type count struct {
	since      time.Time
	n, leftOut int
}

// New returns a logger whose records with the same text are limited; the attribute leftOut counts those left out before.
func New(l *slog.Logger) *slog.Logger { return slog.New(Handler(l.Handler())) }

// Handler is New for handlers.
func Handler(h slog.Handler) slog.Handler {
	return bounded{Handler: h, counts: &counts{seen: map[string]*count{}}}
}

// Handle implements slog.Handler. Texts are constants of the program, so there are few.
func (b bounded) Handle(ctx context.Context, r slog.Record) error {
	b.mu.Lock()
	c := b.seen[r.Message]
	if c == nil {
		c = &count{since: r.Time}
		b.seen[r.Message] = c
	}
	if r.Time.Sub(c.since) >= time.Minute || r.Time.Before(c.since) {
		c.since, c.n = r.Time, 0
	}
	c.n++
	pass, leftOut := c.n <= PerMinute, c.leftOut
	if c.leftOut++; pass {
		c.leftOut = 0
	}
	b.mu.Unlock()
	if !pass {
		return nil
	}
	if leftOut > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Int("leftOut", leftOut))
	}
	return b.Handler.Handle(ctx, r)
}

func (b bounded) WithAttrs(a []slog.Attr) slog.Handler {
	return bounded{Handler: b.Handler.WithAttrs(a), counts: b.counts}
}

func (b bounded) WithGroup(name string) slog.Handler {
	return bounded{Handler: b.Handler.WithGroup(name), counts: b.counts}
}
