package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"sigs.k8s.io/yaml"

	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
)

const (
	prometheusAt = "127.0.0.1:9090" // on a
	scrapeFolder = "/root/scrape"   // its own
	dataLimit    = 2 * time.Minute  // of which some are scrapes that lie 30 s apart
)

// shopJob is the shop's pods, those that are away as well, of a file that targets writes: Debian's Prometheus is built without the
// discovery of Kubernetes.
var shopJob = map[string]any{"job_name": "shop", "scrape_interval": "5s", "file_sd_configs": []any{map[string]any{"files": []string{"shop.json"}}}}

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
	config := scrapeConfig{[]any{shopJob}}
	for _, d := range []*lab.Device{p.home, p.peer} {
		out, err := d.Run(ctx, "sh", "-c", "mkdir -p "+scrapeFolder+" && rivulet metrics grant prometheus-"+d.Name+" --dir "+scrapeFolder)
		if err != nil {
			return err
		}
		if err := p.collect(d); err != nil {
			return err
		}
		var granted scrapeConfig
		if err := yaml.Unmarshal([]byte(out), &granted); err != nil {
			return fmt.Errorf("demo: rivulet metrics grant: %w", err)
		}
		config.Jobs = append(config.Jobs, granted.Jobs...)
	}
	text, err := yaml.Marshal(config)
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	if err := os.WriteFile(p.home.Path(scrapeFolder+"/prometheus.yml"), text, 0o600); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	if err := p.targets(ctx); err != nil {
		return err
	}
	_, err = p.home.Run(ctx, "sh", "-c", "cd "+scrapeFolder+" && setsid prometheus --config.file=prometheus.yml --storage.tsdb.path=prometheus --web.listen-address="+prometheusAt+" </dev/null >prometheus.log 2>&1 &")
	if err != nil {
		return err
	}
	p.tell("a Prometheus on a scrapes a, b and the shop's pods, those that are away as well")
	return nil
}

// collect copies the files of a device's access to a.
func (p *pilot) collect(d *lab.Device) error {
	files, err := os.ReadDir(d.Path(scrapeFolder))
	for _, f := range files {
		var content []byte
		if content, err = os.ReadFile(d.Path(scrapeFolder + "/" + f.Name())); err == nil {
			err = os.WriteFile(p.home.Path(scrapeFolder+"/"+f.Name()), content, 0o600)
		}
		if err != nil {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("demo: the files of %s's access: %w", d.Name, err)
	}
	return nil
}

type scrapeConfig struct {
	Jobs []any `json:"scrape_configs"`
}

// targets tells Prometheus where the shop's pods are, by home's API server. Home reaches each by its address there.
func (p *pilot) targets(ctx context.Context) error {
	pods, err := p.pods(ctx)
	if err != nil {
		return err
	}
	type target struct {
		Targets []string          `json:"targets"`
		Labels  map[string]string `json:"labels"`
	}
	all := []target{}
	for _, pod := range pods {
		if pod.Labels["shop"] == "service" && pod.Status.PodIP != "" {
			all = append(all, target{[]string{net.JoinHostPort(pod.Status.PodIP, "9100")}, map[string]string{"service": pod.Labels["app"], "node": pod.Spec.NodeName}})
		}
	}
	text, err := json.Marshal(all)
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	next := p.home.Path(scrapeFolder + "/shop.next")
	if err := errors.Join(os.WriteFile(next, text, 0o600), os.Rename(next, p.home.Path(scrapeFolder+"/shop.json"))); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	return nil
}

// figures prints what Prometheus has, and fails where it has nothing.
func (p *pilot) figures(ctx context.Context) error {
	if !monitored() {
		return nil
	}
	if err := p.targets(ctx); err != nil {
		return err
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nPROMETHEUS\tSERIES")
	for _, q := range monitorQueries {
		series, err := p.data(ctx, q.query, q.label)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "%s\t%s\n", q.query, strings.Join(series, ", "))
	}
	return errors.Join(w.Flush(), p.allScraped(ctx))
}

// data waits until a query has an answer.
func (p *pilot) data(ctx context.Context, query, label string) (series []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, dataLimit)
	defer cancel()
	err = await.Until(ctx, func() (err error) {
		if series, err = p.query(ctx, query, label); err == nil && len(series) == 0 {
			err = fmt.Errorf("demo: Prometheus has nothing for %s", query)
		}
		return err
	})
	return series, err
}

// allScraped wants each pod of the shop's services to be scraped, wherever it runs, and each Rivulet.
func (p *pilot) allScraped(ctx context.Context) error {
	const want = shopPods - shopStores + 2 // but for the stores, and a and b
	ctx, cancel := context.WithTimeout(ctx, dataLimit)
	defer cancel()
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
		if math.IsNaN(value) {
			continue // nothing happened
		}
		series = append(series, fmt.Sprintf("%s %.3g", r.Metric[label], value))
	}
	slices.Sort(series)
	return series, nil
}
