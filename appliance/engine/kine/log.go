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
	// pollBatch is the most rows that one look for new events reads.
	pollBatch = 500
	// pollEvery is how soon events are found whose writer could not say that it wrote.
	pollEvery = time.Second
	// pollPatience is how long watches wait for events that cannot be read. Their clients, which
	// cannot tell that from quiet, are told then.
	pollPatience = 10 * time.Second
)

// log is kine's log of revisions on SQLite with promises that kine's own does not keep
// (docs/design/datastore.md):
//
//   - The current revision never goes back, and no revision is shown to a client before it
//     has become the current one.
//   - What is read, with or without rows, is what there was at the revision given with it.
//   - A read that SQLite could not finish is an error, not a shorter result.
//   - Events are delivered by feed, which knows what each watch was sent.
//
// SQLite gives a row its id inside the one write transaction that there can be, so a
// reader that sees a row sees all before it, and an id that is missing is missing for good.
type log struct {
	*sqllog.SQLLog // the statements that write, and compaction
	dialect        server.Dialect
	current        atomic.Int64 // the newest revision that anybody was shown
	feed           feed
	wake           chan struct{} // holds one token while there may be new rows
	wg             *sync.WaitGroup
	compactEvery   time.Duration // 0: only when a client asks for it
	bound          *Bound        // nil: none
}

var _ logstructured.Log = (*log)(nil)

func newLog(dialect server.Dialect, cfg *drivers.Config, wg *sync.WaitGroup) *log {
	jitter := time.Duration((2*rand.Float64() - 1) * float64(cfg.CompactInterval) * float64(cfg.CompactIntervalJitter) / 100)
	return &log{
		// With an interval of 0 kine's compacts when it is told to.
		SQLLog:       sqllog.New(dialect, 0, 0, cfg.CompactTimeout, cfg.CompactMinRetain, cfg.CompactBatchSize, pollBatch),
		dialect:      dialect,
		feed:         feed{live: map[*watch]struct{}{}, waiting: map[*stream]struct{}{}, taps: map[*tap]struct{}{}},
		wake:         make(chan struct{}, 1),
		wg:           wg,
		compactEvery: cfg.CompactInterval + jitter,
	}
}

// Start readies the table, then follows it until ctx ends.
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

// poll reads each new row once and gives it to the feed.
func (l *log) poll(ctx context.Context) {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	at := l.feed.position()
	var failing, told time.Time // since when, and when watches were ended; zero: not
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
		_, _ = l.SQLLog.Compact(ctx, target) // it logs what failed
		target = next
	}
}

// Compact is what a client asks for: nothing, unless it alone compacts.
func (l *log) Compact(ctx context.Context, revision int64) (int64, error) {
	if l.compactEvery <= 0 {
		_, _ = l.SQLLog.Compact(ctx, min(revision, l.feed.position())) // it logs what failed
	}
	return l.CurrentRevision(ctx)
}

// CurrentRevision is at least that of every write that was acknowledged and of
// everything that was read.
func (l *log) CurrentRevision(context.Context) (int64, error) { return l.current.Load(), nil }

// Append writes; the revision it gives is the current one or older by then.
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
	l.pollOnce() // after an error, too: it may have been written
	return rev, err
}

// List reads what there was at a revision, or with 0 what there is now. The revision it
// gives is 0 if it found nothing and the caller looks again (LogStructured.List does) or
// wants to create what is not there.
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
			// One key that is not there. When? At a revision that can be named it may be there.
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

// Count counts what there was at a revision, or with 0 what there is now. With 0 and
// nothing there the revision is 0. Kine's gives the current revision with any count, and
// its server announces that as the revision of the page of a list it counted for.
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

// after gives the current revision, that of the last compaction, and the events whose
// key is like a pattern.
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

// read makes events of rows, as many as could be read.
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
