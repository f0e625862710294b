// Package cure has errors with a cure: what failed, and what the user can do. Printed, an error is "text; cure". Code
// that shows both separately calls Split; nothing else searches a text for its cure.
package cure

import (
	"errors"
	"fmt"
	"strings"
)

type Error struct {
	Err  error
	Cure string
}

func (e *Error) Error() string { return e.Err.Error() + "; " + e.Cure }
func (e *Error) Unwrap() error { return e.Err }

// Errorf is fmt.Errorf with a format of "text; cure". The separator counts in the format only, not in the arguments.
// Verbs have no indexes.
func Errorf(format string, args ...any) error {
	text, cure, ok := strings.Cut(format, "; ")
	if !ok {
		return fmt.Errorf(format, args...)
	}
	n := strings.Count(strings.ReplaceAll(text, "%%", ""), "%")
	return &Error{fmt.Errorf(text, args[:n]...), fmt.Sprintf(cure, args[n:]...)}
}

// Split returns an error's text and cure: the cure of the Error that it wraps at its end, otherwise what follows the
// last "; ".
func Split(err error) (text, cure string) {
	var e *Error
	if errors.As(err, &e) {
		if text, ok := strings.CutSuffix(err.Error(), "; "+e.Cure); ok {
			return text, e.Cure
		}
	}
	return Cut(err.Error())
}

// Cut is Split for a text from elsewhere; without "; " it has no cure.
func Cut(s string) (text, cure string) {
	if i := strings.LastIndex(s, "; "); i >= 0 {
		return s[:i], s[i+len("; "):]
	}
	return s, ""
}
