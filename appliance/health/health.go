// Package health has the current problems of the device, for all outputs: `rivulet status`, `rivulet doctor`, the
// status page and the metrics show the same problems by the same codes. It is in memory only; after a restart each
// component reports its problems again.
//
// A kind of problem is declared once, in codes.go, with its constant parts: its code, its title and its greatest
// severity. Details (which file, how many bytes) and the cure are in the report.
package health

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"rivulet/fabric/cure"
)

// Severity is the severity of a problem.
type Severity string

// The severities, from least to most.
const (
	Info    Severity = "info"    // worth knowing, no loss
	Warning Severity = "warning" // works, but not as well as it could
	Error   Severity = "error"   // a requested function does not work
)

func (s Severity) rank() int { return slices.Index([]Severity{Info, Warning, Error}, s) }

// Kind is a kind of problem, declared in codes.go.
type Kind struct {
	// Code is its name for programs: lower case words and dashes, never changed.
	Code     string   `json:"code"`
	Severity Severity `json:"severity"`
	// Title is a short sentence without details.
	Title string `json:"title"`
}

var kinds []*Kind

func declare(code string, severity Severity, title string) *Kind {
	for _, k := range kinds {
		if k.Code == code {
			panic("health: two kinds have the code " + code)
		}
	}
	k := &Kind{Code: code, Severity: severity, Title: title}
	kinds = append(kinds, k)
	return k
}

// Kinds returns all declared kinds, by code.
func Kinds() []Kind {
	out := make([]Kind, 0, len(kinds))
	for _, k := range kinds {
		out = append(out, *k)
	}
	slices.SortFunc(out, func(a, b Kind) int { return strings.Compare(a.Code, b.Code) })
	return out
}

// Problem is a current problem.
type Problem struct {
	Kind
	// Subject distinguishes problems of one kind, for example a peer's name; mostly empty.
	Subject string `json:"subject,omitempty"`
	// Text describes the problem, Cure what to do about it.
	Text  string    `json:"text"`
	Cure  string    `json:"cure"`
	Since time.Time `json:"since"`
}

// Tracker has the problems of one device. The zero value is ready for use; it may be used concurrently.
type Tracker struct {
	mu       sync.Mutex
	problems map[key]Problem
	now      func() time.Time // nil is time.Now
}

type key struct{ code, subject string }

// Set sets a problem; one that is set again keeps its Since.
func (t *Tracker) Set(k *Kind, text, cure string) { t.SetFor(k, "", text, cure) }

// SetIf is Set while the problem holds, and Clear otherwise.
func (t *Tracker) SetIf(holds bool, k *Kind, text, cure string) {
	if holds {
		t.Set(k, text, cure)
	} else {
		t.Clear(k)
	}
}

// SetFor is Set for one of several subjects.
func (t *Tracker) SetFor(k *Kind, subject, text, cure string) {
	t.SetAt(k, k.Severity, subject, text, cure)
}

// SetAt is SetFor with a lower severity than that of the kind.
func (t *Tracker) SetAt(k *Kind, s Severity, subject, text, cure string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.set(k, s, subject, text, cure)
}

// Replace sets all problems of a kind, text and cure by subject: for a component with its own list.
func (t *Tracker) Replace(k *Kind, now map[string][2]string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for has := range t.problems {
		if _, still := now[has.subject]; has.code == k.Code && !still {
			delete(t.problems, has)
		}
	}
	for subject, said := range now {
		t.set(k, k.Severity, subject, said[0], said[1])
	}
}

// set is called with mu held.
func (t *Tracker) set(k *Kind, s Severity, subject, text, cure string) {
	if t.problems == nil {
		t.problems = map[key]Problem{}
	}
	now := time.Now
	if t.now != nil {
		now = t.now
	}
	p := Problem{Kind: *k, Subject: subject, Text: text, Cure: cure, Since: now()}
	p.Severity = s
	if old, ok := t.problems[key{k.Code, subject}]; ok {
		p.Since = old.Since
	}
	t.problems[key{k.Code, subject}] = p
}

// Clear clears a problem.
func (t *Tracker) Clear(k *Kind) { t.ClearFor(k, "") }

// ClearFor is Clear for one of several subjects.
func (t *Tracker) ClearFor(k *Kind, subject string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.problems, key{k.Code, subject})
}

// Report sets a problem of the error and its cure, or clears it if there is no error.
func (t *Tracker) Report(k *Kind, err error) {
	if err == nil {
		t.Clear(k)
		return
	}
	text, cure := cure.Split(err)
	t.Set(k, text, cure)
}

// SetAside reports damaged files that were set aside, for an operator to inspect.
func (t *Tracker) SetAside(found []string) {
	t.SetIf(len(found) > 0, SetAside, strings.Join(found, ", "), "look at the disk's health; delete these when nobody needs them any more")
}

// Problems returns the current ones, the worst first, then by code and subject.
func (t *Tracker) Problems() []Problem {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]Problem, 0, len(t.problems))
	for _, p := range t.problems {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b Problem) int {
		if c := b.Severity.rank() - a.Severity.rank(); c != 0 {
			return c
		}
		return strings.Compare(a.Code+" "+a.Subject, b.Code+" "+b.Subject)
	})
	return out
}

// String is the problem on one line, in the form of status.
func (p Problem) String() string {
	about := p.Title
	if p.Subject != "" {
		about += " (" + p.Subject + ")"
	}
	line := fmt.Sprintf("%s [%s]: %s", about, p.Code, p.Text)
	if p.Cure != "" {
		line += "; " + p.Cure
	}
	return line
}
