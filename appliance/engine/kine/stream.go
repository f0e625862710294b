package kine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"time"
	_ "unsafe" // for go:linkname

	"github.com/k3s-io/kine/pkg/server"
	"github.com/sirupsen/logrus"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"rivulet/fabric/changes"
)

const (
	// historyPage is the most rows that are read at once for a watch that begins in the past.
	historyPage = 100
	// progressEvery is the interval of requested progress messages, the same as in k3s.
	progressEvery = 5 * time.Second
)

// kine creates its gRPC server itself without options of others. gRPC has an unexported variable for options of all
// servers, which is reached by its name; if that changes, hooked returns an error before the datastore opens.
//
//go:linkname allServers google.golang.org/grpc.globalServerOptions
var allServers []grpc.ServerOption

func init() { allServers = append(allServers, grpc.ChainStreamInterceptor(intercept)) }

// intercept serves watches of this datastore; all other streams pass.
func intercept(srv any, ws grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	switch info.FullMethod {
	case probe:
		return nil
	case "/etcdserverpb.Watch/Watch":
		if l := behind(ws.Context(), srv); l != nil {
			return l.serveWatches(ws)
		}
	}
	return handle(srv, ws)
}

// probe is a method that only intercept answers.
const probe = "/rivulet.kine/probe"

// hooked returns an error if gRPC's servers do not use the interceptor: kine would serve the watches, and lose events
// without an error.
func hooked(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	l := bufconn.Listen(4 << 10)
	s := grpc.NewServer(grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error { return status.Error(codes.Unimplemented, "nobody answers it") }))
	go func() { _ = s.Serve(l) }() // ends with Stop
	defer s.Stop()
	conn, err := grpc.NewClient("passthrough:///kine", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		return err
	}
	defer conn.Close()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, probe)
	if err != nil {
		return err
	}
	if err := stream.RecvMsg(&etcdserverpb.WatchResponse{}); !errors.Is(err, io.EOF) {
		return fmt.Errorf("grpc does not take our watch server (see: rivulet docs datastore), and kine's own loses events: %w", err)
	}
	return nil
}

// store is the datastore for kine's server.
type store struct {
	*durable
	log *log
}

type progressLog struct{}

// behind finds the log of one of kine's servers, which does not expose its backend, by a call that the backend answers.
// It returns nil for another backend.
func behind(ctx context.Context, srv any) (found *log) {
	if s, ok := srv.(etcdserverpb.MaintenanceServer); ok {
		_, _ = s.Status(context.WithValue(ctx, progressLog{}, &found), &etcdserverpb.StatusRequest{})
	}
	return found
}

func (s *store) DbSize(ctx context.Context) (int64, error) {
	if found, ok := ctx.Value(progressLog{}).(**log); ok {
		*found = s.log
		return 0, nil
	}
	return s.durable.DbSize(ctx)
}

// stream is one client's stream with any number of watches. One goroutine receives, one sends. The next message is
// chosen under the feed's lock, so a progress message follows all events up to its revision.
type stream struct {
	log  *log
	ws   grpc.ServerStream
	wake chan struct{} // holds one token while there may be something to send

	// The feed's lock guards these.
	lastID    int64
	watches   map[int64]*watch
	out       []*etcdserverpb.WatchResponse // sent first
	due       bool                          // progress messages are due
	requested int64                         // the revision from which a progress request can be answered; 0: none
	again     int64                         // that of the newest request
	need      int64                         // while it waits with the feed
}

// serveWatches returns when the client has gone.
func (l *log) serveWatches(ws grpc.ServerStream) error {
	s := &stream{log: l, ws: ws, wake: make(chan struct{}, 1), watches: map[int64]*watch{}}
	ctx, cancel := context.WithCancel(ws.Context())
	defer s.close()
	defer cancel()
	received, sent := make(chan error, 1), make(chan error, 1)
	go func() { received <- s.receive() }()
	go func() { sent <- s.send(ctx) }()
	select {
	case err := <-received:
		cancel()
		<-sent
		return err
	case err := <-sent:
		return err // and receive ends with the stream
	}
}

func (s *stream) nudge() {
	changes.Poke(s.wake)
}

func (s *stream) receive() error {
	for {
		r := &etcdserverpb.WatchRequest{}
		if err := s.ws.RecvMsg(r); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		switch {
		case r.GetCreateRequest() != nil:
			s.create(r.GetCreateRequest())
		case r.GetCancelRequest() != nil:
			s.cancel(r.GetCancelRequest().WatchId)
		case r.GetProgressRequest() != nil:
			s.requestProgress()
		}
	}
}

func (s *stream) create(r *etcdserverpb.WatchCreateRequest) {
	f, now := &s.log.feed, s.log.current.Load()
	defer s.nudge()
	f.mu.Lock()
	defer f.mu.Unlock()
	if r.WatchId != clientv3.AutoWatchID {
		s.out = append(s.out, &etcdserverpb.WatchResponse{Header: header(now), WatchId: clientv3.InvalidWatchID,
			Created: true, Canceled: true, CancelReason: "kine: the number of a watch is the server's to choose"})
		return
	}
	s.lastID++
	w := &watch{id: s.lastID, key: string(r.Key), end: string(r.RangeEnd), stream: s,
		progress: r.ProgressNotify, previous: r.PrevKv, next: r.StartRevision}
	if w.key == compactKey {
		w.key = compactKeyAPI
	}
	if w.next == 0 {
		w.next = now + 1
	}
	s.watches[w.id] = w
	s.out = append(s.out, &etcdserverpb.WatchResponse{Header: header(now), WatchId: w.id, Created: true})
}

