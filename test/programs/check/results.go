package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"
)

// state is how something ended.
type state string

const (
	passed    state = "pass"
	failed    state = "FAIL"
	excused   state = "excused"    // it failed for a known fault, which test/suites.yaml names
	skipped   state = "skipped"    // nothing of it could run on this machine
	leftOut   state = "left out"   // it guards the change, and there was no time
	notJudged state = "not judged" // the machine was under pressure; the next line has the verdict
)

// result is a line of the table: a package of a group, a suite, or a step.
type result struct {
	Kind    string  `json:"kind"` // race, plain, labs, suite, claims or step
	Name    string  `json:"name"`
	State   state   `json:"state"`
	Seconds float64 `json:"seconds"`
	Passed  int     `json:"passed,omitempty"` // tests, without subtests
	Failed  int     `json:"failed,omitempty"`
	Skipped int     `json:"skipped,omitempty"`
	Note    string  `json:"note,omitempty"`
	// Said are the last messages of the tests that failed.
	Said []string `json:"said,omitempty"`
	// Tests are the last actions of the tests, without subtests.
	Tests map[string]string `json:"tests,omitempty"`
}

const shown = 20 // seconds: what took less is in the sum only

func (c *checker) start() error {
	if err := os.Remove(c.record); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return c.note(result{Kind: "start", Seconds: float64(time.Now().Unix())})
}

// note keeps a result for the table.
func (c *checker) note(r result) error {
	if r.Kind != "start" {
		c.mine = append(c.mine, r)
	}
	f, err := os.OpenFile(c.record, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	line, err := json.Marshal(r)
	if err == nil {
		_, err = f.Write(append(line, '\n'))
	}
	return errors.Join(err, f.Close())
}

// table prints everything since start.
func (c *checker) table() error {
	all, began, err := c.recorded()
	if err != nil {
		return err
	}
	return printTable(os.Stdout, all, time.Since(began))
}

// recorded reads everything since start.
func (c *checker) recorded() (all []result, began time.Time, _ error) {
	text, err := os.ReadFile(c.record)
	if err != nil {
		return nil, began, err
	}
	began = time.Now()
	for line := range bytes.Lines(text) {
		var r result
		if err := json.Unmarshal(line, &r); err != nil {
			return nil, began, fmt.Errorf("%s: %w; begin anew with check start", c.record, err)
		}
		if r.Kind == "start" {
			began = time.Unix(int64(r.Seconds), 0)
			continue
		}
		all = append(all, r)
	}
	return all, began, nil
}

// done prints what this process ran, what failed once more at the end. It is errRed when something failed, errIncomplete when something did not run.
func (c *checker) done() error { return printTable(os.Stdout, c.mine, time.Since(c.began)) }

func printTable(w io.Writer, all []result, took time.Duration) (err error) {
	var tests result
	var red []result
	short, shortTook := 0, 0.0
	fmt.Fprintf(w, "\n%-6s  %-44s  %-10s  %6s\n", "", "what", "result", "time")
	for _, r := range all {
		if r.State != notJudged {
			tests.Passed, tests.Failed, tests.Skipped = tests.Passed+r.Passed, tests.Failed+r.Failed, tests.Skipped+r.Skipped
		}
		switch {
		case r.State == failed:
			err, red = errRed, append(red, r)
		case (r.State == leftOut || r.State == skipped && r.Kind == "suite") && err == nil:
			err = errIncomplete
		}
		if r.State == passed && r.Seconds < shown && r.Note == "" {
			short++
			shortTook += r.Seconds
			continue
		}
		if r.State == skipped && r.Kind != "suite" {
			continue
		}
		fmt.Fprintf(w, "%-6s  %-44s  %-10s  %6s  %s\n", r.Kind, strings.TrimPrefix(r.Name, "rivulet/"), r.State, clock(r.Seconds), r.Note)
	}
	fmt.Fprintf(w, "%-6s  %-44s  %-10s  %6s\n", "", fmt.Sprintf("%d of less than %d s", short, shown), passed, clock(shortTook))
	fmt.Fprintf(w, "%-6s  %-44s  %-10s  %6s\n\n", "", "in all, by the clock", "", clock(took.Seconds()))
	for _, r := range red { // of a long output only the end may be kept
		fmt.Fprintf(w, "FAIL %s %s: %s\n", r.Kind, strings.TrimPrefix(r.Name, "rivulet/"), r.Note)
		for _, said := range r.Said {
			fmt.Fprintf(w, "     %s\n", said)
		}
	}
	fmt.Fprintf(w, "%d passed, %d failed, %d skipped\n", tests.Passed, tests.Failed, tests.Skipped)
	return err
}

func clock(seconds float64) string {
	s := int(seconds + 0.5)
	return fmt.Sprintf("%d:%02d", s/60, s%60)
}
