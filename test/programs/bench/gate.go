package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"rivulet/test/programs/bench/internal/figures"
)

// gated are the ratios that the gate compares, and whether more is better.
var gated = []struct {
	what string
	more bool
}{
	{"rivulet run → node Ready", false},
	{"rivulet run → pods may be made (default service account)", false},
	{"offloaded, 1", false},
	{"offloaded, 50", false},
	{shipped.Name + ": TCP, 1 flow", true},
	{shipped.Name + ": TCP, 4 flows", true},
	{shipped.Name + ": UDP round trip, p50", false},
}

// standing is a gate's file.
type standing struct {
	Commit  string            `json:"commit"`
	Machine string            `json:"machine"`
	Ratios  map[string]spread `json:"ratios"`
}

// spread is a median and the middle half.
type spread struct {
	Median, Low, High float64
}

func spreadOf(s figures.Samples) spread {
	return spread{s.Median(), s.Quantile(0.25), s.Quantile(0.75)}
}

// least is the difference of two medians, as a part of the committed one, that is always noise.
const least = 0.05

// worse reports whether now is worse than before by more than noise: the middle halves are apart, and the medians
// differ by more than least.
func (now spread) worse(before spread, more bool) bool {
	if more {
		return now.High < before.Low && now.Median < before.Median*(1-least)
	}
	return now.Low > before.High && now.Median > before.Median*(1+least)
}

func (s spread) String() string { return fmt.Sprintf("%.2f (%.2f–%.2f)", s.Median, s.Low, s.High) }

// compare prints the gated ratios beside those of the file, and returns an error if one got worse. With write it writes
// the file.
func compare(w io.Writer, file string, write bool, commit string, sections []figures.Section) error {
	now := standing{commit, figures.Machine(), map[string]spread{}}
	for _, s := range sections {
		for _, r := range s.Rows {
			if len(r.Ratio) > 1 {
				now.Ratios[r.What] = spreadOf(r.Ratio)
			}
		}
	}
	kept := map[string]spread{}
	for _, g := range gated {
		x, ok := now.Ratios[g.what]
		if !ok {
			return fmt.Errorf("bench: %q was not measured", g.what)
		}
		kept[g.what] = x
	}
	now.Ratios = kept
	if write {
		raw, err := json.MarshalIndent(now, "", "  ")
		if err != nil {
			return err
		}
		return os.WriteFile(file, append(raw, '\n'), 0o644)
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("bench: %w; write it with: make bench-gate WRITE=1", err)
	}
	var before standing
	if err := json.Unmarshal(raw, &before); err != nil {
		return fmt.Errorf("bench: %s: %w; write it with: make bench-gate WRITE=1", file, err)
	}
	fmt.Fprintf(w, "\n| ratio | %s, %s | now | |\n|---|---|---|---|\n", before.Commit, before.Machine)
	var errs []error
	for _, g := range gated {
		was, ok := before.Ratios[g.what]
		verdict := "as before, or better"
		switch {
		case !ok:
			verdict = "new"
		case kept[g.what].worse(was, g.more):
			verdict = "**worse**"
			errs = append(errs, fmt.Errorf("bench: %s: %s, before %s", g.what, kept[g.what], was))
		}
		fmt.Fprintf(w, "| %s | %s | %s | %s |\n", g.what, was, kept[g.what], verdict)
	}
	return errors.Join(errs...)
}
