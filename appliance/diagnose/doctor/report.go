package doctor

import (
	"cmp"
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

// Add appends a supervisor's warnings and errors without a probe, so that both outputs agree: all of them, or those with
// the codes of only, each of which has a line. err is why the supervisor does not answer.
func (r *Report) Add(problems []health.Problem, only []string, err error) {
	for _, p := range problems {
		status := map[health.Severity]Status{health.Error: Fail, health.Warning: Warn}[p.Severity]
		if len(only) > 0 {
			if !slices.Contains(only, p.Code) {
				continue
			}
			status = cmp.Or(status, Pass) // for information
		}
		if status != "" && !probed(p.Code) {
			title := p.Title
			if p.Subject != "" {
				title += " (" + p.Subject + ")"
			}
			r.Findings = append(r.Findings, Finding{Name: p.Code, Title: title, Result: Result{Status: status, Text: p.Text, Cure: p.Cure}})
		}
	}
	for _, k := range health.Kinds() {
		if !slices.Contains(only, k.Code) || slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Name == k.Code }) {
			continue
		}
		result := Passf("not so now")
		if err != nil {
			result = Skipf("only a running rivulet sees this: %v", err)
		}
		r.Findings = append(r.Findings, Finding{Name: k.Code, Title: k.Title, Result: result})
	}
}

func probed(code string) bool {
	return slices.ContainsFunc(probes, func(p Probe) bool { return p.Name() == code })
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
