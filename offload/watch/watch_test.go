package watch

import (
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
