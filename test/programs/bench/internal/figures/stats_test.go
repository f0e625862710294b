package figures

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestQuantile(t *testing.T) {
	for _, c := range []struct {
		in   Samples
		q    float64
		want float64
	}{
		{Samples{3}, 0.5, 3},
		{Samples{1, 2}, 0.5, 1.5},
		{Samples{9, 1, 5}, 0.5, 5},
		{Samples{4, 1, 3, 2, 5}, 0.25, 2},
		{Samples{4, 1, 3, 2, 5}, 1, 5},
		{Samples{0, 10}, 0.99, 9.9},
	} {
		if got := c.in.Quantile(c.q); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("quantile %v of %v is %v, want %v", c.q, c.in, got, c.want)
		}
	}
	if !math.IsNaN(Samples{}.Median()) {
		t.Error("no samples have a median")
	}
}

func TestQuantilesAreOrderedAndLeaveTheSamplesAlone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := Samples(rapid.SliceOfN(rapid.Float64Range(-1e6, 1e6), 1, 50).Draw(t, "samples"))
		before := slices.Clone(s)
		last := slices.Min(s)
		for q := 0.0; q <= 1; q += 0.125 {
			at := s.Quantile(q)
			if at < last-1e-6 || at > slices.Max(s)+1e-6 {
				t.Fatalf("quantile %v of %v is %v, after %v", q, s, at, last)
			}
			last = at
		}
		if !slices.Equal(s, before) {
			t.Fatal("the samples were reordered")
		}
	})
}

func TestOverPairsRounds(t *testing.T) {
	got := Samples{10, 30}.Over(Samples{5, 10})
	if !slices.Equal(got, Samples{2, 3}) {
		t.Errorf("got %v", got)
	}
}

func TestShow(t *testing.T) {
	for want, s := range map[string]Samples{
		"not measured":    nil,
		"2.0 s":           {2},
		"2.0 (1.5–2.5) s": {1, 2, 3},
	} {
		if got := s.Show("%.1f", "s"); got != want {
			t.Errorf("%v shows as %q, want %q", []float64(s), got, want)
		}
	}
}
