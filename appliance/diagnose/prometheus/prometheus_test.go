package prometheus

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"rivulet/appliance/addons/clusterset"
	"rivulet/appliance/addons/loadbalancer"
	"rivulet/appliance/api"
	"rivulet/appliance/config"
	"rivulet/appliance/health"
	"rivulet/appliance/lifecycle"
	"rivulet/appliance/machine/clock"
	"rivulet/appliance/machine/host"
	"rivulet/appliance/machine/usage"
	"rivulet/fabric/broker"
	"rivulet/fabric/peer"
	"rivulet/fabric/tunnel"
	"rivulet/fabric/tunnel/paths"
	"rivulet/fabric/wgkey"
	"rivulet/offload"
	"rivulet/offload/policy"
	"rivulet/offload/provider/tenancy"
	"rivulet/test/harness/docpage"
)

var (
	then = time.Unix(1700000000, 5e8)
	key  = func() wgkey.Public { k, _ := wgkey.Generate(); return k.Public() }()
)

func list(cpu, memory string) corev1.ResourceList {
	return corev1.ResourceList{"cpu": resource.MustParse(cpu), "memory": resource.MustParse(memory), "pods": resource.MustParse("10"), "ephemeral-storage": resource.MustParse("1Gi")}
}

// full is a status with every metric, and no field that is empty.
func full() (api.Status, []api.VCluster) {
	id := peer.ID(strings.Repeat("a", 32))
	net := netip.MustParsePrefix("10.42.0.0/16")
	addr := netip.MustParseAddrPort("192.0.2.7:7442")
	room := list("3500m", "4Gi")
	room["nvidia.com/gpu"] = resource.MustParse("1")
	st := api.Status{
		Name: "pi", NodeName: "pi", ID: peer.ID(strings.Repeat("c", 32)), Version: "1", NodeAddress: "100.127.0.1", Ready: true, Started: then, ReadyAfter: 9 * time.Second, ReadyAfterBoot: 30 * time.Second, Waiting: "x",
		Stages: []lifecycle.Status{{Name: "engine", State: lifecycle.Ready, Detail: "x", Since: then, Took: 1500 * time.Millisecond, SinceBoot: time.Second, Starts: 2}},
		Host:   host.Facts{MissingTools: []string{"x"}, MemoryBytes: 4e9},
		PIDs:   map[string]int{"supervisor": 1, "engine": 2, "tunnel": 3},
		Peers: []peer.View{{State: peer.Connected, Reason: "x", Notice: "x", RTT: 250 * time.Microsecond, Since: then, LastSeen: then, Found: []string{"mdns"}, Addrs: []netip.AddrPort{addr}, Path: "x", Paths: []peer.Path{{Path: "x"}},
			Record: peer.Record{ID: id, Name: "evil\"\n\\", Trust: peer.Trust{How: peer.TrustLAN, At: then, Source: "x"}, Certificate: []byte("x"), WireGuardKey: key, NextWireGuardKey: key,
				Price: 3, Labels: map[string]string{"room": "x"}, PeerCIDR: net, PeerMappedCIDR: net, LocalMappedCIDR: net, TunnelAddress: netip.MustParseAddr("10.42.255.254"), Control: addr, Tunnel: addr, Node: "x", Behind: []netip.Prefix{net}, Version: "1", KubeVersion: "v1.35.3"}},
			{State: peer.Discovered}},
		Nodes:  []api.ClusterNode{{Node: "b", ID: id, State: peer.Connected, Reason: "x", Path: "x", RTT: time.Millisecond, Version: "1"}},
		Member: &api.Membership{Cluster: "x", Server: id, Address: netip.MustParseAddr("100.127.0.2"), Removed: true},
		Tunnel: &tunnel.Status{PID: 3, Version: "1", Port: 7442, Dropped: 3, Carried: 4, StreamPort: "x", Seen: []netip.AddrPort{addr}, Brokers: []tunnel.BrokerStatus{{ID: "x", Paths: []paths.PathStatus{{Kind: paths.Relay, Via: "c", Addr: addr, RTT: time.Millisecond, Alive: true, Used: true}}}}, Peers: []tunnel.PeerStatus{{MTU: 1420, ID: string(id), Endpoint: addr, Received: 10, Sent: 20, LastHandshake: then,
			Problem: &tunnel.Problem{Text: "x", Cure: "x"}, Paths: []paths.PathStatus{{Kind: paths.Relay, Via: "c", Addr: addr, RTT: time.Millisecond, Alive: true, Used: true}, {Kind: paths.Direct}}}}},
		Brokers: []broker.Status{{Address: "x", Reached: true, Members: 1, Reason: "x"}},
		Status: offload.Status{
			VirtualNodes: []offload.VirtualNode{{Name: "b", Target: "b", ID: string(id), Kind: "peer", Ready: true, Reason: "x", OS: "linux", Architecture: "arm64", KubeVersion: "v1.35.3", Allocatable: list("2", "1Gi"), Pods: 5,
				Refused: map[string]string{"lab/x": "x"}, Heard: then}},
			LendNothing: []string{"x"}, Unchosen: []string{"x"}, Namespaces: map[string]policy.Namespace{"lab": {When: policy.Burst, To: "b", Prefer: policy.Spread, Reflect: "x"}}, Open: map[string][]string{"lab/web": {"all"}}, Relayed: map[peer.ID][]peer.ID{"x": {"y"}},
			Consumers: []offload.Consumer{{Consumer: tenancy.Consumer{ID: id, Name: "b", Twins: map[string]string{"lab": "lab-b"}, Pods: 6, Use: list("1", "1Gi")}, Peer: true, VCluster: true, Course: "default/db", Silent: time.Minute, Left: time.Hour}}, Lent: list("3", "3Gi"),
		},
		Pods:      api.Pods{Home: 4, Away: 5, Tenants: 6},
		Room:      map[string]api.Room{"pi": {Allocatable: room, Requested: list("1", "1Gi"), Pressure: []string{"DiskPressure"}, Pods: 10, Architecture: "arm64"}, "b": {Requested: list("500m", "100Mi"), Pods: 5}},
		Footprint: usage.Report{Processes: []usage.Process{{Name: "engine", PID: 2, PSS: 5e8, Private: 4e8, CPU: time.Hour}}, Written: usage.Writes{Bytes: 1e8, Over: 24 * time.Hour}, Disk: usage.Writes{Bytes: 2e8, Over: 24 * time.Hour}, DiskName: "mmcblk0"},
		Clock:     clock.Status{Now: then, Source: "ntp", Synchronized: true, Plausible: true, Floor: then, Offset: time.Millisecond, Reference: "ntp", Jump: &clock.Jump{At: then, By: -time.Second}},
		Config:    api.Config{File: "/etc/rivulet/config.yaml", From: config.FromFile, Loaded: then, Pending: []string{"x"}},
		Addresses: []netip.Addr{addr.Addr()}, ClusterSet: clusterset.Status{Services: []clusterset.Service{{Namespace: "lab", Name: "web", Type: "Headless", Exported: true, Imported: true, Conflicts: []string{"x"}, Why: "x", Weights: "x", WeightsFault: "x", From: []clusterset.Source{{ID: id, Name: "b", Endpoints: 2, Ready: 1, Used: true, Share: 1}}}}, Members: []clusterset.Member{{ID: id, Name: "b", State: peer.Lost, Exports: 1, Fault: "x"}}, Invalid: map[string]string{"lab/x": "x"}}, Services: []loadbalancer.Service{{Name: "lab/web", At: []string{"x"}}}, StatusPage: "http://pi.local", Console: "https://pi.local:7443", DatastoreReady: true,
		Upgrade: &api.Upgrade{Phase: "staged", To: "2", From: "1", Until: then, HeldBy: []string{"x"}, Last: "x"},
		Health:  []health.Problem{{Kind: *health.Tun, Subject: "x", Text: "x", Cure: "x", Since: then}},
	}
	return st, []api.VCluster{{Name: "ann", State: "Awake", Memory: 1e8, MemoryLimit: 5e8, Disk: 1e7, Datastore: 1e6, DatastoreLimit: 2e8, Pods: 3, Use: list("1", "1Gi"), Quota: list("2", "2Gi"), Started: time.Second, Created: then}}
}

