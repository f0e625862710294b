package watch

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Keys that have failed wait longer each time, until their common reason is over: then they come at once, and the next
// failure is their first.
func TestRetryAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := Queue[string](time.Second, time.Minute)
		defer q.ShutDown()
		next := func() (string, time.Duration) {
			began := time.Now()
			key, _ := q.Get()
			q.Done(key)
			return key, time.Since(began)
		}
		q.AddRateLimited("succeeds later")
		q.Forget("succeeds later")
		if key, _ := next(); key != "succeeds later" {
			t.Fatal(key)
		}
		for pause := time.Second; pause < time.Minute; pause *= 2 {
			q.AddRateLimited("fails")
			if _, waited := next(); waited != pause {
				t.Errorf("%s, want %s", waited, pause)
			}
		}
		q.AddRateLimited("fails")
		q.RetryAll()
		if key, waited := next(); key != "fails" || waited != 0 || q.Len() != 0 {
			t.Errorf("%s after %s, %d more", key, waited, q.Len())
		}
		time.Sleep(2 * time.Minute) // the pause that was cut short
		next()
		q.AddRateLimited("fails")
		if _, waited := next(); waited != time.Second {
			t.Errorf("%s after the first failure", waited)
		}
	})
}

// A key whose handling panics is tried again after a pause; other keys are handled meanwhile.
func TestAPanicIsOneKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := Queue[string](time.Second, time.Minute)
		var tries, others atomic.Int32
		done := make(chan struct{})
		go func() {
			defer close(done)
			Work(t.Context(), q, 2, func(key string) {
				if key == "good" {
					others.Add(1)
					return
				}
				if tries.Add(1) < 3 {
					panic("flaw")
				}
				q.Forget(key)
			})
		}()
		q.Add("bad")
		q.Add("good")
		synctest.Wait()
		if tries.Load() != 1 || others.Load() != 1 {
			t.Errorf("%d tries, %d others", tries.Load(), others.Load())
		}
		time.Sleep(3*time.Second + time.Millisecond) // of the clock of the bubble: 1 s and 2 s
		synctest.Wait()
		if tries.Load() != 3 {
			t.Errorf("%d tries, want 3", tries.Load())
		}
		q.ShutDown()
		<-done
	})
}
