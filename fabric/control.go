package fabric

import (
	"context"
	"net"
	"net/http"
	"net/netip"

	"rivulet/fabric/control"
	"rivulet/fabric/pairing"
	"rivulet/fabric/peer"
	"rivulet/fabric/relay"
	"rivulet/fabric/rpc"
)

// openPort creates the control port, its routes and the relay.
func (f *Fabric) openPort() {
	exchanges := f.exchanges()
	f.Port = control.New(control.Config{
		Identity: f.cfg.Identity, Port: f.cfg.Port, TunnelAddress: f.cfg.TunnelAddress, Name: f.settings.name.get, Peers: f, Exchange: exchanges,
		Streams: f.handOver(), Problem: f.problems.report, Retry: f.cfg.Timing.Retry, LongestRetry: maxRetry * f.cfg.Timing.Retry, Log: f.log,
	})
	f.relay = relay.New(relay.Config{
		Identity: f.cfg.Identity, Name: f.settings.name.get, Address: f.inTunnel(), Allowed: f.settings.relays.get,
		Reaches: f.connected,
		Dial: func(ctx context.Context, id peer.ID) (net.Conn, error) {
			return f.dialPeer(id, dialLimit)(ctx, "tcp", "")
		},
		Exchange: exchanges, Log: f.log,
	}, f.Port)
	f.Handle("GET /v1/ping", http.HandlerFunc(f.pinger.answer))
	f.Handle("GET "+neighboursPath, http.HandlerFunc(f.reportNeighbours))
	f.Handle("POST "+pairing.Path, exchanges)
	f.Handle("POST "+pairing.EndPath, exchanges)
}

func (f *Fabric) inTunnel() netip.AddrPort {
	return netip.AddrPortFrom(f.cfg.TunnelAddress, f.cfg.Port)
}

// exchanges serves the exchange and its end. It refuses all requests while this cluster leaves.
func (f *Fabric) exchanges() http.Handler {
	mux := http.NewServeMux()
	inside := func(r *http.Request) bool { return control.Inside(r, f.cfg.TunnelAddress) }
	mux.Handle("POST "+pairing.Path, f.party.Handler(inside, f.received))
	mux.Handle("POST "+pairing.EndPath, f.party.EndHandler(f.endings.endedByThem))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, pattern := mux.Handler(r); pattern == "" {
			control.NotServed(w, r)
		} else if f.admission.leaving.Load() {
			rpc.Fail(w, http.StatusServiceUnavailable, leavingError(f.settings.name.get()))
		} else {
			mux.ServeHTTP(w, r)
		}
	})
}
