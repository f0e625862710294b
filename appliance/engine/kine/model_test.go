package kine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/k3s-io/kine/pkg/server"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// How many operations the model test does; RIVULET_KINE_OPS sets another number.
const modelOps = 3000

const (
	modelRetain = 200 // revisions that compaction leaves
	modelRoot   = "/registry/"
	serveEnv    = "RIVULET_KINE_TEST_SERVE"
	// ownEnv, set to anything, has the model test try kine's own datastore, which fails it.
	ownEnv = "RIVULET_KINE_TEST_OWN"
)

// The contract, on the real table, over etcd's protocol, with a process that is killed and
// started anew on its file, and with compaction:
//
//   - Revisions are linearizable: an operation's is newer than that of every write, and at
//     least that of every read, that had ended when it began. What was acknowledged stays.
//   - What a read shows is exactly what there was at the revision given with it.
//   - A write happens only if the key was at the revision that it names.
//   - A watch gets each event of its keys once, in order, without a gap, from the revision
//     it names, through reconnects, or is told that this was compacted, if it was.
//   - Progress that is announced on a watch is never newer than what was sent on it, nor
//     older, and goes on to the current revision.
func TestModel(t *testing.T) {
	t.Parallel()
	m := newModel(t)
	n := modelOps
	if more, err := strconv.Atoi(os.Getenv("RIVULET_KINE_OPS")); err == nil {
		n = more
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience+time.Duration(n)*50*time.Millisecond)
	defer cancel()
	m.run(ctx, n)
	m.check()
}

// TestServe is the process that TestModel kills.
func TestServe(t *testing.T) {
	dir := os.Getenv(serveEnv)
	if dir == "" {
		t.Skip("is a process of TestModel")
	}
	ctx := context.Background()
	var wg sync.WaitGroup
	cfg := config()
	cfg.CompactMinRetain, cfg.CompactBatchSize = modelRetain, 100
	var b server.Backend = assemble(ctx, &wg, dialect(t, ctx, &wg, dir), cfg, filepath.Join(dir, "state.db-wal"))
	if os.Getenv(ownEnv) != "" {
		b = kinesOwn(dialect(t, ctx, &wg, dir), cfg)
	}
	if err := b.Start(ctx); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "kine.sock")
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	server.New(b, "http", time.Second, "3.5.13").Register(s)
	t.Fatal(s.Serve(l))
}

// fact is what a revision did.
type fact struct {
	rev, created   int64
	key, value     string
	before         string
	deleted, first bool
}

// shown is what a read gave: the keys of a range at a revision.
type shown struct {
	rev      int64
	key, end string
	limit    int64
	kvs      []*mvccpb.KeyValue
}

type model struct {
	t      *testing.T
	dir    string
	client *clientv3.Client
	keys   []string

	mu      sync.Mutex
	child   *exec.Cmd
	acked   []fact          // writes that were acknowledged
	tried   map[string]bool // values that may have been written
	casFrom map[int64]int64 // revision of an acknowledged write: what it replaced
	reads   []shown
	watches []*observer
	truth   []fact // what the watch of everything got

	done      atomic.Int64 // the newest revision of an operation that has ended
	compacted atomic.Int64 // the newest revision up to which compaction was asked for
	value     atomic.Int64
	kills     int
}

// observer is a watch and all it got, in order.
type observer struct {
	key, end string
	from     int64
	got      []*clientv3.Event
	progress []told
	err      error
	at       atomic.Int64 // the newest revision of any message
	stop     func()       // ends it; then got and progress may be read
}

// told is a message of progress after a number of events.
type told struct {
	rev    int64
	events int
}

func newModel(t *testing.T) *model {
	m := &model{t: t, dir: socketDir(t), tried: map[string]bool{}, casFrom: map[int64]int64{}}
	for _, ns := range []string{"pods/a", "pods/b", "leases/a"} {
		for _, name := range []string{"web", "a_b", "axb", "a.b"} { // _ stands for any letter in a pattern
			m.keys = append(m.keys, modelRoot+ns+"/"+name)
		}
	}
	m.serve()
	t.Cleanup(func() { m.kill() })
	var err error
	m.client, err = clientv3.New(clientv3.Config{Endpoints: []string{"unix://" + filepath.Join(m.dir, "kine.sock")}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.client.Close() })
	return m
}

func (m *model) serve() {
	m.child = exec.Command(os.Args[0], "-test.run=^TestServe$")
	m.child.Env = append(os.Environ(), serveEnv+"="+m.dir)
	m.child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := m.child.Start(); err != nil {
		m.t.Error(err) // and nothing answers
	}
}