func source(st api.Status, v []api.VCluster) *Source {
	return &Source{Supervisor: &reported{st: &st}, VClusters: &reported{v: v}}
}

type reported struct {
	st    *api.Status
	v     []api.VCluster
	reads int
}

func (d *reported) Status() api.Status     { d.reads++; return *d.st }
func (d *reported) Usages() []api.VCluster { return d.v }

func render(t testing.TB, s *Source, now time.Time) string {
	t.Helper()
	var b strings.Builder
	if err := s.Write(&b, expfmt.NewFormat(expfmt.TypeTextPlain), now); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// What is written is what a parser of Prometheus reads, whatever a peer calls itself.
func TestAParserReadsIt(t *testing.T) {
	text := render(t, source(full()), then)
	parser := expfmt.NewTextParser(model.LegacyValidation)
	got, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	id := strings.Repeat("a", 32)
	for _, line := range []string{
		`rivulet_build_info{version="1",node="pi",name="pi",id="` + strings.Repeat("c", 32) + `"} 1`,
		`rivulet_health_problems{code="tun",severity="error"} 1`,
		`rivulet_stage_startup_seconds{stage="engine"} 1.5`, `rivulet_stage_starts_total{stage="engine"} 2`,
		`rivulet_peers{state="Connected"} 1`, `rivulet_peers{state="Lost"} 0`,
		`rivulet_peer_info{id="` + id + `",name="evil\"_\\",version="1",kubernetes="v1.35.3",trust="lan"} 1`,
		`rivulet_tunnel_path_used{id="` + id + `",path="relay"} 1`, `rivulet_tunnel_path_used{id="` + id + `",path="stream"} 0`,
		`rivulet_pods{where="away"} 5`, `rivulet_start_time_seconds 1.7000000005e+09`, `rivulet_peer_rtt_seconds{id="` + id + `"} 0.00025`,
		`rivulet_node_allocatable{node="pi",resource="cpu",unit="core"} 3.5`, `rivulet_node_allocatable{node="pi",resource="nvidia.com/gpu",unit="integer"} 1`,
		`rivulet_node_requested{node="b",resource="memory",unit="byte"} 1.048576e+08`, `rivulet_lent{resource="memory",unit="byte"} 3.221225472e+09`,
		`rivulet_consumer_requested{id="` + id + `",resource="cpu",unit="core"} 1`, `rivulet_process_cpu_seconds_total{process="engine"} 3600`,
		`rivulet_vclusters{state="Awake"} 1`, `rivulet_vcluster_memory_bytes{vcluster="ann"} 1e+08`, `rivulet_upgrade_phase{phase="staged"} 1`,
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("%s is missing in\n%s", line, text)
		}
	}
	if len(got["rivulet_peer_connected"].GetMetric()) != 1 {
		t.Error("a cluster that was only found counts as a peer")
	}
}

