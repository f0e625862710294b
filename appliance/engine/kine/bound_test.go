package kine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/k3s-io/kine/pkg/server"

	"rivulet/test/harness/await"
)

// history is a datastore of which only what is there now counts, as after a compaction.
type history struct{ live, old int64 }

func (h *history) bound(limit int64, full error) *Bound {
	return &Bound{limit: limit, full: full,
		measure: func(context.Context) (int64, error) { return h.live + h.old, nil },
		compact: func(context.Context) { h.old = 0 }}
}

// TestAFullDatastoreTakesDeletions and what makes objects smaller, and states for a while.
func TestAFullDatastoreTakesDeletions(t *testing.T) {
	full := errors.New("full")
	const limit = 1 << 20
	event := func(create, deletion bool, before, value int) *server.Event {
		return &server.Event{Create: create, Delete: deletion, PrevKV: &server.KeyValue{Value: make([]byte, before)}, KV: &server.KeyValue{Value: make([]byte, value)}}
	}
	for _, c := range []struct {
		what      string
		live, old int64
		event     *server.Event
		want      error
	}{
		{"there is room", 0, 0, event(true, false, 0, 100<<10), nil},
		{"too large for what is left", 1000 << 10, 0, event(true, false, 0, 100<<10), full},
		{"history goes first", 500 << 10, 500 << 10, event(true, false, 0, 100<<10), nil},
		{"another object", limit, 0, event(true, false, 0, 1), full},
		{"a larger one", limit, 0, event(false, false, 1000, 100<<10), full},
		{"a state", limit, 0, event(false, false, 1000, 1200), nil},
		{"a state, without end", limit * 5 / 4, 0, event(false, false, 1000, 1200), full},
		{"a smaller one", limit * 5 / 4, 0, event(false, false, 1000, 900), nil},
		{"a deletion", limit * 2, 0, event(false, true, 1000, 1000), nil},
	} {
		h := &history{c.live, c.old}
		done, err := h.bound(limit, full).admit(t.Context(), c.event)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.what, err, c.want)
		}
		if err == nil {
			done()
		}
	}
}

// TestWritesAtOnceStayWithinTheBound: what is being written counts.
func TestWritesAtOnceStayWithinTheBound(t *testing.T) {
	full := errors.New("full")
	b := (&history{}).bound(1<<20, full)
	taken := 0
	for range 100 { // none of them is measured
		if _, err := b.admit(t.Context(), &server.Event{Create: true, KV: &server.KeyValue{Value: make([]byte, 100<<10)}}); err == nil {
			taken++
		}
	}
	if taken != 10 {
		t.Errorf("%d writes of 100 KiB were begun within 1 MiB", taken)
	}
}

// TestABoundedDatastore is filled, emptied and filled again.
func TestABoundedDatastore(t *testing.T) {
	const limit, size, key = 4 << 20, 100 << 10, "/registry/configmaps/x/%d"
	full := errors.New("the datastore is full")
	b := Limit(limit, full)
	defer bound.Store(nil)
	backend, _ := start(t)
	ctx := t.Context()
	fill := func() (n int) {
		t.Helper()
		for ; n < 1000; n++ {
			if _, err := backend.Create(ctx, fmt.Sprintf(key, n), bytes.Repeat([]byte{'x'}, size), 0); err != nil {
				if !errors.Is(err, full) {
					t.Fatal(err)
				}
				return n
			}
		}
		t.Fatal("it is never full")
		return 0
	}
	first := fill()
	if first < 20 || first*size > limit {
		t.Errorf("%d objects of 100 KiB fit into 4 MiB", first)
	}
	if b.Full(ctx, size) == nil {
		t.Error("it does not say that it is full")
	}
	for n := range first {
		_, kv, err := backend.Get(ctx, fmt.Sprintf(key, n), "", 1, 0, false)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, ok, err := backend.Delete(ctx, fmt.Sprintf(key, n), kv.ModRevision); err != nil || !ok {
			t.Fatalf("object %d is not deleted: %v %v", n, ok, err)
		}
	}
	// The newest deletions stay until the feed has passed them, with what they deleted.
	await.True(t, 10*time.Second, "its history is dropped", func() bool { return b.Full(ctx, int64(first-2)*(size+rowCost)) == nil })
	if again := fill(); again < first-2 {
		t.Errorf("emptied, it takes %d objects, and took %d", again, first)
	}
}
