// Package systemd tests Rivulet as a service: installed by its own command on a
// device whose PID 1 is systemd, watched, booted, reset and taken out again, with
// nothing left. A second device, without systemd, is its neighbour and is reset by
// hand meanwhile; a third gets it as a package.
package systemd

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
)

var devices map[string]*lab.Device

var suite = labtest.Suite{
	Needs: map[string]string{"/lib/systemd/systemd": "make deps"},
	Prepare: func(_ context.Context, s *labtest.Suite) error { // a and c have no Rivulet yet
		devices = s.Devices
		return nil
	},
	Tell: func(ctx context.Context, s *labtest.Suite) {
		if out, err := s.Devices["a"].Run(ctx, "journalctl", "--no-pager", "-n", "60"); err == nil {
			fmt.Fprintf(os.Stderr, "--- the end of the journal of device a\n%s\n", out)
		}
	},
}

func TestMain(m *testing.M) {
	suite.Main(m, "systemd", lab.Options{Devices: 3, Systemd: []string{"a", "c"}})
}

// need skips without a lab and bounds the test.
func need(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	return suite.Bounded(t, limit)
}
