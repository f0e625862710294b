// Package history keeps the last 24 hours of some figures of the device, for the graphs of its console: use and requests
// at home, what is lent and borrowed, pods by place, problems, virtual clusters, throughput and round trip of each peer.
// Prometheus has more, for longer (docs/design/monitoring.md).
//
// Each minute it reads the status, the virtual clusters and /proc. It alone writes <state>/history: every 15 minutes,
// and when it ends, one chunk is appended and synced. Size and writes are at most 4 MiB, and that a day, with 200
// peers too. Restart: the files are read at a query. A power cut loses 15 minutes at most; a torn end of a file is
// ignored. While the clock cannot be right nothing is recorded. Failure: what cannot be written stays in memory, and
// is written with the next chunk.
package history

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"rivulet/appliance/api"
	"rivulet/appliance/machine/host"
	"rivulet/fabric/cure"
)

// Step is the time between two samples.
const Step = time.Minute

// Config is the input of New. All of it is required.
type Config struct {
	Dir        string
	Supervisor api.Supervisor
	VClusters  api.VClusters
	Clock      api.PlausibleClock
	Log        *slog.Logger
}

// Recorder records samples and answers queries.
type Recorder struct {
	cfg     Config
	machine interface{ read() Machine } // proc; tests have their own

	mu     sync.Mutex
	files  *files
	closed []*chunk // complete ones that are not written yet, oldest first
	open   *chunk
	before *input
	warned bool
}

// New returns a Recorder of a folder; a Run records.
func New(cfg Config) *Recorder { return &Recorder{cfg: cfg, machine: proc{}} }

// Run takes a sample each minute until ctx ends, and writes then.
func (r *Recorder) Run(ctx context.Context) error {
	tick := time.NewTicker(Step)
	defer tick.Stop()
	for {
		r.Sample()
		select {
		case <-ctx.Done():
			r.mu.Lock()
			r.close()
			r.flush()
			r.mu.Unlock()
			return nil
		case <-tick.C:
		}
	}
}

// Sample takes one sample. A minute that has one is left alone.
func (r *Recorder) Sample() {
	now, sure := r.cfg.Clock.Plausible()
	if !sure {
		r.mu.Lock()
		r.before = nil
		r.mu.Unlock()
		return
	}
	in := input{at: now, status: r.cfg.Supervisor.Status(), vclusters: r.cfg.VClusters.Usages(), machine: r.machine.read()}
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.before
	if before != nil && (now.Sub(before.at) > 5*Step || !now.After(before.at)) {
		before = nil // the clock has jumped, or the device slept
	}
	r.record(now.Unix()/60, sample(in, before))
	r.before = &in
}

// record adds a sample to the open chunk, or to a new one where the minutes are not in a row.
func (r *Recorder) record(minute int64, values []value) {
	if r.open != nil {
		next := r.open.minute + int64(len(r.open.rows))
		if minute == next-1 {
			return
		}
		if minute != next {
			r.close()
		}
	}
	if r.open == nil {
		r.open = &chunk{minute: minute}
	}
	r.open.add(values)
	if len(r.open.rows) == maxMinutes {
		r.close()
		r.flush()
	}
}

// close: mu is held.
func (r *Recorder) close() {
	if r.open != nil {
		r.closed = append(r.closed, r.open)
		r.open = nil
	}
	if most := 2 * kept / maxMinutes; len(r.closed) > most {
		r.closed = slices.Delete(r.closed, 0, len(r.closed)-most)
	}
}

// flush writes what is closed. mu is held.
func (r *Recorder) flush() {
	err := r.write()
	if errors.Is(err, errFull) {
		err = nil
	}
	if err != nil && !r.warned {
		r.cfg.Log.Warn("the history of the last day is in memory only", "err", err)
	}
	r.warned = err != nil
}

func (r *Recorder) write() error {
	if err := r.load(); err != nil {
		return err
	}
	if n := len(r.closed); n > 0 {
		last := r.closed[n-1]
		now := last.minute + int64(len(last.rows)) - 1
		if err := r.files.expire(now); err != nil {
			return err
		}
		r.closed = slices.DeleteFunc(r.closed, func(c *chunk) bool { return now-c.minute >= kept || c.minute-now >= kept })
	}
	for len(r.closed) > 0 {
		if err := r.files.append(r.closed[0]); err != nil {
			return err
		}
		r.closed = r.closed[1:]
	}
	return nil
}

// load lists the files, once. mu is held.
func (r *Recorder) load() (err error) {
	if r.files == nil {
		r.files, err = open(r.cfg.Dir)
	}
	return err
}

// Point is the value of a minute; null where there is none.
type Point float64

