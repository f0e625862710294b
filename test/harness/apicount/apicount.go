// Package apicount counts what is asked of an API server, by what the server says of
// itself: so many requests of each kind since it started, and how long they took. Tests and benchmarks bound
// with it what Rivulet writes. It writes nothing, and asks for /metrics alone.
package apicount

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"k8s.io/client-go/kubernetes"
)

// Kind is one kind of request, as "PUT pods/status".
type Kind string

// Counts are requests by kind.
type Counts map[Kind]int

// Writes asks the server how many changes it was asked for since it started, whether
// it made them or refused. Dry runs, reviews and tokens are none: nothing is stored.
func Writes(ctx context.Context, client kubernetes.Interface) (Counts, error) {
	families, err := metrics(ctx, client)
	if err != nil {
		return nil, err
	}
	return counts(families)
}

// metrics is what the API server says of itself.
func metrics(ctx context.Context, client kubernetes.Interface) (map[string]*dto.MetricFamily, error) {
	raw, err := client.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("apicount: %w", err)
	}
	return parseFamilies(raw)
}

func parseFamilies(raw []byte) (map[string]*dto.MetricFamily, error) {
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(raw))
	if err != nil {
		return nil, fmt.Errorf("apicount: what the API server says of itself: %w", err)
	}
	return families, nil
}

func counts(families map[string]*dto.MetricFamily) (Counts, error) {
	total := families["apiserver_request_total"]
	if total == nil {
		return nil, fmt.Errorf("apicount: the API server does not say how much was asked of it")
	}
	out := Counts{}
	for _, m := range total.GetMetric() {
		l := labels(m)
		switch l["verb"] {
		case "POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION":
		default:
			continue
		}
		if l["dry_run"] != "" || strings.HasSuffix(l["resource"], "reviews") || l["subresource"] == "token" || l["resource"] == "" {
			continue
		}
		what := l["resource"]
		if l["subresource"] != "" {
			what += "/" + l["subresource"]
		}
		out[Kind(l["verb"]+" "+what)] += int(m.GetCounter().GetValue())
	}
	return out, nil
}

func labels(m *dto.Metric) map[string]string {
	out := map[string]string{}
	for _, l := range m.GetLabel() {
		out[l.GetName()] = l.GetValue()
	}
	return out
}

// Since is what was added.
func (c Counts) Since(before Counts) Counts {
	out := Counts{}
	for k, n := range c {
		if d := n - before[k]; d != 0 {
			out[k] = d
		}
	}
	return out
}

// Without leaves out resources, as "leases".
func (c Counts) Without(resources ...string) Counts {
	out := maps.Clone(c)
	maps.DeleteFunc(out, func(k Kind, _ int) bool {
		_, what, _ := strings.Cut(string(k), " ")
		resource, _, _ := strings.Cut(what, "/")
		return slices.Contains(resources, resource)
	})
	return out
}

// Sum is how many they are.
func (c Counts) Sum() (n int) {
	for _, m := range c {
		n += m
	}
	return n
}

// Each divides by the number of things that the requests were for, the largest first.
func (c Counts) Each(things int) string {
	kinds := slices.SortedFunc(maps.Keys(c), func(a, b Kind) int { return c[b]*1000 - c[a]*1000 + strings.Compare(string(a), string(b)) })
	var parts []string
	for _, k := range kinds {
		if each := float64(c[k]) / float64(things); each >= 0.01 {
			parts = append(parts, fmt.Sprintf("%s %.2f", k, each))
		}
	}
	return strings.Join(parts, ", ")
}