func (s *stream) cancel(id int64) {
	defer s.nudge()
	s.log.feed.mu.Lock()
	defer s.log.feed.mu.Unlock()
	if w := s.watches[id]; w != nil {
		s.end(w, &etcdserverpb.WatchResponse{Header: header(s.log.feed.at)})
	}
}

// end removes a watch and sends the reason.
func (s *stream) end(w *watch, last *etcdserverpb.WatchResponse) {
	w.pause(&s.log.feed)
	delete(s.watches, w.id)
	last.WatchId, last.Canceled = w.id, true
	s.out = append(s.out, last)
}

// requestProgress records a progress request. It is answered once all watches were sent what was written before: the
// API server uses it for consistent reads.
func (s *stream) requestProgress() {
	now := s.log.current.Load()
	defer s.nudge()
	s.log.feed.mu.Lock()
	defer s.log.feed.mu.Unlock()
	s.again = now
	if s.requested == 0 {
		s.requested = now
	}
}

func (s *stream) close() {
	f := &s.log.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, w := range s.watches {
		w.pause(f)
	}
	delete(f.waiting, s)
}

// send ends with ctx.
func (s *stream) send(ctx context.Context) error {
	tick := time.NewTicker(progressEvery + rand.N(progressEvery/10))
	defer tick.Stop()
	for ctx.Err() == nil {
		message, behind := s.next()
		switch {
		case message != nil:
			if err := s.ws.SendMsg(message); err != nil {
				return err
			}
		case behind != nil:
			s.history(ctx, behind)
		default:
			select {
			case <-ctx.Done():
			case <-s.wake:
			case <-tick.C:
				s.log.feed.mu.Lock()
				s.due = true
				s.log.feed.mu.Unlock()
			}
		}
	}
	return nil
}

// next takes the next message, or a watch for which the table has to be read first.
func (s *stream) next() (*etcdserverpb.WatchResponse, *watch) {
	f := &s.log.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(s.out) > 0 {
		first := s.out[0]
		s.out = s.out[1:]
		return first, nil
	}
	for _, w := range s.watches {
		if !w.live {
			w.resume(f)
		}
		if w.next <= w.until {
			return nil, w
		}
		if len(w.pending) > 0 {
			events := w.pending
			w.pending, w.bytes = nil, 0
			return w.message(events), nil
		}
	}
	// All watches were sent everything up to the feed's position.
	if s.due {
		for _, w := range s.watches {
			if w.progress && w.sent < f.at && w.next <= f.at+1 {
				w.sent = f.at
				return &etcdserverpb.WatchResponse{Header: header(f.at), WatchId: w.id}, nil
			}
		}
		s.due = false
	}
	if s.requested == 0 || len(s.watches) == 0 {
		return nil, nil
	}
	s.need = s.requested
	for _, w := range s.watches {
		s.need = max(s.need, w.next-1) // never less than a watch began with
	}
	if s.need > f.at {
		f.waiting[s] = struct{}{}
		s.log.pollOnce()
		return nil, nil
	}
	if s.requested = 0; s.again > f.at {
		s.requested = s.again
	}
	for _, w := range s.watches {
		w.sent = f.at
	}
	return &etcdserverpb.WatchResponse{Header: header(f.at), WatchId: clientv3.InvalidWatchID}, nil
}

// message is one with events, the oldest first.
func (w *watch) message(events []*mvccpb.Event) *etcdserverpb.WatchResponse {
	last := events[len(events)-1].Kv.ModRevision
	w.next, w.sent = last+1, last
	return &etcdserverpb.WatchResponse{Header: header(last), WatchId: w.id, Events: events}
}

// history reads a page of a watch's missing events from the table.
func (s *stream) history(ctx context.Context, w *watch) {
	f := &s.log.feed
	f.mu.Lock()
	from, until := w.next, w.until
	f.mu.Unlock()
	_, compacted, rows, err := s.log.after(ctx, w.like(), from-1, historyPage)
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case s.watches[w.id] != w: // cancelled meanwhile
		return
	case err != nil:
		if ctx.Err() == nil {
			logrus.Warnf("kine: reading for a watch of %s: %v", w.key, err)
		}
		s.end(w, &etcdserverpb.WatchResponse{Header: header(f.at), CancelReason: server.ErrGRPCUnhealthy.Error()})
		return
	case from-1 < compacted:
		s.end(w, &etcdserverpb.WatchResponse{Header: header(f.at), CompactRevision: compacted, CancelReason: server.ErrCompacted.Error()})
		return
	}
	var events []*mvccpb.Event
	next := until + 1
	if len(rows) == historyPage {
		next = min(next, rows[len(rows)-1].KV.ModRevision+1)
	}
	for _, e := range rows {
		if e.KV.ModRevision < next && w.wants(e.KV.Key) {
			events = append(events, w.dress(event(e)))
		}
	}
	if len(events) > 0 {
		s.out = append(s.out, w.message(events))
	}
	w.next = next
}

func header(revision int64) *etcdserverpb.ResponseHeader {
	return &etcdserverpb.ResponseHeader{Revision: revision}
}
