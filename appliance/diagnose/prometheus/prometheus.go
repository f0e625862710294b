// Package prometheus exports the status in the text format of Prometheus. It reads nothing else, so that status and
// metrics always agree; it writes and stores nothing.
package prometheus

import (
	"io"
	"net/http"
	"slices"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"rivulet/appliance/api"
	"rivulet/appliance/lifecycle"
	"rivulet/fabric/peer"
	"rivulet/fabric/tunnel"
)

// Handler answers with all current metrics.
func Handler(status func() api.Status) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		Write(w, status()) //nolint:errcheck // the client has gone
	})
}

// Write writes all metrics.
func Write(w io.Writer, st api.Status) error {
	for _, f := range families(st) {
		if len(f.Metric) == 0 {
			continue
		}
		if _, err := expfmt.MetricFamilyToText(w, f); err != nil {
			return err
		}
	}
	return nil
}

func families(st api.Status) []*dto.MetricFamily {
	return append(device(st), append(peers(st), pods(st)...)...)
}

func device(st api.Status) []*dto.MetricFamily {
	build := gauge("rivulet_build_info", "What runs; always 1.").add(1, "version", st.Version, "node", st.NodeName, "name", st.Name)
	ready := gauge("rivulet_ready", "1 when pods can be scheduled at home and resolve names.").add(truth(st.Ready))
	started := gauge("rivulet_start_time_seconds", "When the supervisor started, since 1970.").add(unixSeconds(st.Started))
	problems := gauge("rivulet_health_problem", "1 for every problem that holds now.")
	for _, p := range st.Health {
		problems.add(1, "code", p.Code, "severity", string(p.Severity), "subject", p.Subject)
	}
	up := gauge("rivulet_stage_ready", "1 while the stage is ready.")
	took := gauge("rivulet_stage_seconds", "From the supervisor's start until the stage was first ready.")
	starts := counter("rivulet_stage_starts_total", "How often the stage was started.")
	for _, s := range st.Stages {
		up.add(truth(s.State == lifecycle.Ready), "stage", s.Name)
		starts.add(float64(s.Starts), "stage", s.Name)
		if s.Took > 0 {
			took.add(s.Took.Seconds(), "stage", s.Name)
		}
	}
	return []*dto.MetricFamily{build.f, ready.f, started.f, problems.f, up.f, took.f, starts.f}
}

func peers(st api.Status) []*dto.MetricFamily {
	count := gauge("rivulet_peers", "Clusters that are known, by state.")
	for _, state := range []peer.State{peer.Discovered, peer.Waiting, peer.Denied, peer.Refused, peer.Connecting, peer.Connected, peer.Lost} {
		n := 0
		for _, p := range st.Peers {
			if p.State == state {
				n++
			}
		}
		count.add(float64(n), "state", string(state))
	}
	names := map[string]string{}
	connected := gauge("rivulet_peer_connected", "1 while the peer answers through the tunnel.")
	trip := gauge("rivulet_tunnel_rtt_seconds", "Round trip to the peer through the tunnel.")
	for _, p := range st.Peers {
		names[string(p.ID)] = p.Name
		if p.ID == "" || !p.Complete() {
			continue // discovered, not a peer
		}
		connected.add(truth(p.State == peer.Connected), "peer", p.Name, "id", string(p.ID))
		if p.RTT > 0 && p.State == peer.Connected {
			trip.add(p.RTT.Seconds(), "peer", p.Name, "id", string(p.ID))
		}
	}
	received := counter("rivulet_tunnel_received_bytes_total", "From the peer since the tunnel's process started.")
	sent := counter("rivulet_tunnel_sent_bytes_total", "To the peer since the tunnel's process started.")
	age := gauge("rivulet_tunnel_handshake_age_seconds", "How long ago the tunnel last shook hands; over 180 nothing passes.")
	path := gauge("rivulet_tunnel_path", "1 for the path that the peer's packets go by: direct, relay or stream.")
	pathTrip := gauge("rivulet_tunnel_path_rtt_seconds", "Round trip by each path that answers.")
	mtu := gauge("rivulet_tunnel_mtu_bytes", "What fits through the path to the peer in one packet, inside the tunnel.")
	shook := gauge("rivulet_tunnel_last_handshake_seconds", "When the tunnel last shook hands, since 1970.")
	dropped := counter("rivulet_tunnel_dropped_packets_total", "Refused by translation since the tunnel's process started.")
	if st.Tunnel != nil {
		dropped.add(float64(st.Tunnel.Dropped))
		for _, p := range st.Tunnel.Peers {
			who := []string{"peer", names[p.ID], "id", p.ID}
			received.add(float64(p.Received), who...)
			sent.add(float64(p.Sent), who...)
			if p.MTU > 0 {
				mtu.add(float64(p.MTU), who...)
			}
			if !p.LastHandshake.IsZero() {
				shook.add(unixSeconds(p.LastHandshake), who...)
				age.add(max(time.Since(p.LastHandshake).Seconds(), 0), who...)
			}
			addPaths(path, pathTrip, p, who)
		}
	}
	return []*dto.MetricFamily{count.f, connected.f, trip.f, received.f, sent.f, shook.f, age.f, path.f, pathTrip.f, mtu.f, dropped.f}
}

// addPaths adds a peer's working paths.
func addPaths(used, trip family, p tunnel.PeerStatus, who []string) {
	for _, way := range p.Paths {
		if !way.Alive && !way.Used {
			continue
		}
		addr := ""
		if way.Addr.IsValid() {
			addr = way.Addr.String()
		}
		labels := append(slices.Clip(who), "path", string(way.Kind), "addr", addr, "via", way.Via)
		used.add(truth(way.Used), labels...)
		if way.RTT > 0 {
			trip.add(way.RTT.Seconds(), labels...)
		}
	}
}

func pods(st api.Status) []*dto.MetricFamily {
	count := gauge("rivulet_pods", "Pods that are not finished: ours here, ours elsewhere, those of others here.")
	count.add(float64(st.Pods.Home), "where", "home").add(float64(st.Pods.Away), "where", "away").add(float64(st.Pods.Tenants), "where", "tenants")
	nodes := gauge("rivulet_virtual_node_ready", "1 while the virtual node takes pods.")
	for _, n := range st.VirtualNodes {
		nodes.add(truth(n.Ready), "node", n.Name)
	}
	return []*dto.MetricFamily{count.f, nodes.f}
}

// family is one metric under construction.
type family struct{ f *dto.MetricFamily }

func gauge(name, help string) family   { return newFamily(name, help, dto.MetricType_GAUGE) }
func counter(name, help string) family { return newFamily(name, help, dto.MetricType_COUNTER) }

func newFamily(name, help string, kind dto.MetricType) family {
	return family{&dto.MetricFamily{Name: &name, Help: &help, Type: &kind}}
}

// add adds a value; labels are names and values in turn.
func (m family) add(value float64, labels ...string) family {
	metric := &dto.Metric{}
	for i := 0; i < len(labels); i += 2 {
		metric.Label = append(metric.Label, &dto.LabelPair{Name: &labels[i], Value: &labels[i+1]})
	}
	if m.f.GetType() == dto.MetricType_COUNTER {
		metric.Counter = &dto.Counter{Value: &value}
	} else {
		metric.Gauge = &dto.Gauge{Value: &value}
	}
	m.f.Metric = append(m.f.Metric, metric)
	return m
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func unixSeconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }
