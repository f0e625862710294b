// Package prometheus exports the status in the text format of Prometheus or as OpenMetrics. It reads the status and the
// list of virtual clusters and nothing else, so that status and metrics always agree; it writes and stores nothing.
//
// What other clusters choose (names, versions) is a label of `_info` metrics only, short, and of one value for an hour:
// whatever a peer sends, its series are bounded. Everything else has the cluster's ID. Addresses are no labels.
package prometheus

import (
	"bytes"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	corev1 "k8s.io/api/core/v1"

	"rivulet/appliance/api"
)

// Source is what is exported. Supervisor and VClusters must be set.
type Source struct {
	Supervisor api.Supervisor
	VClusters  api.VClusters
	names      names

	mu    sync.Mutex
	made  time.Time
	pages map[expfmt.Format][]byte // of made
}

// life is how long a page is served to all clients of the network before it is rendered again. On the supervisor's
// socket each answer is new.
const life = time.Second

// Handler answers with all current metrics, in the format that the client accepts.
func Handler(s api.Supervisor, v api.VClusters) http.Handler {
	return &Source{Supervisor: s, VClusters: v}
}

func (s *Source) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	format := accepted(r.Header)
	page, err := s.page(format, r.TLS != nil)
	if err != nil {
		http.Error(w, "the metrics cannot be made: "+err.Error()+"; see: rivulet status", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", string(format))
	w.Header().Set("Content-Length", strconv.Itoa(len(page)))
	w.Write(page) //nolint:errcheck // the client has gone
}

// page is rendered anew, or if it is shared once in its life, in each format.
func (s *Source) page(format expfmt.Format, shared bool) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if age := time.Since(s.made); !shared || age >= life || age < 0 {
		s.pages = map[expfmt.Format][]byte{}
	}
	if page := s.pages[format]; page != nil {
		return page, nil
	}
	var b bytes.Buffer
	if err := s.Write(&b, format, time.Now()); err != nil {
		return nil, err
	}
	if len(s.pages) == 0 {
		s.made = time.Now()
	}
	s.pages[format] = b.Bytes()
	return b.Bytes(), nil
}

// accepted is the format that a client accepts: OpenMetrics, or the text format of Prometheus.
func accepted(by http.Header) expfmt.Format {
	format := expfmt.NegotiateIncludingOpenMetrics(by)
	if t := format.FormatType(); t != expfmt.TypeOpenMetrics && t != expfmt.TypeTextPlain {
		return expfmt.NewFormat(expfmt.TypeTextPlain)
	}
	plain, _, _ := strings.Cut(string(format), "; escaping=") // all names are those of every scheme
	return expfmt.Format(plain)
}

// Write writes all metrics.
func (s *Source) Write(w io.Writer, format expfmt.Format, now time.Time) error {
	enc := expfmt.NewEncoder(w, format)
	for _, f := range s.families(now) {
		if len(f.Metric) == 0 {
			continue
		}
		if err := enc.Encode(f); err != nil {
			return err
		}
	}
	if c, ok := enc.(expfmt.Closer); ok {
		return c.Close()
	}
	return nil
}

func (s *Source) families(now time.Time) []*dto.MetricFamily {
	st := s.Supervisor.Status()
	c := &collection{names: &s.names, now: now}
	c.device(st)
	c.machine(st)
	c.nodes(st)
	c.peers(st)
	c.services(st)
	c.tunnel(st)
	c.lending(st)
	c.vclusters(s.VClusters.Usages())
	s.names.sweep(now)
	return c.out
}

// collection are metrics under construction.
type collection struct {
	names *names
	now   time.Time
	out   []*dto.MetricFamily
}

// family is one metric.
type family struct{ f *dto.MetricFamily }

func (c *collection) gauge(name, help string) family {
	return c.family(name, help, dto.MetricType_GAUGE)
}

func (c *collection) counter(name, help string) family {
	return c.family(name, help, dto.MetricType_COUNTER)
}

func (c *collection) family(name, help string, kind dto.MetricType) family {
	f := family{&dto.MetricFamily{Name: &name, Help: &help, Type: &kind}}
	c.out = append(c.out, f.f)
	return f
}

// add adds a value; labels are names and values in turn.
func (m family) add(value float64, labels ...string) family {
	metric := &dto.Metric{}
	for i := 0; i < len(labels); i += 2 {
		text := clean(labels[i+1])
		metric.Label = append(metric.Label, &dto.LabelPair{Name: &labels[i], Value: &text})
	}
	if m.f.GetType() == dto.MetricType_COUNTER {
		metric.Counter = &dto.Counter{Value: &value}
	} else {
		metric.Gauge = &dto.Gauge{Value: &value}
	}
	m.f.Metric = append(m.f.Metric, metric)
	return m
}

// when adds a time, unless it is zero.
func (m family) when(t time.Time, labels ...string) {
	if !t.IsZero() {
		m.add(float64(t.UnixMilli())/1000, labels...)
	}
}

// resources adds amounts in base units: cores, bytes, pieces.
func (m family) resources(list corev1.ResourceList, only []corev1.ResourceName, labels ...string) {
	for _, name := range only {
		q, ok := list[name]
		if !ok {
			continue
		}
		m.add(q.AsApproximateFloat64(), append(labels[:len(labels):len(labels)], "resource", string(name), "unit", unit(name))...)
	}
}

// unit is that of kube-state-metrics for the resource.
func unit(name corev1.ResourceName) string {
	switch {
	case name == corev1.ResourceCPU:
		return "core"
	case name == corev1.ResourceMemory, name == corev1.ResourceEphemeralStorage, name == corev1.ResourceStorage, strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix):
		return "byte"
	}
	return "integer"
}

// states adds 1 for the state that holds and 0 for the others.
func (m family) states(now string, all []string, label string) {
	for _, s := range all {
		m.add(truth(s == now), label, s)
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
