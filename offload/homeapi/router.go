package homeapi

import (
	"context"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"
)

// Router finds the home of a pod that connects to an API server, if several homes are served in one place: by the
// server name and by the pod's address. An address that two homes claim belongs to neither.
type Router struct {
	// Pass delivers connections whose TLS clients request one of the names; a nil h ends it. See fabric.Fabric.
	Pass func(h func(net.Conn), names ...string)
	Log  *slog.Logger

	mu    sync.Mutex
	gates []*Gate
}

// Serve routes connections to the gate until ctx ends, and returns when the last has ended.
func (r *Router) Serve(ctx context.Context, g *Gate) {
	g.ctx = ctx
	r.mu.Lock()
	r.gates = append(r.gates, g)
	for _, name := range g.Names {
		r.Pass(func(c net.Conn) { r.lead(c, name) }, name)
	}
	r.mu.Unlock()
	<-ctx.Done()
	r.mu.Lock()
	r.gates = slices.DeleteFunc(r.gates, func(other *Gate) bool { return other == g })
	for _, name := range g.Names {
		if len(r.named(name)) == 0 {
			r.Pass(nil, name)
		}
	}
	r.mu.Unlock()
	g.open.Wait()
}

// named are the gates that serve the name; mu is held.
func (r *Router) named(name string) (out []*Gate) {
	for _, g := range r.gates {
		if slices.Contains(g.Names, name) {
			out = append(out, g)
		}
	}
	return out
}

// lead finds the gate of a connection. It returns at once.
func (r *Router) lead(c net.Conn, name string) {
	go func() {
		g := r.await(c, name)
		if g == nil {
			r.Log.Debug("somebody who is no pod of ours asked for the API server", "from", c.RemoteAddr())
			c.Close()
			return
		}
		defer g.open.Done()
		g.serve(c)
	}()
}

// await returns the gate of the connecting pod, with the connection counted as open there; nil if there is none within
// patience, or the name is no longer served.
func (r *Router) await(c net.Conn, name string) *Gate {
	from, ok := c.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return nil
	}
	addr := from.AddrPort().Addr().Unmap()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for begun := time.Now(); time.Since(begun) < patience; <-tick.C {
		r.mu.Lock()
		gates := r.named(name)
		r.mu.Unlock()
		if len(gates) == 0 {
			return nil
		}
		gates = slices.DeleteFunc(gates, func(g *Gate) bool { return !g.Ours(addr) })
		if len(gates) != 1 {
			continue
		}
		r.mu.Lock()
		serves := slices.Contains(r.gates, gates[0])
		if serves {
			gates[0].open.Add(1)
		}
		r.mu.Unlock()
		if serves {
			return gates[0]
		}
	}
	return nil
}
