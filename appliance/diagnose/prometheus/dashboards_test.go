package prometheus

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"sigs.k8s.io/yaml"

	"rivulet/test/harness/promserver"
	"rivulet/test/harness/tree"
)

var monitoring = tree.Path("docs", "monitoring")

// The files of docs/monitoring, and the page of the alerts, are what test/programs/dashboards writes.
func TestDashboardsAreWhatTheProgramWrites(t *testing.T) {
	out := t.TempDir()
	cmd := exec.Command("go", "run", ".", "-docs", out)
	cmd.Dir = tree.Path("test", "programs", "dashboards")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	made := 0
	for _, pattern := range []string{"monitoring/*", "reference/*"} {
		files, err := filepath.Glob(filepath.Join(out, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range files {
			made++
			name, _ := filepath.Rel(out, path)
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(tree.Path("docs", name)); err != nil || !bytes.Equal(got, want) {
				t.Errorf("docs/%s is not what the program writes (%v); run: make dashboards", name, err)
			}
		}
	}
	kept, err := filepath.Glob(filepath.Join(monitoring, "*"))
	if err != nil || made != len(kept)+1 || made != 7 {
		t.Errorf("%d files are made, %v are in docs/monitoring: %v", made, kept, err)
	}
}

// recorded are two hours of two devices, as a Prometheus that scrapes them has them; it ends at end.
func recorded(t *testing.T, end time.Time) *promserver.Server {
	t.Helper()
	promserver.Tool(t, "promtool")
	dir := t.TempDir()
	var order []string
	all := map[string]*dto.MetricFamily{}
	for device := range 2 {
		st, v := full()
		if device == 1 { // nothing is wrong with this one
			st.Health = nil
		}
		st.Status.VirtualNodes[0].Name = "b"
		s := source(st, v)
		s.Supervisor = &reported{st: &st}
		instance := fmt.Sprintf("192.0.2.%d:7444", device+1)
		for at := end.Add(-2 * time.Hour); !at.After(end); at = at.Add(time.Minute) {
			tun := *st.Tunnel
			tun.Peers = slices.Clone(tun.Peers)
			tun.Peers[0].Received += 1e6
			tun.Peers[0].Sent += 2e6
			tun.Peers[0].LastHandshake = at.Add(-time.Minute)
			tun.Dropped++
			tun.Carried += 60
			st.Tunnel = &tun
			st.Clock.Now = at
			st.Footprint.Processes = slices.Clone(st.Footprint.Processes)
			st.Footprint.Processes[0].CPU += 30 * time.Second
			for _, f := range s.families(at) {
				if all[f.GetName()] == nil {
					all[f.GetName()] = &dto.MetricFamily{Name: f.Name, Help: f.Help, Type: f.Type}
					order = append(order, f.GetName())
				}
				for _, m := range f.Metric {
					label, ms := "instance", at.UnixMilli()
					m.Label = append(m.Label, &dto.LabelPair{Name: &label, Value: &instance})
					m.TimestampMs = &ms
					all[f.GetName()].Metric = append(all[f.GetName()].Metric, m)
				}
			}
		}
	}
	var b bytes.Buffer
	enc := expfmt.NewEncoder(&b, expfmt.NewFormat(expfmt.TypeOpenMetrics))
	for _, name := range order {
		if len(all[name].Metric) > 0 {
			if err := enc.Encode(all[name]); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := enc.(expfmt.Closer).Close(); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{"metrics": b.Bytes(), "prometheus.yml": []byte("global: {}\n")} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	promserver.Promtool(t, dir, "", "tsdb", "create-blocks-from", "openmetrics", "metrics", "data")
	return promserver.Start(t, dir, "--storage.tsdb.retention.time=10y")
}

// Each query of each panel has series in what the exporter makes of a real status; where instances are chosen, of the
// chosen one alone.
func TestPanelsHaveData(t *testing.T) {
	end := time.Now().Add(-3 * time.Hour).Truncate(time.Minute)
	s := recorded(t, end)
	files, err := filepath.Glob(filepath.Join(monitoring, "*.json"))
	if err != nil || len(files) != 5 {
		t.Fatalf("%v %v", files, err)
	}
	exported := map[string]bool{}
	for _, f := range source(full()).families(end) {
		exported[f.GetName()] = true
	}
	queries := 0
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var board struct {
			UID, Title string
			Templating struct {
				List []struct{ Name string }
			}
			Panels []struct {
				Title, Description, Type string
				GridPos                  struct{ X, W uint32 }
				Targets                  []struct {
					Expr    string
					Instant bool
				}
			}
		}
		if err := json.Unmarshal(raw, &board); err != nil {
			t.Fatal(err)
		}
		chosen := slices.ContainsFunc(board.Templating.List, func(v struct{ Name string }) bool { return v.Name == "instance" })
		for _, p := range board.Panels {
			if p.Title == "" || p.Description == "" || len(p.Targets) == 0 || p.GridPos.X+p.GridPos.W > 24 {
				t.Errorf("%s: a panel is incomplete: %+v", board.Title, p)
			}
			for _, q := range p.Targets {
				queries++
				if strings.Contains(q.Expr, "$instance") != chosen {
					t.Errorf("%s, %s: the choice of devices and the query differ: %s", board.Title, p.Title, q.Expr)
				}
				for _, name := range regexp.MustCompile(`rivulet_\w+`).FindAllString(q.Expr, -1) {
					if !exported[name] {
						t.Errorf("%s, %s: there is no metric %s", board.Title, p.Title, name)
					}
				}
				expr := strings.NewReplacer("$__rate_interval", "5m", "$instance", `192\\.0\\.2\\.1:7444`).Replace(q.Expr)
				var got []promserver.Sample
				if q.Instant {
					got, err = s.Query(expr, end)
				} else {
					got, err = s.QueryRange(expr, end.Add(-time.Hour), end, time.Minute)
				}
				if err != nil || len(got) == 0 {
					t.Errorf("%s, %s: %s: %v, %d series", board.Title, p.Title, expr, err, len(got))
				}
				for _, series := range got {
					if at := series.Labels["instance"]; chosen && at != "" && at != "192.0.2.1:7444" {
						t.Errorf("%s, %s: a series of %s", board.Title, p.Title, at)
					}
					if !q.Instant && series.Points < 50 {
						t.Errorf("%s, %s: %v has %d points of 61", board.Title, p.Title, series.Labels, series.Points)
					}
				}
			}
		}
	}
	if queries < 60 {
		t.Errorf("only %d queries found", queries)
	}
}

// alertCase is a test of one alert: series and their values of each minute with which it fires, and with which it does not.
type alertCase struct {
	alert        string
	fires, quiet map[string]string
}

var units = []alertCase{
	{alert: "RivuletDeviceDown", fires: map[string]string{`up{job="rivulet-pi",instance="pi"}`: "0x300"}, quiet: map[string]string{`up{job="rivulet-pi",instance="pi"}`: "1x300", `up{job="node",instance="pi"}`: "0x300"}},
	{alert: "RivuletNotReady", fires: map[string]string{`rivulet_ready{instance="pi"}`: "0x300"}, quiet: map[string]string{`rivulet_ready{instance="pi"}`: "0x5 1x300"}},
	{alert: "RivuletProblem", fires: map[string]string{`rivulet_health_problems{instance="pi",code="tun",severity="error"}`: "1x300"}, quiet: map[string]string{`rivulet_health_problems{instance="pi",code="x",severity="warning"}`: "1x300"}},
	{alert: "RivuletPeerDisconnected", fires: map[string]string{`rivulet_peer_connected{instance="pi",id="a"}`: "0x300", `rivulet_peer_info{instance="pi",id="a",name="lab"}`: "1x300"},
		quiet: map[string]string{`rivulet_peer_connected{instance="pi",id="a"}`: "1x300", `rivulet_peer_info{instance="pi",id="a",name="lab"}`: "1x300"}},
	{alert: "RivuletVirtualNodeNotReady", fires: map[string]string{`rivulet_virtual_node_ready{instance="pi",node="b"}`: "0x300", `rivulet_node_pods{instance="pi",node="b"}`: "2x300"},
		quiet: map[string]string{`rivulet_virtual_node_ready{instance="pi",node="b"}`: "0x300", `rivulet_node_pods{instance="pi",node="b"}`: "0x300"}},
	{alert: "RivuletTunnelDown", fires: map[string]string{`rivulet_tunnel_up{instance="pi"}`: "0x300"}, quiet: map[string]string{`rivulet_tunnel_up{instance="pi"}`: "1x300"}},
	{alert: "RivuletNodePressure", fires: map[string]string{`rivulet_node_pressure{instance="pi",node="pi",condition="DiskPressure"}`: "1x300"}, quiet: map[string]string{`rivulet_node_pressure{instance="pi",node="pi",condition="DiskPressure"}`: "0x300"}},
	{alert: "RivuletClockImplausible", fires: map[string]string{`rivulet_clock_plausible{instance="pi"}`: "0x300"}, quiet: map[string]string{`rivulet_clock_plausible{instance="pi"}`: "1x300"}},
	{alert: "RivuletConfigurationBroken", fires: map[string]string{`rivulet_config_last_reload_successful{instance="pi"}`: "0x300"}, quiet: map[string]string{`rivulet_config_last_reload_successful{instance="pi"}`: "1x300"}},
	{alert: "RivuletWritesHigh", fires: map[string]string{`rivulet_disk_written_bytes{instance="pi",by="rivulet"}`: "3e8x300", `rivulet_disk_written_window_seconds{instance="pi",by="rivulet"}`: "86400x300"},
		quiet: map[string]string{`rivulet_disk_written_bytes{instance="pi",by="rivulet"}`: "1e8x300", `rivulet_disk_written_window_seconds{instance="pi",by="rivulet"}`: "3600x300"}},
	{alert: "RivuletVirtualClusterFailed", fires: map[string]string{`rivulet_vclusters{instance="pi",state="Failed"}`: "1x300"}, quiet: map[string]string{`rivulet_vclusters{instance="pi",state="Failed"}`: "0x300", `rivulet_vclusters{instance="pi",state="Awake"}`: "3x300"}},
	{alert: "RivuletVirtualClusterDatastoreFull", fires: map[string]string{`rivulet_vcluster_datastore_bytes{instance="pi",vcluster="ann"}`: "90x300", `rivulet_vcluster_datastore_limit_bytes{instance="pi",vcluster="ann"}`: "100x300"},
		quiet: map[string]string{`rivulet_vcluster_datastore_bytes{instance="pi",vcluster="ann"}`: "70x300", `rivulet_vcluster_datastore_limit_bytes{instance="pi",vcluster="ann"}`: "100x300"}},
}

// Each alert fires when it should and not otherwise, by promtool; its runbook is a section of docs/reference/alerts.md;
// its metrics are exported.
func TestAlerts(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join(monitoring, "alerts.yml"))
	if err != nil {
		t.Fatal(err)
	}
	type rule struct {
		Alert, Expr, For    string
		Labels, Annotations map[string]string
	}
	var file struct{ Groups []struct{ Rules []rule } }
	if err := yaml.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(tree.Path("docs", "reference", "alerts.md"))
	if err != nil {
		t.Fatal(err)
	}
	exported := map[string]bool{}
	for _, f := range source(full()).families(then) {
		exported[f.GetName()] = true
	}
	rules := map[string]rule{}
	for _, r := range file.Groups[0].Rules {
		rules[r.Alert] = r
		if !slices.ContainsFunc(units, func(u alertCase) bool { return u.alert == r.Alert }) {
			t.Errorf("%s has no unit test", r.Alert)
		}
		if r.Annotations["runbook"] != "docs/reference/alerts.md#"+strings.ToLower(r.Alert) || !strings.Contains(string(page), "\n## "+r.Alert+"\n") {
			t.Errorf("%s: the runbook %s leads nowhere", r.Alert, r.Annotations["runbook"])
		}
		for _, name := range regexp.MustCompile(`rivulet_\w+`).FindAllString(r.Expr, -1) {
			if !exported[name] {
				t.Errorf("%s: there is no metric %s", r.Alert, name)
			}
		}
	}
	type m = map[string]any
	var tests []m
	for _, u := range units {
		r, ok := rules[u.alert]
		if !ok {
			t.Errorf("there is no alert %s", u.alert)
			continue
		}
		labels := map[string]string{"instance": "pi", "severity": r.Labels["severity"]}
		for s := range u.fires { // those of the series that the expression keeps
			for _, p := range regexp.MustCompile(`(\w+)="([^"]*)"`).FindAllStringSubmatch(s, -1) {
				if _, ok := labels[p[1]]; !ok && p[1] != "severity" {
					labels[p[1]] = p[2]
				}
			}
		}
		notes := map[string]string{}
		for k, v := range r.Annotations {
			notes[k] = regexp.MustCompile(`\{\{ \$labels\.(\w+) \}\}`).ReplaceAllStringFunc(v, func(ref string) string {
				return labels[regexp.MustCompile(`\.(\w+)`).FindStringSubmatch(ref)[1]]
			})
		}
		for _, c := range []struct {
			series map[string]string
			want   []m
		}{{u.fires, []m{{"exp_labels": labels, "exp_annotations": notes}}}, {u.quiet, nil}} {
			var input []m
			for s, values := range c.series {
				input = append(input, m{"series": s, "values": values})
			}
			tests = append(tests, m{"interval": "1m", "input_series": input, "alert_rule_test": []m{
				{"alertname": u.alert, "eval_time": "1m", "exp_alerts": []m{}}, // not yet
				{"alertname": u.alert, "eval_time": "4h", "exp_alerts": c.want},
			}})
		}
	}
	text, err := yaml.Marshal(m{"rule_files": []string{"alerts.yml"}, "evaluation_interval": "1m", "tests": tests})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, content := range map[string][]byte{"alerts.yml": raw, "test.yml": text} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	promserver.Promtool(t, dir, "", "check", "rules", "alerts.yml")
	promserver.Promtool(t, dir, "", "test", "rules", "test.yml")
}
