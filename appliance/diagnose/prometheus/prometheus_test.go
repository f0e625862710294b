package prometheus

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"rivulet/appliance/api"
	"rivulet/appliance/health"
	"rivulet/appliance/lifecycle"
	"rivulet/fabric/peer"
	"rivulet/fabric/tunnel"
	"rivulet/fabric/tunnel/paths"
	"rivulet/fabric/wgkey"
	"rivulet/offload"
	"rivulet/test/harness/docpage"
)

func full() api.Status {
	id := peer.ID(strings.Repeat("a", 32))
	key, _ := wgkey.Generate()
	net := netip.MustParsePrefix("10.42.0.0/16")
	return api.Status{
		Name: "pi", NodeName: "pi", Version: "1", Ready: true, Started: time.Unix(1700000000, 5e8),
		Stages: []lifecycle.Status{{Name: "engine", State: lifecycle.Ready, Took: 1500 * time.Millisecond, Starts: 2}},
		Peers: []peer.View{{State: peer.Connected, RTT: 250 * time.Microsecond, Record: peer.Record{ID: id, Name: "evil\"\n\\", WireGuardKey: key.Public(),
			PeerCIDR: net, PeerMappedCIDR: net, LocalMappedCIDR: net, TunnelAddress: netip.MustParseAddr("10.42.255.254")}}, {State: peer.Discovered}},
		Tunnel: &tunnel.Status{Dropped: 3, Peers: []tunnel.PeerStatus{{MTU: 1420, ID: string(id), Received: 10, Sent: 20, LastHandshake: time.Unix(1700000001, 0),
			Paths: []paths.PathStatus{{Kind: paths.Relay, Via: "c", RTT: time.Millisecond, Alive: true, Used: true}, {Kind: paths.Direct}}}}},
		Status: offload.Status{VirtualNodes: []offload.VirtualNode{{Name: "b", Ready: true}}},
		Pods:   api.Pods{Home: 4, Away: 5, Tenants: 6},
		Health: []health.Problem{{Kind: *health.Tun, Text: "x"}},
	}
}

// What is written is what a parser of Prometheus reads, whatever a peer calls itself.
func TestAParserReadsIt(t *testing.T) {
	var b strings.Builder
	if err := Write(&b, full()); err != nil {
		t.Fatal(err)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	got, err := parser.TextToMetricFamilies(strings.NewReader(b.String()))
	if err != nil {
		t.Fatalf("%v:\n%s", err, b.String())
	}
	for _, line := range []string{
		`rivulet_build_info{version="1",node="pi",name="pi"} 1`,
		`rivulet_health_problem{code="tun",severity="error",subject=""} 1`,
		`rivulet_stage_seconds{stage="engine"} 1.5`, `rivulet_stage_starts_total{stage="engine"} 2`,
		`rivulet_peers{state="Connected"} 1`, `rivulet_peers{state="Lost"} 0`,
		`rivulet_tunnel_path{peer="evil\"\n\\",id="` + strings.Repeat("a", 32) + `",path="relay",addr="",via="c"} 1`,
		`rivulet_pods{where="away"} 5`, `rivulet_start_time_seconds 1.7000000005e+09`,
		`rivulet_tunnel_rtt_seconds{peer="evil\"\n\\",id="` + strings.Repeat("a", 32) + `"} 0.00025`,
	} {
		if !strings.Contains(b.String(), line+"\n") {
			t.Errorf("%s is missing in\n%s", line, b.String())
		}
	}
	if len(got["rivulet_peer_connected"].GetMetric()) != 1 {
		t.Error("a cluster that was only found counts as a peer")
	}
}

// docs/reference/metrics.md has every metric that a full status makes.
func TestReferenceOfMetrics(t *testing.T) {
	var b strings.Builder
	b.WriteString("# Metrics\n\n`sudo rivulet metrics`, in the text format of Prometheus; how to collect them: [monitoring](../guide/how-to.md#monitor).\n\n| metric | type | labels | what |\n|---|---|---|---|\n")
	for _, f := range families(full()) {
		var labels []string
		if len(f.Metric) == 0 {
			t.Errorf("a full status has no %s: add it to full", f.GetName())
			continue
		}
		for _, l := range f.Metric[0].Label {
			labels = append(labels, "`"+l.GetName()+"`")
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.GetName(), strings.ToLower(f.GetType().String()), strings.Join(labels, ", "), docpage.Cell(f.GetHelp()))
	}
	docpage.Check(t, "metrics.md", "appliance/diagnose/prometheus", b.String())
}

func TestADeviceThatHasJustStarted(t *testing.T) {
	var b strings.Builder
	if err := Write(&b, api.Status{}); err != nil || !strings.Contains(b.String(), "rivulet_ready 0\n") {
		t.Errorf("%v\n%s", err, b.String())
	}
}
