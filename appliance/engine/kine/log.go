package kine

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/k3s-io/kine/pkg/drivers"
	"github.com/k3s-io/kine/pkg/logstructured"
	"github.com/k3s-io/kine/pkg/logstructured/sqllog"
	"github.com/k3s-io/kine/pkg/server"
	"github.com/sirupsen/logrus"

	"rivulet/fabric/changes"
)

const (
	// pollBatch is the most rows that one poll for new events reads.
	pollBatch = 500
	// pollEvery is the interval of polls for events whose writer could not wake the poll.
	pollEvery = time.Second
	// pollPatience is how long watches wait for events that cannot be read. Then they end, because their clients cannot
	// distinguish that from no events.
	pollPatience = 10 * time.Second
)

// log is kine's log of revisions on SQLite, with guarantees that kine's own does not give (docs/design/datastore.md):
//
//   - The current revision never goes back, and no revision is shown to a client before it is the current one.
//   - The result of a read, with or without rows, is the state at the revision returned with it.
//   - A read that SQLite could not finish is an error, not a shorter result.
//   - feed delivers events, and records what each watch was sent.
//
// SQLite assigns a row's ID inside the only write transaction, so a reader of a row can read all rows before it, and a
// missing ID is missing for good.
type log struct {
	*sqllog.SQLLog // the writing statements, and compaction
	dialect        server.Dialect
	current        atomic.Int64 // the newest revision shown to any client
	feed           feed
	wake           chan struct{} // holds one token while there may be new rows
	wg             *sync.WaitGroup
	compactEvery   time.Duration // 0: only at a client's request
	bound          *Bound        // nil: none
}

var _ logstructured.Log = (*log)(nil)

func newLog(dialect server.Dialect, cfg *drivers.Config, wg *sync.WaitGroup) *log {
	jitter := time.Duration((2*rand.Float64() - 1) * float64(cfg.CompactInterval) * float64(cfg.CompactIntervalJitter) / 100)
	return &log{
		// With an interval of 0 kine's compacts only when called.
		SQLLog:       sqllog.New(dialect, 0, 0, cfg.CompactTimeout, cfg.CompactMinRetain, cfg.CompactBatchSize, pollBatch),
		dialect:      dialect,
		feed:         feed{live: map[*watch]struct{}{}, waiting: map[*stream]struct{}{}, taps: map[*tap]struct{}{}},
		wake:         make(chan struct{}, 1),
		wg:           wg,
		compactEvery: cfg.CompactInterval + jitter,
	}
}

// Start prepares the table, then follows it until ctx ends.
func (l *log) Start(ctx context.Context) error {
	if err := l.SQLLog.Start(ctx); err != nil {
		return err
	}
	rev, err := l.dialect.CurrentRevision(ctx)
	if err != nil {
		return err
	}
	l.raise(rev)
	l.feed.at = rev
	l.wg.Go(func() { l.poll(ctx) })
	if l.compactEvery > 0 {
		l.wg.Go(func() { l.compactor(ctx) })
	}
	return nil
}

// raise makes rev the current revision unless that is newer already.
func (l *log) raise(rev int64) {
	for {
		was := l.current.Load()
		if rev <= was || l.current.CompareAndSwap(was, rev) {
			return
		}
	}
}

func (l *log) pollOnce() {
	changes.Poke(l.wake)
}

// poll reads each new row once and passes it to the feed.
func (l *log) poll(ctx context.Context) {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	at := l.feed.position()
	var failing, told time.Time // start of the failure, and when watches were ended; zero: none
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.wake:
		case <-tick.C:
		}
		for more := true; more && ctx.Err() == nil; {
			rows, err := l.dialect.After(ctx, "%", at, pollBatch)
			_, _, events, err := read(rows, err, true, true)
			switch now := time.Now(); {
			case err == nil && !failing.IsZero():
				logrus.Warnf("kine: new revisions are read again, after %s", now.Sub(failing).Round(time.Second))
				failing = time.Time{}
			case err == nil || ctx.Err() != nil:
			case failing.IsZero():
				failing, told = now, now
				logrus.Warnf("kine: reading new revisions: %v; look at the disk", err)
			case now.Sub(told) >= pollPatience:
				told = now
				l.feed.starve()
			}
			if len(events) > 0 {
				at = events[len(events)-1].KV.ModRevision
				l.raise(at)
				l.feed.deliver(ctx, events)
			}
			more = len(events) == pollBatch
		}
	}
}

// compactor removes what was replaced or deleted more than an interval ago.
func (l *log) compactor(ctx context.Context) {
	tick := time.NewTicker(l.compactEvery)
	defer tick.Stop()
	for target := l.feed.position(); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		next := l.feed.position()
		_, _ = l.SQLLog.Compact(ctx, target) // it logs failures
		target = next
	}
}

// Compact handles a client's request: it does nothing unless only clients compact.
func (l *log) Compact(ctx context.Context, revision int64) (int64, error) {
	if l.compactEvery <= 0 {
		_, _ = l.SQLLog.Compact(ctx, min(revision, l.feed.position())) // it logs failures
	}
	return l.CurrentRevision(ctx)
}

