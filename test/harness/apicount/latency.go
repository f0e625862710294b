package apicount

import (
	"context"
	"fmt"
	"math"
	"slices"

	dto "github.com/prometheus/client_model/go"
	"k8s.io/client-go/kubernetes"
)

// Call is one kind of request whose latency Kubernetes' SLO bounds.
type Call struct {
	Verb, Resource string // as "PUT" of "pods/status"
	// Scope is "resource" for a single object, else "namespace" or "cluster".
	Scope string
}

// Limit is the SLO's bound for the 99th percentile, seconds.
func (c Call) Limit() float64 {
	if c.Verb == "LIST" && c.Scope != "resource" {
		return 30
	}
	return 1
}

// Durations is a histogram: how many requests took at most so many seconds, by the bound.
type Durations map[float64]uint64

// Latencies are durations by kind of request.
type Latencies map[Call]Durations

// Latency asks the server how long it took for requests since it started. Watches, connections and deletions of
// collections are none that the SLO bounds.
func Latency(ctx context.Context, client kubernetes.Interface) (Latencies, error) {
	families, err := metrics(ctx, client)
	if err != nil {
		return nil, err
	}
	return latencies(families)
}

func latencies(families map[string]*dto.MetricFamily) (Latencies, error) {
	took := families["apiserver_request_duration_seconds"]
	if took == nil {
		return nil, fmt.Errorf("apicount: the API server does not say how long requests took")
	}
	out := Latencies{}
	for _, m := range took.GetMetric() {
		l := labels(m)
		switch l["verb"] {
		case "GET", "LIST", "POST", "PUT", "PATCH", "APPLY", "DELETE":
		default:
			continue
		}
		switch l["subresource"] {
		case "log", "exec", "attach", "portforward", "proxy":
			continue
		}
		if l["resource"] == "" {
			continue
		}
		call := Call{l["verb"], l["resource"], l["scope"]}
		if l["subresource"] != "" {
			call.Resource += "/" + l["subresource"]
		}
		if out[call] == nil {
			out[call] = Durations{}
		}
		for _, b := range m.GetHistogram().GetBucket() {
			out[call][b.GetUpperBound()] += b.GetCumulativeCount()
		}
	}
	return out, nil
}

// Since is what was added.
func (l Latencies) Since(before Latencies) Latencies {
	out := Latencies{}
	for call, d := range l {
		for bound, n := range d {
			if out[call] == nil {
				out[call] = Durations{}
			}
			out[call][bound] = n - before[call][bound]
		}
		if out[call].Count() == 0 {
			delete(out, call)
		}
	}
	return out
}

// Add sums up.
func (d Durations) Add(o Durations) {
	for bound, n := range o {
		d[bound] += n
	}
}

// Count is the number of requests.
func (d Durations) Count() uint64 { return d[math.Inf(1)] }

// Quantile is that of Prometheus' histogram_quantile: linear within a bucket, and the last bound for what took longer. It is
// NaN without requests.
func (d Durations) Quantile(q float64) float64 {
	bounds := make([]float64, 0, len(d))
	for b := range d {
		bounds = append(bounds, b)
	}
	slices.Sort(bounds)
	rank, low, below := q*float64(d.Count()), 0.0, uint64(0)
	for _, bound := range bounds {
		n := d[bound]
		switch {
		case n == 0 || float64(n) < rank:
		case math.IsInf(bound, 1):
			return low
		default:
			return low + (bound-low)*(rank-float64(below))/float64(n-below)
		}
		low, below = bound, n
	}
	return math.NaN()
}
