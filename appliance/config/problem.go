package config

import (
	"fmt"
	"slices"
	"strings"
)

// Problem is one mistake, its place and its cure.
type Problem struct {
	File string `json:"file"`
	// Line and Column count from 1, columns in characters; 0 for the file as a whole.
	Line   int    `json:"line,omitempty"`
	Column int    `json:"column,omitempty"`
	Key    string `json:"key,omitempty"` // for example share.cpu
	Text   string `json:"text"`
	Cure   string `json:"cure"`
}

// Place is file:line:column.
func (p Problem) Place() string {
	if p.Line == 0 {
		return p.File
	}
	return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column)
}

// Error is the problem on one line.
func (p Problem) Error() string { return p.Place() + ": " + p.Text + "; " + p.Cure }

// Problems are all mistakes of one file, from top to end.
type Problems []Problem

// Error is the first problem, and the number of others.
func (p Problems) Error() string {
	switch len(p) {
	case 0:
		return "no problem"
	case 1:
		return p[0].Error()
	}
	return fmt.Sprintf("%s (and %d more)", p[0].Error(), len(p)-1)
}

func (p Problems) sort() {
	slices.SortStableFunc(p, func(a, b Problem) int {
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return a.Column - b.Column
	})
}

// plain converts a library's message to one line.
func plain(s string) string { return strings.Join(strings.Fields(s), " ") }
