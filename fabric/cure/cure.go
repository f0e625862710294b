// Package cure has errors that a person can do something about: an error, and what helps. Printed it is
// "text; cure". Who shows both apart calls Split, so that no text is searched for its cure elsewhere.
package cure

import (
	"errors"
	"fmt"
	"strings"
)

// Error is an error with its cure.
type Error struct {
	Err  error
	Cure string
}

func (e *Error) Error() string { return e.Err.Error() + "; " + e.Cure }
func (e *Error) Unwrap() error { return e.Err }

// Errorf is fmt.Errorf with a format of "text; cure". What the arguments hold is in neither place taken
// for a cure. Verbs have no indexes.
func Errorf(format string, args ...any) error {
	text, cure, ok := strings.Cut(format, "; ")
	if !ok {
		return fmt.Errorf(format, args...)
	}
	n := strings.Count(strings.ReplaceAll(text, "%%", ""), "%")
	return &Error{fmt.Errorf(text, args[:n]...), fmt.Sprintf(cure, args[n:]...)}
}

// Split returns an error's text and its cure: that of the Error that it wraps at its end, or what
// follows the last "; " of one that has none.
func Split(err error) (text, cure string) {
	var e *Error
	if errors.As(err, &e) {
		if text, ok := strings.CutSuffix(err.Error(), "; "+e.Cure); ok {
			return text, e.Cure
		}
	}
	return Cut(err.Error())
}

// Cut is Split of a text, for what comes from elsewhere; without "; " it has no cure.
func Cut(s string) (text, cure string) {
	if i := strings.LastIndex(s, "; "); i >= 0 {
		return s[:i], s[i+len("; "):]
	}
	return s, ""
}
