package silence

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

func TestBeside(t *testing.T) {
	// A try is the time that it takes to happen.
	happens := func(ctx context.Context, after time.Duration) bool {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(after):
			return true
		}
	}
	takes := func(d time.Duration) func(context.Context) error {
		return func(ctx context.Context) error {
			if !happens(ctx, d) {
				return context.Cause(ctx)
			}
			return nil
		}
	}
	const never = time.Hour
	for _, c := range []struct {
		name     string
		control  time.Duration
		tries    []time.Duration
		happened string
		err      error
		took     time.Duration
	}{
		{"nothing happens", 0, []time.Duration{never, never}, "[]", nil, time.Second},
		{"one of three happens", 0, []time.Duration{never, time.Millisecond, never}, "[1ms]", nil, time.Second},
		{"a slow machine has more time", 4 * time.Second, []time.Duration{4 * time.Second}, "[4s]", nil, 5*4*time.Second + pace},
		{"a machine that stands still", never, []time.Duration{never}, "[]", ErrNotJudged, patience},
	} {
		synctest.Test(t, func(t *testing.T) {
			begun := time.Now()
			got, err := Beside(t.Context(), takes(c.control), c.tries, happens)
			if took := time.Since(begun); fmt.Sprint(got) != c.happened || !errors.Is(err, c.err) || took < c.took-pace || took > c.took+pace {
				t.Errorf("%s: %v, %v after %v, want %s, %v after %v", c.name, got, err, took, c.happened, c.err, c.took)
			}
		})
	}
	if _, err := Beside(t.Context(), takes(0), nil, happens); err == nil {
		t.Error("nothing was tried, and nobody is told")
	}
}
