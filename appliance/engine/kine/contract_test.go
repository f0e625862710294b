package kine

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/k3s-io/kine/pkg/drivers"
	"github.com/k3s-io/kine/pkg/drivers/generic"
	"github.com/k3s-io/kine/pkg/drivers/sqlite"
	"github.com/k3s-io/kine/pkg/logstructured"
	"github.com/k3s-io/kine/pkg/logstructured/sqllog"
	"github.com/k3s-io/kine/pkg/server"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// patience is how long a test waits for what must come: machines may be busy.
const patience = time.Minute

// config has the limits that k3s gives kine.
func config() *drivers.Config {
	return &drivers.Config{CompactTimeout: 5 * time.Second, CompactMinRetain: 1000, CompactBatchSize: 1000, PollBatchSize: 500}
}

// gate lets a test hold the look for new rows.
type gate struct {
	server.Dialect
	mu      sync.Mutex
	open    chan struct{} // closed while it is open
	stopped chan struct{} // filled by a look that stands at it
	broken  atomic.Bool
	refused atomic.Int32 // looks since it broke
}

func newGate(d server.Dialect) *gate {
	g := &gate{Dialect: d, open: make(chan struct{}), stopped: make(chan struct{}, 1)}
	close(g.open)
	return g
}

// shut returns once a look stands at the gate: none is under way that could read rows
// which the test writes next.
func (g *gate) shut(t *testing.T) {
	t.Helper()
	g.mu.Lock()
	g.open = make(chan struct{})
	g.mu.Unlock()
	select {
	case <-g.stopped:
	case <-time.After(patience):
		t.Fatal("nothing looked for new rows")
	}
}

func (g *gate) free() { g.mu.Lock(); defer g.mu.Unlock(); close(g.open) }