// The names are those that promtool of Prometheus has nothing against.
func TestNamesFollowTheConvention(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("needs promtool: test/deps prometheus")
	}
	cmd := exec.Command(promtool, "check", "metrics")
	cmd.Stdin = strings.NewReader(render(t, source(full()), then))
	if out, err := cmd.CombinedOutput(); err != nil || len(bytes.TrimSpace(out)) > 0 {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}
}

// A scraper gets OpenMetrics if it accepts that, and the text format otherwise.
func TestFormats(t *testing.T) {
	s := source(full())
	h := Handler(s.Supervisor, s.VClusters)
	for accept, want := range map[string][2]string{
		"": {"text/plain; version=0.0.4", ""}, "text/html": {"text/plain; version=0.0.4", ""},
		"application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5":                                   {"application/openmetrics-text; version=1.0.0", "# EOF\n"},
		"application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited,text/plain;q=0.1": {"text/plain; version=0.0.4", ""},
	} {
		r, w := httptest.NewRequest(http.MethodGet, "/metrics", nil), httptest.NewRecorder()
		r.Header.Set("Accept", accept)
		h.ServeHTTP(w, r)
		if got := w.Header().Get("Content-Type"); !strings.HasPrefix(got, want[0]) || strings.HasSuffix(w.Body.String(), "# EOF\n") != (want[1] != "") || !strings.Contains(w.Body.String(), "\nrivulet_ready 1") {
			t.Errorf("Accept %q: %s, ends in %q", accept, got, w.Body.String()[max(0, w.Body.Len()-20):])
		}
	}
}

// However many scrapers ask, the status is read once a second for each format, of which there are three.
func TestRenderedOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, v := full()
		here := &reported{st: &st, v: v}
		h := Handler(here, here)
		ask := func(accept string) {
			r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
			r.Header.Set("Accept", accept)
			r.TLS = &tls.ConnectionState{}
			h.ServeHTTP(httptest.NewRecorder(), r)
		}
		for range 100 {
			for _, a := range []string{"", "text/plain;escaping=dots", "text/plain;escaping=values", "application/openmetrics-text;version=1.0.0", "application/openmetrics-text;version=1.0.0;escaping=dots"} {
				ask(a)
			}
		}
		if here.reads != 2 {
			t.Errorf("500 scrapes in a second read the status %d times", here.reads)
		}
		time.Sleep(life)
		if ask(""); here.reads != 3 {
			t.Errorf("a second later it was read %d times", here.reads)
		}
		for range 2 { // the supervisor's socket
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/v1/metrics", nil))
		}
		if here.reads != 5 {
			t.Errorf("two requests on the socket made %d here.reads in all", here.reads)
		}
	})
}

// A device with 200 peers and 200 virtual clusters has a bounded number of series.
func TestSeriesOfALargeDevice(t *testing.T) {
	st, v := full()
	for i := range 199 {
		id := peer.ID(fmt.Sprintf("%032d", i))
		p, tp, n, c, vc := st.Peers[0], st.Tunnel.Peers[0], st.VirtualNodes[0], st.Consumers[0], v[0]
		p.ID, tp.ID, n.Name, c.ID, vc.Name = id, string(id), "n"+string(id), id, "v"+string(id)
		st.Peers, st.Tunnel.Peers, st.VirtualNodes, st.Consumers, v = append(st.Peers, p), append(st.Tunnel.Peers, tp), append(st.VirtualNodes, n), append(st.Consumers, c), append(v, vc)
	}
	text := render(t, source(st, v), then)
	lines := strings.Count(text, "\nrivulet_")
	if lines > 80*200 || len(text) > 2<<20 {
		t.Errorf("%d series, %d bytes", lines, len(text))
	}
	t.Logf("%d series, %d bytes", lines, len(text))
}

// docs/reference/metrics.md has every metric that a full status makes.
func TestReferenceOfMetrics(t *testing.T) {
	var b strings.Builder
	b.WriteString("# Metrics\n\n`sudo rivulet metrics`, or over the network with `metrics: lan` or `pods`, in the text format of Prometheus or as OpenMetrics; how to collect them: [monitoring](../guide/how-to.md#monitor). " +
		"What other clusters choose, as their names, is a label of `_info` metrics alone: join it by `id`, as in `rivulet_peer_connected * on(instance, id) group_left(name) rivulet_peer_info`.\n\n| metric | type | labels | what |\n|---|---|---|---|\n")
	for _, f := range source(full()).families(then) {
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
	text := render(t, source(api.Status{}, nil), then)
	if !strings.Contains(text, "rivulet_ready 0\n") || !strings.Contains(text, "rivulet_tunnel_up 0\n") {
		t.Error(text)
	}
}
