package peer

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Settings that are not allowed change nothing; what a record has can be stored as labels and numbers.
func TestSettings(t *testing.T) {
	for _, c := range []struct {
		settings Settings
		want     string // of the error
	}{
		{Settings{Price: new(10)}, "use 0"},
		{Settings{Price: new(-1)}, "use 0"},
		{Settings{Labels: map[string]*string{"rivulet.dev/price": new("1")}}, "use a key of your own"},
		{Settings{Labels: map[string]*string{"node-role.kubernetes.io/control-plane": new("")}}, "use a key of your own"},
		{Settings{Labels: map[string]*string{"a b": new("1")}}, "not allowed"},
		{Settings{Labels: map[string]*string{"room": new("a b")}}, "not allowed"},
		{Settings{Labels: map[string]*string{"": new("b")}}, "not allowed"},
	} {
		r := Record{Price: 4, Labels: map[string]string{"room": "1"}}
		c.settings.Consume = new(false)
		if err := c.settings.Apply(&r); err == nil || !strings.Contains(err.Error(), c.want) || !reflect.DeepEqual(r, Record{Price: 4, Labels: map[string]string{"room": "1"}}) {
			t.Errorf("%+v: %v, %+v", c.settings, err, r)
		}
	}
	was := map[string]string{"room": "1"}
	r := Record{Labels: was}
	s := Settings{Provide: new(false), Price: new(9), Labels: map[string]*string{"room": nil, "topology.kubernetes.io/zone": new("b")}}
	if err := s.Apply(&r); err != nil || r.Price != 9 || !r.Roles.NoProvide || r.Roles.NoConsume || !reflect.DeepEqual(r.Labels, map[string]string{"topology.kubernetes.io/zone": "b"}) || was["room"] != "1" {
		t.Errorf("%+v, %v; before %v", r, err, was)
	}
	for range maxLabels {
		s.Labels[strings.Repeat("x", len(s.Labels)+1)] = new("")
	}
	if err := s.Apply(&r); err == nil {
		t.Error("any number of labels")
	}
}

// A longer round trip is never nearer.
func TestNearness(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.Int64Range(0, int64(2*time.Second)).Draw(t, "a")
		b := rapid.Int64Range(a, int64(2*time.Second)).Draw(t, "b")
		x, y := Nearness(time.Duration(a)), Nearness(time.Duration(b))
		if x < y || x > MaxNearness || y < 0 {
			t.Fatalf("%v is %d, %v is %d", a, x, b, y)
		}
	})
	if Nearness(300*time.Microsecond) != MaxNearness || Nearness(time.Second) != 0 {
		t.Error("a cable is nearest, a second is farthest")
	}
}
