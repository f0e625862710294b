// Package doctor tests `rivulet doctor`, the health list and `rivulet support` on
// devices of a lab: a healthy one, and one broken thing after the other made for
// real. Each test leaves both devices as it found them.
package doctor

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"rivulet/appliance/diagnose/doctor"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
)

var (
	suite = labtest.Suite{Prepare: func(ctx context.Context, s *labtest.Suite) error {
		a, b = s.Devices["a"], s.Devices["b"]
		return labtest.Peered(ctx, s)
	}}
	a, b *lab.Device // a keeps running; rivulet is stopped on b where a test says so
)

func TestMain(m *testing.M) { suite.Main(m, "doctor", lab.Options{Devices: 2}) }

// examine runs the doctor; flags come before -o json.
func examine(t *testing.T, ctx context.Context, d *lab.Device, flags ...string) (map[string]doctor.Finding, int) {
	t.Helper()
	args := append(append([]string{"rivulet", "doctor"}, flags...), "-o", "json")
	out, errOut, code := on(t, ctx, d, args...)
	var rep doctor.Report
	if err := json.Unmarshal([]byte(out), &rep); err != nil {
		t.Fatalf("%v: exit code %d, %v: %q %q", args, code, err, out, errOut)
	}
	found := map[string]doctor.Finding{}
	for _, f := range rep.Findings {
		found[f.Name] = f
	}
	return found, code
}

// wants checks one probe: how it ended, and words of its text and cure.
func wants(t *testing.T, f doctor.Finding, status doctor.Status, words ...string) {
	t.Helper()
	if f.Status != status {
		t.Errorf("%s: %s: %s; want %s", f.Name, f.Status, f.Text, status)
	}
	for _, w := range words {
		if !strings.Contains(f.Text+" → "+f.Cure, w) {
			t.Errorf("%s says %q → %q, want %q in it", f.Name, f.Text, f.Cure, w)
		}
	}
}

// on runs a program on a device; it may fail.
func on(t *testing.T, ctx context.Context, d *lab.Device, args ...string) (out, errOut string, code int) {
	t.Helper()
	r := labtest.On(t, ctx, d, args...)
	return r.Out, r.ErrOut, r.Code
}