func (m *model) kill() {
	if m.child.Process == nil {
		return
	}
	_ = m.child.Process.Kill()
	_ = m.child.Wait()
}

func (m *model) run(ctx context.Context, n int) {
	everything := m.observe(ctx, modelRoot, clientv3.GetPrefixRangeEnd(modelRoot), 1, 0, nil)
	var workers, others sync.WaitGroup
	stop, end := context.WithCancel(ctx)
	defer end()
	var left atomic.Int64
	left.Store(int64(n))
	for range 6 {
		workers.Go(func() {
			for left.Add(-1) >= 0 && ctx.Err() == nil {
				m.operate(ctx)
			}
		})
	}
	for worker := range 6 {
		others.Go(func() {
			for stop.Err() == nil {
				m.watchAWhile(stop, ctx, worker)
			}
		})
	}
	others.Go(func() { // compaction follows at a distance that lets late watches in
		for wait(stop, 50*time.Millisecond) {
			if rev := min(m.done.Load(), everything.at.Load()) - modelRetain; rev > m.compacted.Load() {
				m.compacted.Store(rev)
				_, _ = m.client.Compact(stop, rev)
			}
		}
	})
	others.Go(func() { // each quarter of the operations ends with a kill
		for quarter := 3; quarter > 0; quarter-- {
			for left.Load() > int64(n*quarter/4) {
				if !wait(stop, 10*time.Millisecond) {
					return
				}
			}
			m.kill()
			m.kills++
			m.serve()
		}
	})
	workers.Wait()
	end()
	others.Wait()
	// A watch of everything comes to the newest revision, be it by progress.
	last := m.done.Load()
	for everything.at.Load() < last {
		m.ask(ctx, 0)
		if !wait(ctx, 20*time.Millisecond) {
			m.t.Fatalf("the watch of everything is at %d, want %d: %v", everything.at.Load(), last, everything.err)
		}
	}
	everything.stop()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range everything.got {
		f := fact{rev: e.Kv.ModRevision, created: e.Kv.CreateRevision, key: string(e.Kv.Key), value: string(e.Kv.Value), deleted: e.Type == mvccpb.DELETE, first: e.IsCreate()}
		if e.PrevKv != nil {
			f.before = string(e.PrevKv.Value)
		}
		m.truth = append(m.truth, f)
	}
}

// wait says whether ctx goes on.
func wait(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// ended checks the order of revisions of one operation after those that had ended before.
func (m *model) ended(what string, began, rev int64, wrote bool) {
	if rev < began || wrote && rev == began {
		m.t.Errorf("%s has revision %d, but %d was known when it began", what, rev, began)
	}
	for {
		was := m.done.Load()
		if rev <= was || m.done.CompareAndSwap(was, rev) {
			return
		}
	}
}

func (m *model) operate(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, patience/2)
	defer cancel()
	key := m.keys[rand.IntN(len(m.keys))]
	if rand.IntN(10) < 3 {
		m.list(ctx, key[:strings.LastIndex(key, "/")+1])
		return
	}
	began := m.done.Load()
	r, err := m.client.Get(ctx, key)
	if err != nil {
		return // killed
	}
	m.ended("a read of "+key, began, r.Header.Revision, false)
	m.saw(shown{rev: r.Header.Revision, key: key, kvs: r.Kvs})
	if rand.IntN(10) < 2 {
		return
	}
	value, from := fmt.Sprint("v", m.value.Add(1)), int64(0)
	if len(r.Kvs) > 0 {
		from = r.Kvs[0].ModRevision
	}
	txn := m.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", from))
	remove := from != 0 && rand.IntN(3) == 0
	switch {
	case from == 0:
		txn = txn.Then(clientv3.OpPut(key, value))
	case remove:
		value = string(r.Kvs[0].Value) // kine's events of removal have it
		txn = txn.Then(clientv3.OpDelete(key)).Else(clientv3.OpGet(key))
	default:
		txn = txn.Then(clientv3.OpPut(key, value)).Else(clientv3.OpGet(key))
	}
	m.mu.Lock()
	m.tried[value] = true
	m.mu.Unlock()
	began = m.done.Load()
	w, err := txn.Commit()
	if err != nil {
		return // killed: it may have been written
	}
	m.ended("a write of "+key, began, w.Header.Revision, w.Succeeded)
	if w.Succeeded {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.acked = append(m.acked, fact{rev: w.Header.Revision, key: key, value: value, deleted: remove})
		m.casFrom[w.Header.Revision] = from
	}
}

