package await

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// failing is a test that fails.
type failing struct {
	testing.TB
	said string
}

func (f *failing) Fatalf(format string, args ...any) { f.said = fmt.Sprintf(format, args...) }

func TestWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		after := func(d time.Duration) func() bool { return func() bool { return time.Since(begun) >= d } }
		for _, d := range []time.Duration{0, 3 * time.Millisecond, 10 * time.Second} {
			begun = time.Now()
			if took := True(t, time.Minute, "it", after(d)); took < d || took > d+d/10+time.Millisecond {
				t.Errorf("%s took %s", d, took)
			}
		}
		f := &failing{TB: t}
		begun = time.Now()
		True(f, time.Second, "the sun", after(time.Hour))
		if f.said != "the sun: not within 1.0 s: it does not hold (context deadline exceeded)" || time.Since(begun) != time.Second {
			t.Errorf("%q after %s", f.said, time.Since(begun))
		}
	})
}

// A long limit is no promise: a busy machine gets more time, and an idle one not for ever.
func TestALongLimitEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, begun := &failing{TB: t}, time.Now()
		Empty(f, 2*time.Minute, "the sun", func(context.Context) string { return "it is night" })
		if took := time.Since(begun); took < 2*time.Minute || took > 4*time.Minute+time.Second || !strings.Contains(f.said, "it is night (context deadline exceeded)") {
			t.Errorf("%q after %s", f.said, took)
		}
	})
}

// What is shown is why it did not hold, and not that the time was over when it was looked at last.
func TestLastErrorIsShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &failing{TB: t}
		Empty(f, 59*time.Second, "pods run", func(ctx context.Context) string {
			if err := ctx.Err(); err != nil {
				return err.Error()
			}
			return "2 of 3"
		})
		if !strings.HasPrefix(f.said, "pods run: not within 59.0 s: 2 of 3 (context deadline exceeded") {
			t.Errorf("%q", f.said)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		why := errors.New("no")
		if err := Until(ctx, func() error { return why }); !errors.Is(err, why) || !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
}

// A look that is work is followed by as long a rest.
func TestRestsAsLongAsItLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looks := 0
		if took := True(t, time.Minute, "ten looks", func() bool { looks++; time.Sleep(time.Second); return looks == 10 }); took != 19*time.Second {
			t.Errorf("ten looks of a second took %s", took)
		}
	})
}
