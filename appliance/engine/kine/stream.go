package kine

import (
	"sync"
	_ "unsafe" // for go:linkname

	"google.golang.org/grpc"
)

// The API server keeps one watch stream open for each kind of object. On it kine (before
// v0.14.16) sends from several goroutines at once: events from one, what it answers
// to a question for its progress from another. grpc forbids that, since of two senders
// that wait for room in a stream it wakes one. When a burst of events had filled the
// stream the other could wait for ever, and it was the one with the events: the API
// server's cache of pods, say, stood still, and with it every controller, kubelet
// and virtual node that watches pods, while all lists that ask for the newest took
// three seconds. Nothing short of a restart of the engine ended that.
//
// kine makes its grpc server itself and lets nobody add to it; grpc has a place for
// options of all servers, which it keeps to itself. So it is reached by its name. The
// test would tell if it was called something else; take all of this away once kine
// is v0.14.16 or newer.
//
//go:linkname allServers google.golang.org/grpc.globalServerOptions
var allServers []grpc.ServerOption

func init() {
	allServers = append(allServers, grpc.ChainStreamInterceptor(
		func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
			return handle(srv, &oneAtATime{ServerStream: stream})
		}))
}

// oneAtATime is a stream on which several may send.
type oneAtATime struct {
	grpc.ServerStream
	mu sync.Mutex
}

func (s *oneAtATime) SendMsg(m any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ServerStream.SendMsg(m)
}