func (g *gate) After(ctx context.Context, pattern string, rev, limit int64) (*sql.Rows, error) {
	g.mu.Lock()
	open := g.open
	g.mu.Unlock()
	if pattern == "%" {
		if g.broken.Load() {
			g.refused.Add(1)
			return nil, errors.New("disk I/O error")
		}
		select {
		case <-open:
		default:
			select {
			case g.stopped <- struct{}{}:
			default:
			}
			select {
			case <-open:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	}
	return g.Dialect.After(ctx, pattern, rev, limit)
}

// dialect opens a table in a folder.
func dialect(t testing.TB, ctx context.Context, wg *sync.WaitGroup, dir string) *generic.Generic {
	t.Helper()
	c := config()
	c.DataSourceName = filepath.Join(dir, "state.db") + parameters
	_, d, err := sqlite.NewVariant(ctx, wg, sqlDriver, c)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// kinesOwn is what kine puts on a table.
func kinesOwn(d server.Dialect, cfg *drivers.Config) server.Backend {
	return logstructured.New(sqllog.New(d, 0, 0, cfg.CompactTimeout, cfg.CompactMinRetain, cfg.CompactBatchSize, cfg.PollBatchSize))
}

// opened is a datastore behind etcd's protocol, as the API server meets it.
type opened struct {
	*clientv3.Client
	gate  *gate
	store *store // nil if all of it is kine's own
	close func()
}

// open opens the datastore in a folder, ours or kine's own on the same table.
func openStore(t testing.TB, dir string, ours bool, cfg *drivers.Config) *opened {
	t.Helper()
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	o := &opened{}
	o.gate = newGate(dialect(t, ctx, &wg, dir))
	var b server.Backend
	if wal := filepath.Join(dir, "state.db-wal"); ours {
		o.store = assemble(ctx, &wg, o.gate, cfg, wal)
		b = o.store
	} else {
		b = keepDurable(ctx, &wg, kinesOwn(o.gate, cfg), wal)
	}
	if err := b.Start(ctx); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(socketDir(t), "kine.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	server.New(b, "http", time.Second, "3.5.13").Register(s)
	go s.Serve(l)
	o.Client, err = clientv3.New(clientv3.Config{Endpoints: []string{"unix://" + socket}, DialTimeout: patience, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	o.close = sync.OnceFunc(func() {
		o.Client.Close()
		s.Stop()
		cancel()
		wg.Wait()
	})
	t.Cleanup(o.close)
	return o
}

// socketDir is short enough for a socket's name.
func socketDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "kine")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// create writes a key that is not there and gives its revision.
func (o *opened) create(ctx context.Context, key, value string) (int64, error) {
	r, err := o.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", 0)).Then(clientv3.OpPut(key, value)).Commit()
	if err == nil && !r.Succeeded {
		err = fmt.Errorf("%s is there already", key)
	}
	if err != nil {
		return 0, err
	}
	return r.Header.Revision, nil
}

// A watch that began at a list's revision is told of its progress only after the event
// that was written meanwhile, however long that takes.
func TestProgressFollowsEvents(t *testing.T) {
	if progressBeforeEvent(t, true) {
		t.Error("the watch was told of a revision before it got its event")
	}
}

// kine's own datastore does announce it first. If this fails kine has mended it: see
// docs/design/datastore.md for what of ours can go.
func TestKinesOwnProgressPrecedesEvents(t *testing.T) {
	if !progressBeforeEvent(t, false) {
		t.Error("kine's own datastore announces a revision only after its event: is our own still needed?")
	}
}

// progressBeforeEvent holds the event back until progress was asked for and, if it comes,
// announced.
func progressBeforeEvent(t *testing.T, ours bool) (early bool) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	o := openStore(t, t.TempDir(), ours, config())
	list, err := o.Get(ctx, "/registry/pods/", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	watch := o.Watch(ctx, "/registry/pods/", clientv3.WithPrefix(), clientv3.WithRev(list.Header.Revision+1),
		clientv3.WithCreatedNotify(), clientv3.WithProgressNotify())
	if r := <-watch; !r.Created {
		t.Fatal(r)
	}
	o.gate.shut(t)
	rev, err := o.create(ctx, "/registry/pods/lab/web", "x")
	if err != nil {
		t.Fatal(err)
	}
	// The API server asks each tenth of a second; kine leaves out an answer while a watch is not ready.
	hold := 3 * time.Second
	if !ours { // until it is announced, however busy the machine is
		hold = patience / 2
	}
	free := time.AfterFunc(hold, o.gate.free)
	ask := time.NewTicker(100 * time.Millisecond)
	defer ask.Stop()
	for {
		select {
		case <-ask.C:
			if err := o.RequestProgress(ctx); err != nil {
				t.Fatal(err)
			}
		case r, ok := <-watch:
			switch {
			case !ok || r.Err() != nil:
				t.Fatal("the watch ended: ", r.Err())
			case len(r.Events) > 0:
				if got := r.Events[0].Kv.ModRevision; got != rev {
					t.Fatalf("the event of revision %d came, want %d", got, rev)
				}
				return early
			case r.Header.Revision >= rev:
				if early = true; free.Stop() {
					o.gate.free()
				}
			}
		}
	}
}

// What was replaced long ago is removed by the datastore itself; a client that asks for it
// changes nothing.
func TestCompactsByItself(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cfg := config()
	cfg.CompactInterval, cfg.CompactMinRetain = 50*time.Millisecond, 10
	o := openStore(t, t.TempDir(), true, cfg)
	first, err := o.create(ctx, "/registry/pods/lab/web", "0")
	if err != nil {
		t.Fatal(err)
	}
	for rev, i := first, 1; i < 50; i++ {
		r, err := o.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision("/registry/pods/lab/web"), "=", rev)).
			Then(clientv3.OpPut("/registry/pods/lab/web", fmt.Sprint(i))).Else(clientv3.OpGet("/registry/pods/lab/web")).Commit()
		if err != nil || !r.Succeeded {
			t.Fatal(r, err)
		}
		rev = r.Header.Revision
	}
	for {
		_, err := o.Get(ctx, "/registry/pods/lab/web", clientv3.WithRev(first))
		if errors.Is(err, rpctypes.ErrCompacted) {
			break
		}
		if !wait(ctx, 20*time.Millisecond) {
			t.Fatalf("revision %d is still there: %v", first, err)
		}
	}
	watch := o.Watch(ctx, "/registry/pods/", clientv3.WithPrefix(), clientv3.WithRev(first))
	if r := <-watch; r.CompactRevision < first {
		t.Errorf("a watch of a revision that is gone gave %+v", r)
	}
	now, err := o.Get(ctx, "/registry/pods/lab/web")
	if err != nil || len(now.Kvs) != 1 || string(now.Kvs[0].Value) != "49" {
		t.Fatal(now, err)
	}
	if _, err := o.Compact(ctx, now.Header.Revision); err != nil {
		t.Error(err)
	}
	if _, err := o.Get(ctx, "/registry/pods/lab/web", clientv3.WithRev(now.Header.Revision-1)); err != nil {
		t.Errorf("a client had the newest revisions compacted: %v", err)
	}
}

// A client that reads nothing while much is written gets all of it afterwards, from the
// table page by page, once and in order; what it was given meanwhile does not pile up here.
func TestASlowWatchIsFedFromTheTable(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	o := openStore(t, t.TempDir(), true, config())
	ws, err := etcdserverpb.NewWatchClient(o.ActiveConnection()).Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := ws.Send(&etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_CreateRequest{
		CreateRequest: &etcdserverpb.WatchCreateRequest{Key: []byte("/registry/pods/"), RangeEnd: []byte("/registry/pods0")}}}); err != nil {
		t.Fatal(err)
	}
	if first, err := ws.Recv(); err != nil || !first.Created {
		t.Fatal(first, err)
	}
	// More than one watch and its stream hold: once paused it is behind, then written on.
	var want []int64
	write := func(n int) {
		for range n {
			rev, err := o.create(ctx, fmt.Sprint("/registry/pods/lab/", len(want)), strings.Repeat("x", 16<<10))
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, rev)
		}
	}
	paused := func() bool {
		f := &o.store.log.feed
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.live) == 0
	}
	write(200)
	for !paused() {
		if write(50); len(want) > 5000 {
			t.Fatal("80 MB wait in memory for one who reads nothing")
		}
	}
	write(300)
	var told int64
	for i := 0; i < len(want); {
		if err := ws.Send(&etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_ProgressRequest{ProgressRequest: &etcdserverpb.WatchProgressRequest{}}}); err != nil {
			t.Fatal(err)
		}
		r, err := ws.Recv()
		if err != nil {
			t.Fatalf("after %d of %d: %v", i, len(want), err)
		}
		for _, e := range r.Events {
			if e.Kv.ModRevision != want[i] || e.Kv.ModRevision <= told {
				t.Fatalf("revision %d came, want %d; progress was %d", e.Kv.ModRevision, want[i], told)
			}
			i++
		}
		if len(r.Events) == 0 {
			told = r.Header.Revision
		}
	}
}

