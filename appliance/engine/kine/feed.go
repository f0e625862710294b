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

// A slow watch is fed from memory up to this bound, then from the table.
const (
	pendingEvents = 1000
	pendingBytes  = 4 << 20
)

// Keys of the API server's compaction record in kine.
const (
	compactKey    = "compact_rev_key"
	compactKeyAPI = "compact_rev_key_apiserver"
)

// feed delivers new events to watches in the order of their revisions. It alone determines the progress of a watch: its
// lock is held while events are delivered and while a stream takes its next message.
type feed struct {
	mu      sync.Mutex
	at      int64               // all events up to this revision were delivered
	live    map[*watch]struct{} // receive new events
	waiting map[*stream]struct{}
	taps    map[*tap]struct{}
}

// position is the revision up to which all events were delivered.
func (f *feed) position() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.at
}

// deliver delivers events that follow the position.
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

// starve ends the watches that wait for new events while none can be read.
func (f *feed) starve() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for w := range f.live {
		w.stream.end(w, &etcdserverpb.WatchResponse{Header: header(f.at), CancelReason: server.ErrGRPCUnhealthy.Error()})
		w.stream.nudge()
	}
}

// watch is one client's watch of some keys. The feed's lock guards it.
type watch struct {
	id       int64
	key, end string // as in etcd: one key, or from key to before end
	stream   *stream
	progress bool // wants progress messages when idle
	previous bool // wants previous values

	next    int64 // the oldest revision that may not have been delivered
	sent    int64 // the newest revision of a message to it
	live    bool  // new events go to pending
	until   int64 // those from next to this are in the table only
	pending []*mvccpb.Event
	bytes   int
}

// add takes new events. A watch with too many pending ones reads them from the table later.
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
		if w.next > w.until { // nothing is due from the table, so all before the first was delivered
			w.next = w.pending[0].Kv.ModRevision
		}
		w.pause(f)
		w.stream.nudge()
	case before == 0:
		w.stream.nudge()
	}
}

// pause ends the supply of new events and drops pending ones.
func (w *watch) pause(f *feed) {
	w.live, w.pending, w.bytes = false, nil, 0
	delete(f.live, w)
}

// resume starts it: events newer than the position go to pending, older ones have to be read from the table.
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

// like returns a pattern of SQL's LIKE for its keys, which may match more.
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

// event converts an event for clients.
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

// tap is a reader of all events in this process: kine's expiry of keys with a lease.
type tap struct {
	ctx    context.Context
	prefix string
	events chan server.Events
}

// Watch returns all events of a prefix from now on, until ctx ends. The channel must be read.
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
