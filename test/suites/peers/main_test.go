// Package peers tests, on two devices of a lab with the real binary, what there is to
// see of a peer and what the LAN sees of a device: the doctor with each layer broken
// in turn, Peer objects with their events, and a scan of all ports. The tests share the
// devices and leave them running and peered, but for the last, which ends the peering.
package peers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"rivulet/appliance/diagnose/doctor/peercheck"
	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
)

var (
	suite = labtest.Suite{Prepare: func(ctx context.Context, s *labtest.Suite) error {
		a, b = s.Devices["a"], s.Devices["b"]
		if err := errors.Join(install(a), install(b)); err != nil {
			return err
		}
		return labtest.Peered(ctx, s)
	}}
	a, b *lab.Device
)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		play(role)
		return
	}
	suite.Main(m, "peers", lab.Options{Devices: 2})
}

func install(d *lab.Device) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	raw, err := os.ReadFile(exe)
	if err != nil {
		return err
	}
	return os.WriteFile(d.Path("/var/lib/peers-test"), raw, 0o755)
}

// examine is `rivulet doctor peer` on a device.
func examine(t *testing.T, ctx context.Context, d *lab.Device, name string) (rep peercheck.Report, code int) {
	t.Helper()
	cmd, err := d.Command(ctx, "rivulet", "doctor", "peer", name, "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if err := json.Unmarshal(out, &rep); err != nil {
		return rep, -1
	}
	return rep, cmd.ProcessState.ExitCode()
}

// awaitLayer waits until the doctor names the layer; empty is none.
func awaitLayer(t *testing.T, ctx context.Context, d *lab.Device, name string, layers ...string) peercheck.Report {
	t.Helper()
	var rep peercheck.Report
	await.NoError(t, ctx, 0, fmt.Sprintf("the doctor names %q", layers), func() error {
		var code int
		rep, code = examine(t, ctx, d, name)
		l, _ := rep.Failed()
		for _, want := range layers {
			if l.Name == want && (code == 1) == (want != "") && code >= 0 {
				return nil
			}
		}
		return fmt.Errorf("doctor names %q (%s), exit code %d, not %q", l.Name, l.Text, code, layers)
	})
	return rep
}
