// Package health holds what is wrong with the device right now, for every
// screen: `rivulet status`, `rivulet doctor`, the status page and the metrics all
// show the same problems by the same codes. It reads and writes nothing outside
// of memory; after a restart whoever sees a problem reports it again.
//
// A kind of problem is declared once, in codes.go, by the words that never
// change: its code, its title and how bad it is at worst. What is particular (which
// file, how many bytes) and the cure come with the report.
package health

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"rivulet/fabric/cure"
)

// Severity says how bad a problem is.
type Severity string

// The severities, from least to most.
const (
	Info    Severity = "info"    // worth knowing, nothing is lost
	Warning Severity = "warning" // something works less well than it could
	Error   Severity = "error"   // something that was asked for does not work
)

func (s Severity) rank() int { return slices.Index([]Severity{Info, Warning, Error}, s) }

// Kind is a kind of problem, declared in codes.go.
type Kind struct {
	// Code is its name for programs: lower case words and dashes, never changed.
	Code     string   `json:"code"`
	Severity Severity `json:"severity"`
	// Title is a short sentence without its particulars.
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

// Kinds returns all that are declared, by code.
func Kinds() []Kind {
	out := make([]Kind, 0, len(kinds))
	for _, k := range kinds {
		out = append(out, *k)
	}
	slices.SortFunc(out, func(a, b Kind) int { return strings.Compare(a.Code, b.Code) })
	return out
}

// Problem is one that holds now.
type Problem struct {
	Kind
	// Subject tells problems of one kind apart, for example a peer's name; mostly empty.
	Subject string `json:"subject,omitempty"`
	// Text says what is wrong, Cure what to do about it.
	Text  string    `json:"text"`
	Cure  string    `json:"cure"`
	Since time.Time `json:"since"`
}

// Tracker holds the problems of one device. The zero value is ready for use; it
// may be used by many goroutines.
type Tracker struct {
	mu       sync.Mutex
	problems map[key]Problem
	now      func() time.Time // nil is time.Now
}

type key struct{ code, subject string }

// Set reports that a problem holds; one that is reported again keeps its Since.
func (t *Tracker) Set(k *Kind, text, cure string) { t.SetFor(k, "", text, cure) }

// SetIf is Set while the problem holds, and Clear when it does not.
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

// SetAt is SetFor where this one is less bad than its kind can be.
func (t *Tracker) SetAt(k *Kind, s Severity, subject, text, cure string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.set(k, s, subject, text, cure)
}

// Replace makes what was reported of a kind exactly this, text and cure by
// subject: for a part of the appliance that keeps a list of its own.
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

// Clear reports that a problem does not hold, or not any more.
func (t *Tracker) Clear(k *Kind) { t.ClearFor(k, "") }

// ClearFor is Clear for one of several subjects.
func (t *Tracker) ClearFor(k *Kind, subject string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.problems, key{k.Code, subject})
}

// Report sets a problem of the error and its cure, or clears it where there is none.
func (t *Tracker) Report(k *Kind, err error) {
	if err == nil {
		t.Clear(k)
		return
	}
	text, cure := cure.Split(err)
	t.Set(k, text, cure)
}

// Problems returns what holds now, the worst first, then by code and subject.
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

// String is the problem on one line, as status prints it.
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
