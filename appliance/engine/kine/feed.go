package kine

import (
	"context"
	"strings"
	"sync"

	"github.com/k3s-io/kine/pkg/server"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// A watch that is slower than the writers is fed from memory up to this, then from the table.
const (
	pendingEvents = 1000
	pendingBytes  = 4 << 20
)

// Keys under which kine keeps the API server's account of its compactions.
const (
	compactKey    = "compact_rev_key"
	compactKeyAPI = "compact_rev_key_apiserver"
)

// feed gives new events to those who watch, in the order of their revisions. It alone
// says how far a watch is: its lock is held while events are handed out and while a
// stream takes what it sends next.
type feed struct {
	mu      sync.Mutex
	at      int64               // all events up to this revision were handed out
	live    map[*watch]struct{} // get new events
	waiting map[*stream]struct{}
	taps    map[*tap]struct{}
}

// position is the revision up to which all events were handed out.
func (f *feed) position() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.at
}

// deliver hands out events that follow the position.
func (f *feed) deliver(ctx context.Context, events server.Events) {
	sent := make([]*mvccpb.Event, len(events))
	for i, e := range events {
		sent[i] = event(e)
	}
	f.mu.Lock()
	for w := range f.live {
		w.add(f, events, sent)
	}
	f.at = events[len(events)-1].KV.ModRevision
	for s := range f.waiting {
		if s.need <= f.at {
			delete(f.waiting, s)
			s.nudge()
		}
	}
	taps := make([]*tap, 0, len(f.taps))
	for t := range f.taps {
		taps = append(taps, t)
	}
	f.mu.Unlock()
	for _, t := range taps {
		t.give(ctx, events)
	}
}

// starve ends the watches that live on new events, as long as there are none to be had.
func (f *feed) starve() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for w := range f.live {
		w.stream.end(w, &etcdserverpb.WatchResponse{Header: header(f.at), CancelReason: server.ErrGRPCUnhealthy.Error()})
		w.stream.nudge()
	}
}

// watch is one client's interest in some keys. The feed's lock guards it.
type watch struct {
	id       int64
	key, end string // as etcd has it: one key, or from key to before end
	stream   *stream
	progress bool // wants to know how far it is when nothing happens
	previous bool // wants what was there before

	next    int64 // the oldest revision that it may not have been given yet
	sent    int64 // the newest revision of a message to it
	live    bool  // new events come to pending
	until   int64 // those from next to this are in the table only
	pending []*mvccpb.Event
	bytes   int
}

// add takes new events. One who takes no more of them reads them from the table later.
func (w *watch) add(f *feed, events server.Events, sent []*mvccpb.Event) {
	before := len(w.pending)
	for i, e := range events {
		if e.KV.ModRevision < w.next || !w.wants(e.KV.Key) {
			continue
		}
		w.pending = append(w.pending, w.dress(sent[i]))
		w.bytes += sent[i].Size()
	}
	switch {
	case len(w.pending) == before:
	case len(w.pending) > pendingEvents || w.bytes > pendingBytes && len(w.pending) > 1:
		if w.next > w.until { // nothing is owed from the table, so all before the first was given
			w.next = w.pending[0].Kv.ModRevision
		}
		w.pause(f)
		w.stream.nudge()
	case before == 0:
		w.stream.nudge()
	}
}

// pause ends the supply of new events; those that wait are dropped.
func (w *watch) pause(f *feed) {
	w.live, w.pending, w.bytes = false, nil, 0
	delete(f.live, w)
}

// resume begins it: newer events than the position come to pending, older ones are
// to be read from the table.
func (w *watch) resume(f *feed) {
	w.live, w.until = true, f.at
	f.live[w] = struct{}{}
}

func (w *watch) wants(key string) bool {
	switch w.end {
	case "":
		return key == w.key
	case "\x00":
		return key >= w.key
	}
	return w.key <= key && key < w.end
}

func (w *watch) dress(e *mvccpb.Event) *mvccpb.Event {
	if w.previous || e.PrevKv == nil {
		return e
	}
	return &mvccpb.Event{Type: e.Type, Kv: e.Kv}
}

// like is the pattern of SQL's LIKE for the keys that it wants, and perhaps more.
func (w *watch) like() string {
	literal := strings.NewReplacer("^", "^^", "%", "^%", "_", "^_").Replace(w.key)
	switch {
	case w.end == "":
		return literal
	case w.end == clientv3.GetPrefixRangeEnd(w.key):
		return literal + "%"
	}
	return "%"
}

// event is one as clients get it.
func event(e *server.Event) *mvccpb.Event {
	to := &mvccpb.Event{Kv: keyValue(e.KV)}
	if e.Delete {
		to.Type = mvccpb.DELETE
	}
	if e.PrevKV != nil {
		before := *e.PrevKV
		before.Key, before.CreateRevision = e.KV.Key, e.KV.CreateRevision
		to.PrevKv = keyValue(&before)
	}
	return to
}

func keyValue(kv *server.KeyValue) *mvccpb.KeyValue {
	to := &mvccpb.KeyValue{Key: []byte(kv.Key), Value: kv.Value, Version: kv.Version, Lease: kv.Lease,
		CreateRevision: kv.CreateRevision, ModRevision: kv.ModRevision}
	if kv.Key == compactKeyAPI {
		to.Key = []byte(compactKey)
		to.Version, to.Value = server.DecodeVersion(kv.Value)
	}
	return to
}

// tap is a reader of all events within this process: kine's expiry of keys with a lease.
type tap struct {
	ctx    context.Context
	prefix string
	events chan server.Events
}

// Watch gives all events of a prefix from now on, until ctx ends. It must be read.
func (l *log) Watch(ctx context.Context, prefix string) <-chan server.Events {
	t, out := &tap{ctx, prefix, make(chan server.Events, 100)}, make(chan server.Events)
	l.feed.mu.Lock()
	defer l.feed.mu.Unlock()
	l.feed.taps[t] = struct{}{}
	go func() {
		defer close(out)
		for {
			select {
			case events := <-t.events:
				select {
				case out <- events:
					continue
				case <-ctx.Done():
				}
			case <-ctx.Done():
			}
			l.feed.mu.Lock()
			defer l.feed.mu.Unlock()
			delete(l.feed.taps, t)
			return
		}
	}()
	return out
}

func (t *tap) give(ctx context.Context, events server.Events) {
	var wanted server.Events
	for _, e := range events {
		if e.KV.Key == t.prefix || strings.HasSuffix(t.prefix, "/") && strings.HasPrefix(e.KV.Key, t.prefix) {
			wanted = append(wanted, e)
		}
	}
	if len(wanted) == 0 {
		return
	}
	select {
	case t.events <- wanted:
	case <-t.ctx.Done():
	case <-ctx.Done():
	}
}