// MarshalJSON writes three digits.
func (p Point) MarshalJSON() ([]byte, error) {
	if math.IsNaN(float64(p)) {
		return []byte("null"), nil
	}
	return strconv.AppendFloat(nil, float64(p), 'g', -1, 64), nil
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (p *Point) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		*p = Point(math.NaN())
		return nil
	}
	return json.Unmarshal(b, (*float64)(p))
}

// Series is one series.
type Series struct {
	Name   string            `json:"name"`
	Labels map[string]string `json:"labels,omitempty"`
	// Points are the values from Answer.Start on, one each Answer.Step.
	Points []Point `json:"points"`
}

// Answer is the answer of GET /v1/history.
type Answer struct {
	// Start is the time of the first point, since 1970; Step is between two; seconds.
	Start  int64    `json:"start"`
	Step   int64    `json:"step"`
	Series []Series `json:"series"`
}

// Query returns the series of the names, or NAME{LABEL=VALUE, of all without names, since a time, at most a day ago; those without a value
// since then are left out.
func (r *Recorder) Query(names []string, since time.Time) (Answer, error) {
	now, _ := r.cfg.Clock.Plausible()
	last := now.Unix() / 60
	first := max((since.Unix()+59)/60, last-kept+1)
	out := Answer{Start: first * 60, Step: int64(Step / time.Second), Series: []Series{}}
	if first > last {
		return out, nil
	}
	all := map[string][]Point{}
	r.mu.Lock()
	err := r.visit(func(c chunk) {
		for i, n := range c.names {
			name, _, _ := strings.Cut(n, "{")
			if len(names) > 0 && !slices.Contains(names, name) && !slices.Contains(names, n) {
				continue
			}
			for m, row := range c.rows {
				at := c.minute + int64(m) - first
				if at < 0 || at > last-first || row[i] == absent {
					continue
				}
				if all[n] == nil {
					all[n] = slices.Repeat([]Point{Point(math.NaN())}, int(last-first+1))
				}
				all[n][at] = Point(decodeValue(row[i]))
			}
		}
	})
	r.mu.Unlock()
	if err != nil {
		return out, err
	}
	for n, points := range all {
		s := Series{Points: points}
		name, label, labelled := strings.Cut(n, "{")
		if s.Name = name; labelled {
			k, v, _ := strings.Cut(label, "=")
			s.Labels = map[string]string{k: v}
		}
		out.Series = append(out.Series, s)
	}
	slices.SortFunc(out.Series, func(a, b Series) int {
		return strings.Compare(fmt.Sprint(a.Name, a.Labels), fmt.Sprint(b.Name, b.Labels))
	})
	return out, nil
}

// visit calls f for all chunks, those written first first. mu is held.
func (r *Recorder) visit(f func(chunk)) error {
	if err := r.load(); err != nil {
		return err
	}
	for _, one := range r.files.all {
		if err := r.files.read(one, func(c chunk, _ int) { f(c) }); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	for _, c := range r.closed {
		f(*c)
	}
	if r.open != nil {
		f(*r.open)
	}
	return nil
}

// Routes registers GET /v1/history?series=NAME,NAME{LABEL=VALUE},…&since=6h.
func (r *Recorder) Routes(mux *http.ServeMux) {
	mux.Handle("GET /v1/history", api.JSON(func(q *http.Request) (any, error) {
		since := kept * time.Minute
		if text := q.URL.Query().Get("since"); text != "" {
			d, err := time.ParseDuration(text)
			if err != nil || d <= 0 {
				return nil, cure.Errorf("since=%.40q is no time; write since=6h, at most 24h", text)
			}
			since = min(d, since)
		}
		var names []string
		for _, list := range q.URL.Query()["series"] {
			for name := range strings.SplitSeq(list, ",") {
				names = append(names, strings.TrimSuffix(name, "}"))
			}
		}
		now, _ := r.cfg.Clock.Plausible()
		return r.Query(names, now.Add(-since))
	}))
}

// proc is /proc of this machine.
type proc struct{}

// read returns zero for what cannot be read.
func (proc) read() (m Machine) {
	if raw, err := os.ReadFile("/proc/meminfo"); err == nil {
		kB := host.Fields(string(raw))
		m.Memory = (kB["MemTotal"] - min(kB["MemAvailable"], kB["MemTotal"])) << 10
	}
	raw, err := os.ReadFile("/proc/stat")
	if err != nil {
		return m
	}
	line, _, _ := strings.Cut(string(raw), "\n")
	for i, f := range strings.Fields(line) {
		switch i {
		case 1, 2, 3, 6, 7, 8: // user, nice, system, irq, softirq, steal; guest is in user
			n, _ := strconv.ParseInt(f, 10, 64)
			m.CPU += time.Duration(n) * (time.Second / 100)
		}
	}
	return m
}
