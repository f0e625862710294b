package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"text/tabwriter"

	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
)

const prometheusAt = "127.0.0.1:9090" // on a

// shopJob finds the shop's pods by home's API server, those that are away as well: home reaches each by its address.
const shopJob = `- job_name: shop
  scrape_interval: 5s
  kubernetes_sd_configs: [{role: pod, kubeconfig_file: /var/lib/rivulet/kubeconfig, namespaces: {names: [shop]}}]
  relabel_configs:
  - {source_labels: [__meta_kubernetes_pod_container_port_name], regex: health, action: keep}
  - {source_labels: [__meta_kubernetes_pod_label_app], target_label: service}
  - {source_labels: [__meta_kubernetes_pod_node_name], target_label: node}
`

// monitorQueries are what is printed of it: of the dashboards in docs/monitoring, and of the shop.
var monitorQueries = []struct{ query, label string }{
	{"rivulet_virtual_node_ready", "node"},
	{"rivulet_peer_rtt_seconds * 1000", "device"},
	{`rivulet_node_pods{device="a"}`, "node"},
	{`rivulet_consumer_pods`, "device"},
	{`sum by (node) (rate(shop_request_seconds_count[1m]))`, "node"},
	{`histogram_quantile(0.95, sum by (service, le) (rate(shop_request_seconds_bucket[1m]))) * 1000`, "service"},
}

// monitored reports whether this machine has a Prometheus.
func monitored() bool {
	_, err := exec.LookPath("prometheus")
	return err == nil
}

// monitor starts a Prometheus on a, which scrapes a, b and the shop, and ends with the lab.
func (p *pilot) monitor(ctx context.Context) error {
	if !monitored() {
		p.tell("there is no Prometheus here: test/deps prometheus")
		return nil
	}
	config := "scrape_configs:\n" + shopJob
	for _, d := range []*lab.Device{p.home, p.peer} {
		job, err := d.Run(ctx, "rivulet", "metrics", "grant", "prometheus")
		if err != nil {
			return err
		}
		config += strings.TrimPrefix(job, "scrape_configs:\n")
	}
	if err := os.WriteFile(p.home.Path("/root/prometheus.yml"), []byte(config), 0o600); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	_, err := p.home.Run(ctx, "sh", "-c", "cd /root && setsid prometheus --config.file=prometheus.yml --storage.tsdb.path=prometheus --web.listen-address="+prometheusAt+" </dev/null >prometheus.log 2>&1 &")
	if err != nil {
		return err
	}
	p.tell("a Prometheus on a scrapes a, b and the shop's pods, those that are away as well")
	return nil
}

// figures prints what Prometheus has, and fails where it has nothing.
func (p *pilot) figures(ctx context.Context) error {
	if !monitored() {
		return nil
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nPROMETHEUS\tSERIES")
	for _, q := range monitorQueries {
		var series []string
		err := await.Until(ctx, func() (err error) {
			if series, err = p.query(ctx, q.query, q.label); err == nil && len(series) == 0 {
				err = fmt.Errorf("demo: Prometheus has nothing for %s", q.query)
			}
			return err
		})
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "%s\t%s\n", q.query, strings.Join(series, ", "))
	}
	return errors.Join(w.Flush(), p.allScraped(ctx))
}

// allScraped wants each pod of the shop's services to be scraped, wherever it runs, and each Rivulet.
func (p *pilot) allScraped(ctx context.Context) error {
	const want = shopPods - shopStores + 2 // but for the stores, and a and b
	return await.Until(ctx, func() error {
		up, err := p.query(ctx, "up == 1", "instance")
		if err == nil && len(up) != want {
			err = fmt.Errorf("demo: Prometheus reaches %d targets, want %d: %v", len(up), want, up)
		}
		return err
	})
}

// query returns the series of an answer, each as a label and a value, sorted.
func (p *pilot) query(ctx context.Context, query, label string) ([]string, error) {
	out, err := p.home.Run(ctx, "curl", "-sS", "--data-urlencode", "query="+query, "http://"+prometheusAt+"/api/v1/query")
	if err != nil {
		return nil, err
	}
	var got struct {
		Error string
		Data  struct {
			Result []struct {
				Metric map[string]string
				Value  [2]any
			}
		}
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil || got.Error != "" {
		return nil, errors.Join(fmt.Errorf("demo: Prometheus: %s", got.Error), err)
	}
	var series []string
	for _, r := range got.Data.Result {
		var value float64
		if text, ok := r.Value[1].(string); !ok {
			continue
		} else if _, err := fmt.Sscan(text, &value); err != nil {
			return nil, fmt.Errorf("demo: Prometheus: %q: %w", text, err)
		}
		series = append(series, fmt.Sprintf("%s %.3g", r.Metric[label], value))
	}
	slices.Sort(series)
	return series, nil
}