// CurrentRevision is at least that of every acknowledged write and of every result of a read.
func (l *log) CurrentRevision(context.Context) (int64, error) { return l.current.Load(), nil }

// Append writes an event; the revision that it returns is the current one or older by then.
func (l *log) Append(ctx context.Context, event *server.Event) (int64, error) {
	done, err := l.bound.admit(ctx, event)
	if err != nil {
		if to, ok := ctx.Value(refusal{}).(*error); ok {
			*to = err
		}
		return 0, err
	}
	defer done()
	rev, err := l.SQLLog.Append(ctx, event)
	l.raise(rev)
	l.pollOnce() // after an error, too: the row may have been written
	return rev, err
}

// List reads the state at a revision, or with 0 the present one. The returned revision is 0 if it found nothing and the
// caller either reads again (LogStructured.List does) or creates the key.
func (l *log) List(ctx context.Context, prefix, startKey string, limit, revision int64, includeDeleted, keysOnly bool) (int64, server.Events, error) {
	var rows *sql.Rows
	var err error
	startKey = l.dialect.TranslateStartKey(startKey)
	if revision == 0 {
		rows, err = l.dialect.ListCurrent(ctx, prefix, startKey, limit, includeDeleted, keysOnly)
	} else {
		rows, err = l.dialect.List(ctx, prefix, startKey, limit, revision, includeDeleted, keysOnly)
	}
	rev, compact, events, err := read(rows, err, !keysOnly, false)
	if err != nil {
		return 0, nil, err
	}
	l.raise(rev)
	if revision == 0 {
		if len(events) == 0 && !includeDeleted && !strings.HasSuffix(prefix, "%") {
			// One missing key. There is no revision to return with it: at any known one the key may exist.
			now := l.current.Load()
			_, events, err = l.List(ctx, prefix, startKey, limit, now, includeDeleted, keysOnly)
			return now, events, err
		}
		return rev, events, nil
	}
	if len(events) == 0 {
		rev = l.current.Load()
		if compact, err = l.dialect.GetCompactRevision(ctx); err != nil {
			return 0, nil, err
		}
	}
	switch {
	case revision > rev:
		return rev, nil, server.ErrFutureRev
	case revision < compact:
		return rev, nil, server.ErrCompacted
	}
	return rev, events, nil
}

// Count counts at a revision, or with 0 at present. With 0 and no keys the revision is 0. Kine's returns the current
// revision with any count, and its server announces that as the revision of the counted page of a list.
func (l *log) Count(ctx context.Context, prefix, startKey string, revision int64) (int64, int64, error) {
	rev, n, err := l.SQLLog.Count(ctx, prefix, startKey, revision)
	l.raise(rev)
	if revision != 0 {
		rev = revision
	}
	return rev, n, err
}

// After reads the events of a prefix that are newer than a revision.
func (l *log) After(ctx context.Context, prefix string, revision, limit int64) (int64, server.Events, error) {
	if strings.HasSuffix(prefix, "/") {
		prefix += "%"
	}
	rev, compact, events, err := l.after(ctx, prefix, revision, limit)
	if err == nil && revision > 0 && revision < compact {
		return rev, nil, server.ErrCompacted
	}
	return rev, events, err
}

// after returns the current revision, that of the last compaction, and the events whose key matches a pattern.
func (l *log) after(ctx context.Context, pattern string, revision, limit int64) (rev, compact int64, _ server.Events, _ error) {
	rows, err := l.dialect.After(ctx, pattern, revision, limit)
	rev, compact, events, err := read(rows, err, true, true)
	if err == nil && len(events) == 0 {
		rev = l.current.Load()
		compact, err = l.dialect.GetCompactRevision(ctx)
	}
	if err != nil {
		return 0, 0, nil, err
	}
	l.raise(rev)
	return rev, compact, events, nil
}

// read converts rows to events, as many as could be read.
func read(rows *sql.Rows, err error, value, previous bool) (rev, compact int64, events server.Events, _ error) {
	if err != nil {
		return 0, 0, nil, err
	}
	defer rows.Close()
	for rows.Next() {
		e := &server.Event{KV: &server.KeyValue{}, PrevKV: &server.KeyValue{}}
		var compacted sql.NullInt64
		to := []any{&rev, &compacted, &e.KV.ModRevision, &e.KV.Key, &e.Create, &e.Delete, &e.KV.CreateRevision, &e.PrevKV.ModRevision, &e.KV.Lease}
		if value {
			to = append(to, &e.KV.Value)
		}
		if previous {
			to = append(to, &e.PrevKV.Value)
		}
		if err := rows.Scan(to...); err != nil {
			return rev, compact, events, fmt.Errorf("kine: a row after revision %d: %w", rev, err)
		}
		compact = compacted.Int64
		if e.Create {
			e.KV.CreateRevision, e.PrevKV = e.KV.ModRevision, nil
		}
		events = append(events, e)
	}
	return rev, compact, events, errors.Join(rows.Err(), rows.Close())
}
