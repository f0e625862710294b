package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"

	"rivulet/fabric/httpserver"
)

// ServeMetrics answers GET /metrics on the listener until ctx ends, in the text format of Prometheus: how much the broker
// holds and relays, and nothing of who its members are.
func (s *Server) ServeMetrics(ctx context.Context, l net.Listener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", s.metrics)
	server := httpserver.New(httpserver.BrokerMetrics, mux, slog.New(slog.DiscardHandler))
	defer context.AfterFunc(ctx, func() { server.Close() })()
	if err := server.Serve(httpserver.BrokerMetrics.Listen(l)); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("broker: metrics: %w", err)
	}
	return nil
}

func (s *Server) metrics(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	rooms := map[string]bool{}
	for _, m := range s.members {
		rooms[m.room] = true
	}
	members, left, p := len(s.members), len(s.left), s.packets
	s.mu.Unlock()
	var relayed, refused uint64
	if p != nil {
		relayed, refused = p.manager.Relayed(), p.manager.Refused()
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	for _, m := range []struct {
		name, kind, help string
		value            any
	}{
		{"rivulet_broker_members", "gauge", "Clusters that are registered.", members},
		{"rivulet_broker_lingering_members", "gauge", "Clusters that have disconnected within 30 s, whose packets are relayed.", left},
		{"rivulet_broker_rooms", "gauge", "Groups with a registered cluster.", len(rooms)},
		{"rivulet_broker_exchanges", "gauge", "Peering exchanges that are relayed at the moment.", s.relayed.Count()},
		{"rivulet_broker_relayed_packets_total", "counter", "Packets relayed between members.", relayed},
		{"rivulet_broker_refused_packets_total", "counter", "Packets not relayed, because a member or all of them sent too much.", refused},
	} {
		fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s %s\n%s %d\n", m.name, m.help, m.name, m.kind, m.name, m.value)
	}
}
