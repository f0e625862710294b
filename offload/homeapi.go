package offload

import (
	"context"
	"net"
	"net/netip"
	"net/url"
	"sync"

	"rivulet/offload/homeapi"
	"rivulet/offload/pod"
)

// serveHomeAPI lets pods away reach the API server, until stop is called.
func (o *Offload) serveHomeAPI(ctx context.Context, running *sync.WaitGroup) (stop func()) {
	api := o.cfg.Home.Host
	if u, err := url.Parse(api); err == nil && u.Host != "" {
		api = u.Host
	}
	gate := &homeapi.Gate{API: api, Ours: o.runsAway, Log: o.cfg.Log.With("part", "homeapi")}
	var mu sync.Mutex
	stopped := false
	o.cfg.Peers.Pass(func(c net.Conn) {
		mu.Lock()
		defer mu.Unlock()
		if stopped {
			c.Close()
			return
		}
		running.Go(func() { gate.Serve(ctx, c) })
	}, homeapi.Names...)
	return func() {
		mu.Lock()
		defer mu.Unlock()
		stopped = true
		o.cfg.Peers.Pass(nil, homeapi.Names...)
	}
}

// runsAway reports whether the address is that of a pod of ours on some target.
func (o *Offload) runsAway(addr netip.Addr) bool {
	o.mu.Lock()
	var all []*pod.Controller
	for _, s := range o.stacks {
		if s.pods != nil {
			all = append(all, s.pods)
		}
	}
	o.mu.Unlock()
	for _, pods := range all {
		if pods.Runs(addr) {
			return true
		}
	}
	return false
}
