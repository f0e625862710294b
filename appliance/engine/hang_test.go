package engine

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// fakeAPI is an API server that a test plays, and counts its answers.
type fakeAPI struct {
	n    *atomic.Int32
	asks func(context.Context) error
}

func (f fakeAPI) ping(ctx context.Context) error { return f.asks(ctx) }
func (f fakeAPI) answered()                      { f.n.Add(1) }

// An engine that answers nothing for a minute hangs; one that is slow, or away
// for a moment, does not.
func TestAnEngineThatHangsIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var silent atomic.Bool
		var answered atomic.Int32
		h := hang{every: 10 * time.Second, after: time.Minute, api: fakeAPI{&answered, func(ctx context.Context) error {
			if silent.Load() {
				<-ctx.Done()
				return ctx.Err()
			}
			time.Sleep(9 * time.Second) // slow
			return nil
		}}}
		result := make(chan error, 1)
		go func() { result <- h.wait(t.Context()) }()
		time.Sleep(10 * time.Minute)
		silent.Store(true)
		time.Sleep(40 * time.Second)
		silent.Store(false)
		time.Sleep(time.Minute)
		select {
		case err := <-result:
			t.Fatalf("a slow engine was taken for one that hangs: %v", err)
		default:
		}
		if answered.Load() < 30 {
			t.Errorf("%d answers reported", answered.Load())
		}
		silent.Store(true)
		begun := time.Now()
		err := <-result
		if d := time.Since(begun); err == nil || d < 50*time.Second || d > 80*time.Second || !strings.Contains(err.Error(), "has not answered for") {
			t.Errorf("%v after %s, want an error after about a minute", err, d)
		}
	})
}

// An engine on an overloaded machine answers every request, each later than the last, up to
// 45 s. None of them is lost, and it is given longer: a silence of 100 s ends nothing then.
func TestASlowEngineIsNoHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var silent atomic.Bool
		var n atomic.Int64
		h := hang{every: 10 * time.Second, after: time.Minute, api: fakeAPI{new(atomic.Int32), func(ctx context.Context) error {
			if silent.Load() {
				<-ctx.Done()
				return ctx.Err()
			}
			select {
			case <-time.After(min(time.Duration(5+n.Add(1)), 45) * time.Second):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}}}
		result := make(chan error, 1)
		go func() { result <- h.wait(t.Context()) }()
		time.Sleep(30 * time.Minute)
		silent.Store(true)
		time.Sleep(100 * time.Second)
		silent.Store(false)
		time.Sleep(10 * time.Minute)
		select {
		case err := <-result:
			t.Fatalf("a slow engine was taken for one that hangs: %v", err)
		default:
		}
		silent.Store(true)
		begun := time.Now()
		if err := <-result; err == nil || time.Since(begun) > hangAfterMost+time.Minute {
			t.Errorf("%v after %s: an engine that hangs ends whatever it was before", err, time.Since(begun))
		}
	})
}

// A supervisor that stood still itself (a laptop that slept) asks more than once
// before it judges, and the end of its context is no hang.
func TestOneMissedAnswerIsNoHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		ctx, cancel := context.WithCancel(t.Context())
		h := hang{every: time.Hour, after: time.Minute, api: fakeAPI{new(atomic.Int32), func(context.Context) error {
			if asked++; asked == 3 {
				cancel()
			}
			return errors.New("refused")
		}}}
		if err := h.wait(ctx); err != nil {
			t.Fatal(err)
		}
		if asked != 3 { // a fourth look would have been the end
			t.Errorf("asked %d times", asked)
		}
	})
}

// A machine that is too slow for an engine to answer within a minute of its start is
// not kept busy by starting it for ever.
func TestPatienceWithASlowMachine(t *testing.T) {
	var p patience
	for i, step := range []struct{ lived, want time.Duration }{
		{2 * time.Minute, 2 * time.Minute}, {3 * time.Minute, 4 * time.Minute}, {5 * time.Minute, 4 * time.Minute}, // the most
		{2 * time.Hour, time.Minute}, {time.Minute, 2 * time.Minute},
	} {
		if p.hung(step.lived); p.now() != step.want {
			t.Errorf("step %d: %s, want %s", i, p.now(), step.want)
		}
	}
	if p := (&patience{}); p.now() != hangAfter {
		t.Error(p.now())
	}
}
