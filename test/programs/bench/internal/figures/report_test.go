package figures

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"
)

func TestVerdict(t *testing.T) {
	for _, c := range []struct {
		row  Row
		want string
	}{
		{Row{Value: 3}, ""},
		{Row{Promise: "≤ 60", Value: 60, Limit: 60}, "met"},
		{Row{Promise: "≤ 60", Value: 90, Limit: 60}, "**over by 50 %**"},
		{Row{Promise: "≥ 0.95", Value: 0.76, Limit: 0.95, AtLeast: true}, "**short by 20 %**"},
		{Row{Promise: "≥ 0.95", Value: 1.1, Limit: 0.95, AtLeast: true}, "met"},
		{Row{Promise: "≤ 5", Value: math.NaN(), Limit: 5}, "not measured"},
	} {
		if got := c.row.verdict(); got != c.want {
			t.Errorf("%+v: %q, want %q", c.row, got, c.want)
		}
	}
}

func TestReportKeepsWhatWasMeasuredBeforeAFailure(t *testing.T) {
	var b strings.Builder
	err := Write(&b, time.Date(2026, 1, 2, 3, 4, 0, 0, time.UTC), "a machine", "v1", []Section{{
		Title: "Start", How: "One against the other.", Took: 61 * time.Second,
		Rows:  []Row{{What: "start", Figure: "12 s", Ratio: Samples{1.25}, Promise: "≤ 1", Value: 1.25, Limit: 1}},
		Notes: []string{"a note"}, Err: errors.New("the lab fell over"),
	}})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"2026-01-02 03:04 UTC · rivulet v1 · a machine", "## Start", "Took 1m1s.",
		"| start | 12 s | 1.25 | ≤ 1 | **over by 25 %** |", "- a note", "**Cut short:** the lab fell over",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is missing in\n%s", want, b.String())
		}
	}
}