// list reads a prefix whole or in pages, now or at a revision that is not quite new.
func (m *model) list(ctx context.Context, prefix string) {
	began, at := m.done.Load(), int64(0)
	if rand.IntN(3) == 0 {
		at = max(0, began-rand.Int64N(modelRetain/2))
	}
	limit := rand.Int64N(4) // 0: all
	opts := []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithLimit(limit), clientv3.WithRev(at)}
	r, err := m.client.Get(ctx, prefix, opts...)
	if errors.Is(err, rpctypes.ErrFutureRev) {
		m.t.Errorf("revision %d is called a future one", at)
	}
	if err != nil {
		return
	}
	if at == 0 {
		m.ended("a list of "+prefix, began, r.Header.Revision, false)
		at = r.Header.Revision
	}
	m.saw(shown{rev: at, key: prefix, end: clientv3.GetPrefixRangeEnd(prefix), limit: limit, kvs: r.Kvs})
	if r.More { // the rest, as the API server asks for it
		next := string(r.Kvs[len(r.Kvs)-1].Key) + "\x00"
		if r, err = m.client.Get(ctx, next, clientv3.WithRange(clientv3.GetPrefixRangeEnd(prefix)), clientv3.WithRev(at)); err == nil {
			m.saw(shown{rev: at, key: next, end: clientv3.GetPrefixRangeEnd(prefix), kvs: r.Kvs})
		}
	}
}

func (m *model) saw(s shown) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reads = append(m.reads, s)
}

func (m *model) ask(ctx context.Context, stream int) {
	ctx, cancel := context.WithTimeout(streamOf(ctx, stream), patience/2)
	defer cancel()
	_ = m.client.RequestProgress(ctx) // fails while it is killed
}

func streamOf(ctx context.Context, stream int) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "stream", strconv.Itoa(stream))
}

// observe watches until enough says so, or without it in the background until it is stopped.
func (m *model) observe(ctx context.Context, key, end string, from int64, stream int, enough func(*observer) bool) *observer {
	o := &observer{key: key, end: end, from: from}
	ctx, cancel := context.WithCancel(ctx)
	opts := []clientv3.OpOption{clientv3.WithRev(from), clientv3.WithPrevKV(), clientv3.WithProgressNotify()}
	if end != "" {
		opts = append(opts, clientv3.WithRange(end))
	}
	watch := m.client.Watch(streamOf(ctx, stream), key, opts...)
	read := func() {
		defer cancel()
		for r := range watch {
			if o.err = r.Err(); o.err != nil {
				return
			}
			if o.got = append(o.got, r.Events...); r.IsProgressNotify() {
				o.progress = append(o.progress, told{r.Header.Revision, len(o.got)})
			}
			if o.at.Store(r.Header.Revision); enough != nil && enough(o) {
				return
			}
		}
	}
	if enough != nil {
		read()
		return o
	}
	over := make(chan struct{})
	go func() { defer close(over); read() }()
	o.stop = func() { cancel(); <-over }
	return o
}

// watchAWhile watches from a list, from a little before, or from far back.
func (m *model) watchAWhile(stop, ctx context.Context, worker int) {
	key, end := m.keys[rand.IntN(len(m.keys))], ""
	if rand.IntN(4) > 0 {
		key = key[:strings.LastIndex(key, "/")+1]
		end = clientv3.GetPrefixRangeEnd(key)
	}
	began := m.done.Load()
	if began == 0 {
		wait(stop, time.Millisecond)
		return
	}
	from := max(1, began+1-[]int64{0, rand.Int64N(20), rand.Int64N(4 * modelRetain)}[rand.IntN(3)])
	stream := worker % 4 // some share one
	var asking sync.WaitGroup
	defer asking.Wait()
	over, cancel := context.WithCancel(stop)
	defer cancel()
	asking.Go(func() {
		for wait(over, 5*time.Millisecond) {
			m.ask(over, stream)
		}
	})
	slow, upTo := rand.IntN(3) == 0, began+rand.Int64N(300)
	o := m.observe(stop, key, end, from, stream, func(o *observer) bool {
		if slow {
			wait(stop, 3*time.Millisecond)
		}
		return o.at.Load() > upTo
	})
	m.mu.Lock()
	defer m.mu.Unlock()
	m.watches = append(m.watches, o)
}

// version is a key from a revision on.
type version struct {
	rev, created int64
	value        string
	deleted      bool
}

