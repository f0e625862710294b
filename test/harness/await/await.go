// Package await is how tests and their tools wait for a condition. It is the one place
// that sleeps between two looks; test/arch holds the tests to it.
package await

import (
	"context"
	"errors"
	"fmt"
	"time"

	"rivulet/test/harness/pressure"
)

// T is what it takes of a test.
type T interface {
	Helper()
	Context() context.Context
	Logf(format string, args ...any)
	Fatalf(format string, args ...any)
}

var errFalse = errors.New("it does not hold")

// True waits until ok holds, and ends the test where it does not within the limit. It
// returns how long that took.
func True(t T, limit time.Duration, what string, ok func() bool) time.Duration {
	t.Helper()
	return NoError(t, context.Background(), limit, what, func() error {
		if !ok() {
			return errFalse
		}
		return nil
	})
}

// Empty is True for a condition that returns what is missing. Its context ends with the limit.
func Empty(t T, limit time.Duration, what string, missing func(ctx context.Context) string) time.Duration {
	t.Helper()
	ctx, cancel := within(t.Context(), limit)
	defer cancel()
	return NoError(t, ctx, 0, what, func() error {
		if text := missing(ctx); text != "" {
			return errors.New(text)
		}
		return nil
	})
}

// NoError is True for a condition that returns why it does not hold. With a limit of 0 it
// waits as long as ctx.
func NoError(t T, ctx context.Context, limit time.Duration, what string, f func() error) time.Duration {
	t.Helper()
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = within(ctx, limit)
		defer cancel()
	}
	begun := time.Now()
	err := Until(ctx, f)
	took := time.Since(begun)
	if err != nil {
		t.Fatalf("%s: not within %.1f s: %v", what, took.Seconds(), err)
	}
	t.Logf("%s: %.1f s", what, took.Seconds())
	return took
}

// patient is the limit from which a busy machine is given more time: such a limit ends a test that hangs, and is no
// promise of the product.
const patient = time.Minute

// within is a context that ends after the limit. A limit of patient or more grows by the time in which something waited
// for a processor (PSI), at most twofold.
func within(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	if limit < patient {
		return context.WithTimeout(ctx, limit)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	before := pressure.OfProcessors()
	first := time.AfterFunc(limit, func() {
		if late := min(limit, pressure.OfProcessors()-before); late > 0 {
			select {
			case <-ctx.Done():
			case <-time.After(late):
			}
		}
		cancel(context.DeadlineExceeded)
	})
	return ctx, func() { first.Stop(); cancel(nil) }
}

// Until calls f until it returns nil. When ctx ends first, it returns the last error of
// before.
func Until(ctx context.Context, f func() error) error {
	var last error
	for begun := time.Now(); ; {
		look := time.Now()
		err := f()
		if err == nil {
			return nil
		}
		if ctx.Err() == nil || last == nil {
			last = err // and not that ctx has ended
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%w (%w)", last, context.Cause(ctx))
		}
		select {
		case <-ctx.Done(): // one look more
		case <-time.After(pause(time.Since(begun), time.Since(look))):
		}
	}
}

// pause is short at first, so that what is soon is found soon, and as long as the look
// itself, which may be work for a machine that is tested.
func pause(waited, look time.Duration) time.Duration {
	return max(time.Millisecond, min(waited/20, 100*time.Millisecond), min(look, 2*time.Second))
}
