package pressure

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestTail(t *testing.T) {
	quiet := make([]time.Duration, 1000)
	for _, c := range []struct {
		name      string
		late      []time.Duration
		p99, most time.Duration
	}{
		{"nothing", nil, 0, 0},
		{"quiet", quiet, 0, 0},
		{"one stall in ten seconds is more than a hundredth of the time", append([]time.Duration{time.Second}, quiet...), time.Second, time.Second},
		{"one short stall is less", append([]time.Duration{50 * time.Millisecond}, quiet...), 0, 50 * time.Millisecond},
	} {
		if p99, most := tail(c.late); p99 != c.p99 || most != c.most {
			t.Errorf("%s: %v, %v, want %v, %v", c.name, p99, most, c.p99, c.most)
		}
	}
}

func TestSomeTotal(t *testing.T) {
	const kernel = "some avg10=99.55 avg60=98.99 avg300=97.72 total=1241380306\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"
	if total, ok := someTotal(kernel); !ok || total != 1241380306*time.Microsecond {
		t.Errorf("%v %v", total, ok)
	}
	if total, ok := someTotal("full avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"); ok {
		t.Errorf("%v of a kernel that does not tell", total)
	}
}

// A machine that is never late has no lateness, and one line tells all.
func TestMeter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := Start()
		time.Sleep(time.Minute)
		f := m.Stop()
		if f.P99 != 0 || f.Exceeded() {
			t.Errorf("%+v", f)
		}
		if text := f.String(); !strings.HasPrefix(text, "late p99 0 ms, most 0 ms") {
			t.Error(text)
		}
	})
	f := Figures{P99: Bound, Max: 2 * Bound, Some: map[string]float64{"io": 0.123, "cpu": 1}}
	if text := f.String(); text != "late p99 500 ms, most 1000 ms, cpu some 100 %, io some 12 %" || !f.Exceeded() {
		t.Error(text)
	}
}
