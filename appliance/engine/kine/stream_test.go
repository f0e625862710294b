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

	"github.com/k3s-io/kine/pkg/server"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
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