// check compares all that anybody was told with the one history.
func (m *model) check() {
	t := m.t
	t.Logf("%d revisions, %d reads, %d watches, %d kills, compacted to %d", len(m.truth), len(m.reads), len(m.watches), m.kills, m.compacted.Load())
	if len(m.truth) == 0 || len(m.watches) == 0 || m.kills != 3 {
		t.Fatal("too little happened")
	}
	versions, at := map[string][]version{}, map[int64]fact{}
	for i, f := range m.truth {
		if i > 0 && f.rev <= m.truth[i-1].rev {
			t.Fatalf("revision %d follows %d", f.rev, m.truth[i-1].rev)
		}
		if f.key != "/registry/health" && !m.tried[f.value] {
			t.Errorf("revision %d has %q for %s, which nobody wrote", f.rev, f.value, f.key)
		}
		before := last(versions[f.key])
		if was := before != nil && !before.deleted; was == f.first || was && (f.before != before.value || f.created != before.created) {
			t.Errorf("revision %d: %+v follows %+v", f.rev, f, before)
		}
		versions[f.key] = append(versions[f.key], version{f.rev, f.created, f.value, f.deleted})
		at[f.rev] = f
	}
	for _, w := range m.acked {
		got, there := at[w.rev]
		if !there || got.key != w.key || got.value != w.value || got.deleted != w.deleted {
			t.Errorf("revision %d was acknowledged as %+v and is %+v", w.rev, w, got)
			continue
		}
		v := versions[w.key]
		i := slices.IndexFunc(v, func(v version) bool { return v.rev == w.rev })
		var replaced int64
		if before := last(v[:i]); before != nil && !before.deleted {
			replaced = before.rev
		}
		if from := m.casFrom[w.rev]; from != replaced {
			t.Errorf("revision %d of %s replaced revision %d, want %d", w.rev, w.key, replaced, from)
		}
	}
	for _, s := range m.reads {
		m.checkRead(s, versions)
	}
	for _, o := range m.watches {
		m.checkWatch(o)
	}
}

func last(v []version) *version {
	if len(v) == 0 {
		return nil
	}
	return &v[len(v)-1]
}

func (m *model) checkRead(s shown, versions map[string][]version) {
	var want, got []string
	in := watch{key: s.key, end: s.end}
	for key, v := range versions {
		if !in.wants(key) {
			continue
		}
		n, _ := slices.BinarySearchFunc(v, s.rev+1, func(v version, rev int64) int { return int(v.rev - rev) })
		if is := last(v[:n]); is != nil && !is.deleted {
			want = append(want, fmt.Sprint(key, "=", is.value, " ", is.rev, " ", is.created))
		}
	}
	for _, kv := range s.kvs {
		got = append(got, fmt.Sprint(string(kv.Key), "=", string(kv.Value), " ", kv.ModRevision, " ", kv.CreateRevision))
	}
	if slices.Sort(want); s.limit > 0 && int64(len(want)) > s.limit {
		want = want[:s.limit]
	}
	slices.Sort(got)
	if !slices.Equal(want, got) {
		m.t.Errorf("a read of %q to %q at %d shows\n%v, there was\n%v", s.key, s.end, s.rev, got, want)
	}
}

func (m *model) checkWatch(o *observer) {
	if o.err != nil {
		if !errors.Is(o.err, rpctypes.ErrCompacted) || o.from > m.compacted.Load() && o.at.Load() > m.compacted.Load() {
			m.t.Errorf("a watch of %s from %d ended: %v", o.key, o.from, o.err)
		}
		if len(o.got) == 0 && len(o.progress) == 0 {
			return
		}
	}
	in := watch{key: o.key, end: o.end}
	var want []fact
	for _, f := range m.truth {
		if f.rev >= o.from && in.wants(f.key) {
			want = append(want, f)
		}
	}
	for i, e := range o.got {
		if i >= len(want) || e.Kv.ModRevision != want[i].rev || string(e.Kv.Value) != want[i].value || string(e.Kv.Key) != want[i].key {
			m.t.Errorf("a watch of %s from %d: event %d is %v", o.key, o.from, i, e)
			return
		}
	}
	newest := int64(0)
	for _, p := range o.progress {
		if p.rev < newest || p.events > 0 && p.rev < o.got[p.events-1].Kv.ModRevision {
			m.t.Errorf("a watch of %s from %d: progress went back to %d", o.key, o.from, p.rev)
		}
		newest = p.rev
		if p.events < len(want) && want[p.events].rev <= p.rev {
			m.t.Errorf("a watch of %s from %d: progress %d was announced before revision %d was sent", o.key, o.from, p.rev, want[p.events].rev)
		}
	}
}
