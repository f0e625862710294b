package main

import (
	"path/filepath"
	"strings"
	"testing"

	"rivulet/test/programs/bench/internal/figures"
)

func TestGate(t *testing.T) {
	file := filepath.Join(t.TempDir(), "gate.json")
	measured := func(by map[string]float64) (s []figures.Section) {
		for _, g := range gated {
			x := 1 + by[g.what]
			s = append(s, figures.Section{Rows: []figures.Row{{What: g.what, Ratio: figures.Samples{x - 0.04, x, x + 0.04}}, {What: "no ratio"}}})
		}
		return s
	}
	var out strings.Builder
	if err := compare(&out, file, false, "a", measured(nil)); err == nil || !strings.Contains(err.Error(), "make bench-gate WRITE=1") {
		t.Errorf("without a file: %v", err)
	}
	if err := compare(&out, file, true, "a", measured(nil)); err != nil {
		t.Fatal(err)
	}
	if err := compare(&out, file, false, "b", measured(nil)[1:]); err == nil || !strings.Contains(err.Error(), "was not measured") {
		t.Errorf("with less than all: %v", err)
	}
	for _, g := range gated {
		bad, good := 0.2, -0.2
		if g.more {
			bad, good = good, bad
		}
		for by, worse := range map[float64]bool{bad: true, good: false, bad / 10: false, bad / 5: false, 0: false} {
			out.Reset()
			err := compare(&out, file, false, "b", measured(map[string]float64{g.what: by}))
			if (err != nil) != worse || worse && !strings.Contains(err.Error(), g.what) || strings.Contains(out.String(), "**worse**") != worse {
				t.Errorf("%s by %v: %v\n%s", g.what, by, err, &out)
			}
		}
	}
}
