package doctor

import (
	"context"
	"errors"
	"fmt"
)

// Fixed is the result of one fix.
type Fixed struct {
	Name   string `json:"name"`
	Says   string `json:"says"`
	Error  string `json:"error,omitempty"`
	Reboot bool   `json:"reboot,omitempty"`
}

// Repair does the fixes of a report, one after the other; say is called before each. A failed fix does not stop the
// others.
func Repair(ctx context.Context, r Report, say func(name, says string)) []Fixed {
	var out []Fixed
	for _, f := range r.Findings {
		fix := f.Result.Fix
		if fix == nil || f.Status == Pass || f.Status == Skip {
			continue
		}
		say(f.Name, fix.Says)
		done := Fixed{Name: f.Name, Says: fix.Says, Reboot: fix.Reboot}
		if err := fix.Do(ctx); err != nil {
			done.Error, done.Reboot = err.Error(), false
		}
		out = append(out, done)
	}
	return out
}

// both combines several fixes; each is tried.
func both(fixes ...*Fix) *Fix {
	var all []*Fix
	for _, f := range fixes {
		if f != nil {
			all = append(all, f)
		}
	}
	if len(all) < 2 {
		if len(all) == 0 {
			return nil
		}
		return all[0]
	}
	joined := &Fix{}
	for i, f := range all {
		if i > 0 {
			joined.Says += "; "
		}
		joined.Says += f.Says
		joined.Reboot = joined.Reboot || f.Reboot
	}
	joined.Do = func(ctx context.Context) error {
		var errs []error
		for _, f := range all {
			if err := f.Do(ctx); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", f.Says, err))
			}
		}
		return errors.Join(errs...)
	}
	return joined
}
