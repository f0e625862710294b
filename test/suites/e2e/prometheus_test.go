package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/await"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/mainjob"
)

// prometheusConfig scrapes kubelets as kube-prometheus-stack does: at the addresses of nodes, port
// 10250, with the token of an account.
const prometheusConfig = `global: {scrape_interval: 5s, scrape_timeout: 4s}
scrape_configs:
%s`

const prometheusJob = `- job_name: kubelet%[1]s
  scheme: https
  metrics_path: %[1]s
  tls_config: {insecure_skip_verify: true}
  authorization: {credentials_file: %[2]s/token}
  static_configs: [%[3]s]
`

const prometheusAccount = `{"apiVersion":"v1","kind":"List","items":[
{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"counted","labels":{"rivulet.dev/offload":"any"}}},
{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"prometheus","namespace":"counted"}},
{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"name":"counted"},"rules":[{"apiGroups":[""],"resources":["nodes/metrics"],"verbs":["get"]}]},
{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding","metadata":{"name":"counted"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"counted"},
"subjects":[{"kind":"ServiceAccount","name":"prometheus","namespace":"counted"}]}]}`

// A Prometheus that scrapes the kubelets of all nodes by their addresses has every target up, and
// each container once, at the node that its pod is bound to.
func TestPrometheusCountsOnce(t *testing.T) {
	const program = "/usr/bin/prometheus"
	if _, err := os.Stat(program); err != nil {
		t.Skip("needs a prometheus: test/deps prometheus")
	}
	ctx := need(t, 5*time.Minute)
	a := devices["a"]
	apply := func(text string) {
		t.Helper()
		labtest.Output(t, ctx, a, "sh", "-c", `printf %s "$1" | rivulet kubectl apply -f -`, "apply", text)
	}
	labtest.CleanUp(t, func(ctx context.Context) {
		_, _ = a.Kubectl(ctx, "delete", "namespace/counted", "clusterrole/counted", "clusterrolebinding/counted", "--ignore-not-found")
	})
	apply(prometheusAccount)
	for _, node := range []string{"a", "b"} {
		apply(fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"at-%[1]s","namespace":"counted"},"spec":{"terminationGracePeriodSeconds":1,"nodeSelector":{"kubernetes.io/hostname":%[1]q},
"containers":[{"name":"web","image":%[2]q,"resources":{"requests":{"cpu":"10m","memory":"8Mi"}}}]}}`, node, mainjob.Image))
	}
	nodes := strings.Fields(labtest.Kubectl(t, ctx, a, "get", "nodes", "-o", `jsonpath={range .items[*]}{.metadata.name}={.status.addresses[?(@.type=="InternalIP")].address}:{.status.daemonEndpoints.kubeletEndpoint.Port} {end}`))
	seen, targets := map[string]bool{}, []string{}
	for _, node := range nodes {
		name, at, _ := strings.Cut(node, "=")
		if seen[at] || !strings.HasSuffix(at, ":10250") {
			t.Errorf("nodes are at %v", nodes)
		}
		seen[at], targets = true, append(targets, fmt.Sprintf("{targets: [%q], labels: {node: %q}}", at, name))
	}

	const folder = "/var/tmp/prometheus"
	paths, jobs := []string{"/metrics", "/metrics/cadvisor", "/metrics/probes", "/metrics/resource"}, ""
	for _, path := range paths {
		jobs += fmt.Sprintf(prometheusJob, path, folder, strings.Join(targets, ", "))
	}
	labtest.Output(t, ctx, a, "mkdir", "-p", folder)
	for name, text := range map[string]string{"prometheus.yml": fmt.Sprintf(prometheusConfig, jobs), "token": labtest.Kubectl(t, ctx, a, "-n", "counted", "create", "token", "prometheus")} {
		if err := os.WriteFile(a.Path(folder+"/"+name), []byte(strings.TrimSpace(text)+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	cmd, err := a.Command(running, program, "--config.file="+folder+"/prometheus.yml", "--storage.tsdb.path="+folder+"/data", "--web.listen-address=127.0.0.1:9090")
	if err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(said.String())
		}
	}()
	query := func(q string) (map[string]string, error) {
		resp, err := a.HTTP().Get("http://127.0.0.1:9090/api/v1/query?query=" + url.QueryEscape(q))
		if err != nil {
			return nil, err
		}
		defer resp.Body.Close()
		var got struct {
			Data struct {
				Result []struct {
					Metric map[string]string `json:"metric"`
					Value  [2]any            `json:"value"`
				} `json:"result"`
			} `json:"data"`
		}
		if err := json.NewDecoder(resp.Body).Decode(&got); err != nil {
			return nil, err
		}
		out := map[string]string{}
		for _, r := range got.Data.Result {
			out[r.Metric["node"]+" "+r.Metric["pod"]+r.Metric["job"]] = fmt.Sprint(r.Value[1])
		}
		return out, nil
	}
	await.NoError(t, ctx, 0, "all targets are up", func() error {
		up, err := query("up")
		if err == nil && len(up) != 3*len(paths) {
			err = fmt.Errorf("%v", up)
		}
		for target, value := range up {
			if value != "1" {
				err = fmt.Errorf("%s is down: %v", target, up)
			}
		}
		return err
	})
	await.NoError(t, ctx, 0, "each container is counted once, where it runs", func() error {
		for _, metric := range []string{"container_memory_working_set_bytes", "container_cpu_usage_seconds_total"} {
			got, err := query(`count by (node, pod) (` + metric + `{job="kubelet/metrics/cadvisor",namespace="counted",container="web",image!=""})`)
			if err == nil && (len(got) != 2 || got["a at-a"] != "1" || got["b at-b"] != "1") {
				err = fmt.Errorf("%s: %v", metric, got)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	names, err := query(`kubelet_node_name`)
	if err != nil || len(names) != 3 {
		t.Errorf("kubelets are %v %v", names, err)
	}
	if out := labtest.Kubectl(t, ctx, a, "-n", "counted", "exec", "at-b", "--", "/bin/busybox", "echo", "here"); !strings.Contains(out, "here") {
		t.Errorf("exec: %q", out)
	}
}