// A watch that begins at a list is not told of less than the list's revision, though the
// events before it are still to be looked for.
func TestProgressIsNotOlderThanTheList(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	o := openStore(t, t.TempDir(), true, config())
	o.gate.shut(t)
	if _, err := o.create(ctx, "/registry/pods/lab/web", "x"); err != nil {
		t.Fatal(err)
	}
	list, err := o.Get(ctx, "/registry/pods/", clientv3.WithPrefix())
	if err != nil || len(list.Kvs) != 1 {
		t.Fatal(list, err)
	}
	watch := o.Watch(ctx, "/registry/pods/", clientv3.WithPrefix(), clientv3.WithRev(list.Header.Revision+1), clientv3.WithCreatedNotify())
	if r := <-watch; !r.Created {
		t.Fatal(r)
	}
	// By then the position is one before the list's: a question from before the write would be answered.
	s := o.onlyStream(t)
	f := &o.store.log.feed
	f.mu.Lock()
	s.requested, s.again = f.at, f.at
	f.mu.Unlock()
	s.nudge()
	time.AfterFunc(time.Second, o.gate.free)
	if r, ok := <-watch; !ok || r.Header.Revision < list.Header.Revision {
		t.Errorf("the watch of the list of revision %d was told of %d", list.Header.Revision, r.Header.Revision)
	}
}

// onlyStream is the stream of the only watch.
func (o *opened) onlyStream(t *testing.T) *stream {
	f := &o.store.log.feed
	for {
		f.mu.Lock()
		for w := range f.live {
			f.mu.Unlock()
			return w.stream
		}
		f.mu.Unlock()
		if !wait(t.Context(), time.Millisecond) {
			t.Fatal("no watch is live")
		}
	}
}
