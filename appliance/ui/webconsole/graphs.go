package webconsole

import (
	"context"
	"fmt"
	"html/template"
	"math"
	"net/url"
	"slices"
	"strings"
	"time"

	"rivulet/appliance/diagnose/history"
)

const (
	// graphsLife is how long a page's figures are used: one is added each minute.
	graphsLife = 50 * time.Second
	maxGraphs  = 16
	// graphWidth is the number of values of a line, in minutes each; a graph is a day long.
	graphWidth = 288
	// leastWidth is the least number of values that a graph shows: an hour.
	leastWidth = graphWidth / 24
)

// graphs are the figures of one page, as they were read.
type graphs struct {
	at     time.Time
	answer history.Answer
}

// graph is a line of the last 24 hours. The page says what it shows, since a line alone is of no use to many.
type graph struct {
	Title      string
	Path       template.HTMLAttr
	Last, Most string
	// Width is the number of values, From the age of the first one in words: a graph of a new device begins with it.
	Width int
	From  string
}

// figures reads series of the last 24 hours, a name or NAME{LABEL=VALUE} each.
func (c *Console) figures(ctx context.Context, names ...string) (history.Answer, error) {
	w, key := &c.views, strings.Join(names, ",")
	w.graphsMu.Lock()
	defer w.graphsMu.Unlock()
	if g, ok := w.graphs[key]; ok && time.Since(g.at) < graphsLife {
		return g.answer, nil
	}
	var a history.Answer
	if err := c.get(ctx, "/v1/history?since=24h&series="+url.QueryEscape(key), &a); err != nil {
		return a, err
	}
	if w.graphs == nil || len(w.graphs) >= maxGraphs {
		w.graphs = map[string]graphs{}
	}
	w.graphs[key] = graphs{time.Now(), a}
	return a, nil
}

// line draws one series; false if it has no value. format is for its values.
func line(a history.Answer, title, name, label string, format func(float64) string) (graph, bool) {
	for _, s := range a.Series {
		if s.Name != name || label != "" && s.Labels["id"] != label && s.Labels["where"] != label {
			continue
		}
		day := make([]float64, 24*60)
		for i := range day {
			day[i] = math.NaN()
		}
		for i, p := range s.Points { // the last is now
			if at := len(day) - len(s.Points) + i; at >= 0 {
				day[at] = float64(p)
			}
		}
		values, most, last := make([]float64, graphWidth), 0.0, math.NaN()
		for _, v := range day {
			if !math.IsNaN(v) {
				most, last = max(most, v), v
			}
		}
		if math.IsNaN(last) {
			return graph{}, false
		}
		for i := range values {
			values[i] = mean(day[i*len(day)/graphWidth : (i+1)*len(day)/graphWidth])
		}
		first := min(slices.IndexFunc(values, func(v float64) bool { return !math.IsNaN(v) }), graphWidth-leastWidth)
		values = values[first:]
		span := span(time.Duration(len(values)) * 24 * time.Hour / graphWidth)
		return graph{title, template.HTMLAttr(`d="` + drawnLine(values, most) + `"`), format(last), format(most), len(values), span}, true //nolint:gosec // numbers only
	}
	return graph{}, false
}

// mean is that of the values that there are.
func mean(values []float64) float64 {
	sum, n := 0.0, 0
	for _, v := range values {
		if !math.IsNaN(v) {
			sum += v
			n++
		}
	}
	return sum / float64(n) // NaN without any
}

// drawnLine is a path in a box of graphWidth x 100, with gaps where there is no value.
func drawnLine(values []float64, most float64) string {
	var out strings.Builder
	pen := "M"
	for i, v := range values {
		if math.IsNaN(v) {
			pen = "M"
			continue
		}
		y := 100.0
		if most > 0 {
			y = 100 - 100*v/most
		}
		fmt.Fprintf(&out, "%s%d %.0f", pen, i, y)
		if pen == "M" {
			out.WriteString("h1") // a value alone is a dot
		}
		pen = "L"
	}
	return out.String()
}

// graphsOf draws those of the lines that have values.
func graphsOf(a history.Answer, lines ...func(history.Answer) (graph, bool)) (out []graph) {
	for _, l := range lines {
		if g, ok := l(a); ok {
			out = append(out, g)
		}
	}
	return out
}

func lineOf(title, name, label string, format func(float64) string) func(history.Answer) (graph, bool) {
	return func(a history.Answer) (graph, bool) { return line(a, title, name, label, format) }
}

func cores(v float64) string  { return trimmed(v, 2) + " cores" }
func number(v float64) string { return trimmed(v, 0) }
func speed(v float64) string  { return bytesOf(v) + "/s" }
func millis(v float64) string { return trimmed(v*1000, 1) + " ms" }
