package doctor

import (
	"slices"
	"time"

	"rivulet/appliance/health"
)

// Report is the result of a run, for text and JSON.
type Report struct {
	At       time.Time `json:"at"`
	Findings []Finding `json:"probes"`
}

// Finding is one probe's result.
type Finding struct {
	Name  string `json:"name"`
	Title string `json:"title"`
	Result
	// Fix is the action of `doctor --fix`.
	Fix  string        `json:"fix,omitempty"`
	Took time.Duration `json:"took"` // nanoseconds

	kind *health.Kind
}

// Count returns how many probes had that result.
func (r Report) Count(s Status) (n int) {
	for _, f := range r.Findings {
		if f.Status == s {
			n++
		}
	}
	return n
}

// Add appends a running supervisor's warnings and errors without a probe, so that both outputs agree.
func (r *Report) Add(problems []health.Problem) {
	for _, p := range problems {
		status := map[health.Severity]Status{health.Error: Fail, health.Warning: Warn}[p.Severity]
		if status != "" && !slices.ContainsFunc(probes, func(known Probe) bool { return known.Name() == p.Code }) {
			title := p.Title
			if p.Subject != "" {
				title += " (" + p.Subject + ")"
			}
			r.Findings = append(r.Findings, Finding{Name: p.Code, Title: title, Result: Result{Status: status, Text: p.Text, Cure: p.Cure}})
		}
	}
}

// Report updates the device's health: a failure is an error there, a warning a warning, and other results clear the
// problem.
func (r Report) Report(t *health.Tracker) {
	for _, f := range r.Findings {
		switch f.Status {
		case Fail:
			t.SetAt(f.kind, health.Error, "", f.Text, f.Cure)
		case Warn:
			t.SetAt(f.kind, health.Warning, "", f.Text, f.Cure)
		default:
			t.Clear(f.kind)
		}
	}
}
