package kine

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/k3s-io/kine/pkg/drivers"
	"github.com/k3s-io/kine/pkg/server"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"rivulet/test/harness/await"
)

// A watch gets everything once and in order, though its stream is full most of the time and the client
// asks for progress all the time, as the API server does when much is listed.
func TestAWatchNeverStandsStill(t *testing.T) {
	b, _ := start(t)
	socket := filepath.Join(t.TempDir(), "kine.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	server.New(b, "http", time.Second, "3.5.13").Register(s)
	go s.Serve(l)
	defer s.Stop()
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()

	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	watch, err := etcdserverpb.NewWatchClient(conn).Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var sending sync.Mutex // a client's stream, too, takes one at a time
	send := func(r *etcdserverpb.WatchRequest) error {
		sending.Lock()
		defer sending.Unlock()
		return watch.Send(r)
	}
	if err := send(&etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_CreateRequest{
		CreateRequest: &etcdserverpb.WatchCreateRequest{Key: []byte("/registry/pods/"), RangeEnd: []byte("/registry/pods0"), ProgressNotify: true}}}); err != nil {
		t.Fatal(err)
	}
	if first, err := watch.Recv(); err != nil || !first.Created {
		t.Fatal(first, err)
	}

	const pods = 1500
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	all.Go(func() {
		value := []byte(strings.Repeat("x", 8<<10)) // as a pod is
		for i := range pods {
			if _, err := b.Create(ctx, fmt.Sprintf("/registry/pods/lab/%d", i), value, 0); err != nil && ctx.Err() == nil {
				t.Error(err)
				return
			}
		}
	})
	for range 2 {
		all.Go(func() {
			for ctx.Err() == nil {
				if send(&etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_ProgressRequest{ProgressRequest: &etcdserverpb.WatchProgressRequest{}}}) != nil {
					return
				}
				time.Sleep(time.Millisecond) // asks for more would only queue up
			}
		})
	}
	var seen int
	var newest, told int64
	alarm := time.AfterFunc(patience/2, cancel)
	for seen < pods {
		r, err := watch.Recv()
		if err != nil {
			t.Fatalf("the watch stands still after %d of %d: %v", seen, pods, err)
		}
		for _, e := range r.Events {
			if e.Kv.ModRevision <= max(newest, told) {
				t.Fatalf("revision %d comes after %d, and progress %d", e.Kv.ModRevision, newest, told)
			}
			newest = e.Kv.ModRevision
		}
		if seen += len(r.Events); len(r.Events) > 0 {
			alarm.Reset(patience / 2)
			time.Sleep(5 * time.Millisecond) // a reader that is busy: the stream fills
		} else {
			told = r.Header.Revision
		}
	}
}

// A watch for which nothing can be read ends; a short failure is not noticed.
func TestWatchesEndWhenNothingCanBeRead(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	o := openStore(t, t.TempDir(), true, config())
	watch := o.Watch(ctx, "/registry/pods/", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	if r := <-watch; !r.Created {
		t.Fatal(r)
	}
	o.gate.broken.Store(true)
	if _, err := o.create(ctx, "/registry/pods/lab/web", "x"); err != nil {
		t.Fatal(err)
	}
	await.True(t, patience, "two looks have failed", func() bool { return o.gate.refused.Load() >= 2 })
	o.gate.broken.Store(false)
	if r := <-watch; r.Err() != nil || len(r.Events) != 1 {
		t.Fatalf("after a short failure: %v %v", r.Events, r.Err())
	}
	o.gate.broken.Store(true)
	if r, open := <-watch; open || ctx.Err() != nil { // etcd's client closes what the server has cancelled
		t.Fatalf("nothing can be read for %s: %v %v", pollPatience, r, ctx.Err())
	}
}

// The datastore does not open where grpc has no place for our watch server.
func TestADatastoreWithoutOurWatchesDoesNotOpen(t *testing.T) {
	t.Chdir(t.TempDir())
	ours := allServers
	allServers = nil
	defer func() { allServers = ours }()
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	defer wg.Wait()
	defer cancel()
	if _, _, err := drivers.New(ctx, &wg, config()); err == nil || !strings.Contains(err.Error(), "loses events") {
		t.Errorf("it opens: %v", err)
	}
}
