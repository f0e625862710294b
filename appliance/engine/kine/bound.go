package kine

import (
	"context"
	"database/sql"
	"sync"
	"sync/atomic"
	"time"

	"github.com/k3s-io/kine/pkg/server"
)

// Bound limits the size of a datastore on the disk. A full one refuses writes that enlarge it, and accepts deletions
// and writes that make objects smaller, so that it can be emptied.
type Bound struct {
	limit int64
	full  error

	measure func(context.Context) (int64, error) // pages in use, bytes
	compact func(context.Context)                // drops all history

	mu       sync.Mutex
	used     int64 // at the last measurement
	since    int64 // written since then
	inflight int64 // being written
	dropped  time.Time
}

const (
	// rowCost is more than a row takes beside its values, bytes: its key in the table and in five indexes.
	rowCost = 2 << 10
	// mayGrow is how much an update of a full datastore may enlarge an object, bytes: a deletion by the API first sets
	// a date, and controllers write states. A quarter of the limit is reserved for that.
	mayGrow = 4 << 10
	// dropEvery is the shortest interval between two drops of a full datastore's history.
	dropEvery = time.Second
)

var bound atomic.Pointer[Bound]

// Limit bounds the datastore that this process opens next. Writers receive the error full.
func Limit(bytes int64, full error) *Bound {
	b := &Bound{limit: bytes, full: full}
	bound.Store(b)
	return b
}

// on applies the bound to a datastore.
func (b *Bound) on(db *sql.DB, l *log) {
	b.measure = func(ctx context.Context) (n int64, err error) {
		err = db.QueryRowContext(ctx, `SELECT (c.page_count - f.freelist_count) * s.page_size FROM pragma_page_count() c, pragma_freelist_count() f, pragma_page_size() s`).Scan(&n)
		return n, err
	}
	b.compact = func(ctx context.Context) { _, _ = l.SQLLog.Compact(ctx, l.feed.position()) } // it logs failures
}

// Full returns the error for a write of so many more bytes, nil if there is room.
func (b *Bound) Full(ctx context.Context, more int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if over, err := b.over(ctx, more+rowCost); err != nil || over > 0 {
		return b.full
	}
	return nil
}

// over returns by how many bytes the datastore would exceed the limit after a write of more bytes; 0 or less: not. The
// caller holds the lock.
func (b *Bound) over(ctx context.Context, more int64) (int64, error) {
	over := func() int64 { return b.used + b.since + b.inflight + more - b.limit }
	if b.used > 0 && over() <= 0 {
		return over(), nil
	}
	look := func() (err error) {
		if b.used, err = b.measure(ctx); err == nil {
			b.since = 0
		}
		return err
	}
	if err := look(); err != nil || over() <= 0 || time.Since(b.dropped) < dropEvery {
		return over(), err
	}
	b.dropped = time.Now()
	b.compact(ctx)
	err := look()
	return over(), err
}

// admit returns an error for a write that enlarges a full datastore; done is called after the write, or its failure.
func (b *Bound) admit(ctx context.Context, e *server.Event) (done func(), err error) {
	if b == nil {
		return func() {}, nil
	}
	var value, before int64
	if e.KV != nil {
		value = int64(len(e.KV.Value))
	}
	if e.PrevKV != nil {
		before = int64(len(e.PrevKV.Value))
	}
	need := value + before + rowCost
	b.mu.Lock()
	defer b.mu.Unlock()
	over, err := b.over(ctx, need)
	if err != nil {
		return nil, err
	}
	smaller := !e.Create && value <= before
	state := !e.Create && value <= before+mayGrow && over <= b.limit/4
	if over > 0 && !e.Delete && !smaller && !state {
		return nil, b.full
	}
	b.inflight += need
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.inflight -= need
		b.since += need
	}, nil
}

// refusal carries the error of a full datastore past kine, which takes each error of an update for a conflict, so that
// the API server would retry until its timeout.
type refusal struct{}

// Update implements server.Backend.
func (s *store) Update(ctx context.Context, key string, value []byte, revision, lease int64) (int64, *server.KeyValue, bool, error) {
	var refused error
	rev, kv, ok, err := s.durable.Update(context.WithValue(ctx, refusal{}, &refused), key, value, revision, lease)
	if refused != nil {
		return rev, nil, false, refused
	}
	return rev, kv, ok, err
}
