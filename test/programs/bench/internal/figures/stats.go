// Package figures turns samples into figures: medians, spreads and ratios, and
// writes the report. It is pure apart from reading what machine it runs on.
package figures

import (
	"fmt"
	"math"
	"slices"
)

// Samples are measurements of one thing, in the order they were taken.
type Samples []float64

// Quantile interpolates between the two nearest samples; q is in [0, 1]. It is
// NaN without samples.
func (s Samples) Quantile(q float64) float64 {
	if len(s) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(s))
	at := q * float64(len(sorted)-1)
	low := int(math.Floor(at))
	high := min(low+1, len(sorted)-1)
	return sorted[low] + (sorted[high]-sorted[low])*(at-float64(low))
}

// Median is the middle sample.
func (s Samples) Median() float64 { return s.Quantile(0.5) }

// Max is the largest sample, NaN without any.
func (s Samples) Max() float64 { return s.Quantile(1) }

// Over divides sample by sample: what was measured in the same round shared the
// machine's mood. Both must be of the same length.
func (s Samples) Over(base Samples) Samples {
	out := make(Samples, min(len(s), len(base)))
	for i := range out {
		out[i] = s[i] / base[i]
	}
	return out
}

// Show prints the median and, of several samples, the middle half:
// "1.23 (1.20–1.31) s".
func (s Samples) Show(format, unit string) string {
	if unit != "" {
		unit = " " + unit
	}
	switch len(s) {
	case 0:
		return "not measured"
	case 1:
		return fmt.Sprintf(format, s[0]) + unit
	}
	return fmt.Sprintf(format+" ("+format+"–"+format+")", s.Median(), s.Quantile(0.25), s.Quantile(0.75)) + unit
}
