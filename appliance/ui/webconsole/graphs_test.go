package webconsole

import (
	"math"
	"strings"
	"testing"

	"rivulet/appliance/diagnose/history"
)

func TestLines(t *testing.T) {
	points := func(n int, f func(i int) float64) (out []history.Point) {
		for i := range n {
			out = append(out, history.Point(f(i)))
		}
		return out
	}
	a := history.Answer{Step: 60, Series: []history.Series{
		{Name: "full", Points: points(1440, func(i int) float64 { return float64(i) })},
		{Name: "hour", Points: points(60, func(int) float64 { return 3 })},
		{Name: "zero", Points: points(1440, func(int) float64 { return 0 })},
		{Name: "holes", Points: points(1440, func(i int) float64 {
			if i/100%2 == 0 {
				return math.NaN()
			}
			return 1
		})},
		{Name: "nothing", Points: points(1440, func(int) float64 { return math.NaN() })},
		{Name: "of", Labels: map[string]string{"id": "b"}, Points: points(10, func(int) float64 { return 7 })},
	}}
	for name, tt := range map[string]struct {
		label, most, last string
		parts             int // of the line
	}{
		"full": {"", "1439", "1439", 1}, "hour": {"", "3", "3", 1}, "zero": {"", "0", "0", 1}, "holes": {"", "1", "1", 7}, "of": {"b", "7", "7", 1},
	} {
		g, ok := line(a, "T", name, tt.label, number)
		if !ok || g.Most != tt.most || g.Last != tt.last && name != "holes" || strings.Count(string(g.Path), "M") != tt.parts {
			t.Errorf("%s: %v %s %s, %d parts", name, ok, g.Most, g.Last, strings.Count(string(g.Path), "M"))
		}
		if from := map[string]string{"hour": "60 min", "of": "60 min"}[name]; from != "" && (g.From != from || g.Width != leastWidth) {
			t.Errorf("%s begins %s ago, %d values", name, g.From, g.Width)
		}
		if len(g.Path) > 12*graphWidth {
			t.Errorf("%s: a path of %d bytes", name, len(g.Path))
		}
	}
	for _, name := range []string{"nothing", "missing"} {
		if _, ok := line(a, "T", name, "", number); ok {
			t.Errorf("%s is drawn", name)
		}
	}
	if _, ok := line(a, "T", "of", "c", number); ok {
		t.Error("another peer's is drawn")
	}
}
