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
	"path/filepath"
	"strings"
	"testing"
	"time"

	"rivulet/appliance/doctor/peercheck"
	"rivulet/test/lab"
)

var (
	theLab *lab.Lab
	a, b   *lab.Device
	why    string // set when there can be no lab: the tests skip with it
)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		play(role)
		return
	}
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "peers: "+err.Error())
		code = 1
	}
	os.Exit(code)
}

func binary() string {
	if b := os.Getenv("RIVULET_BIN"); b != "" {
		return b
	}
	return filepath.Join("..", "..", "bin", "rivulet")
}

func run(m *testing.M) (code int, err error) {
	switch _, err := os.Stat(binary()); {
	case os.Geteuid() != 0:
		why = "needs root for namespaces"
	case err != nil:
		why = "needs the binary: make build, or set RIVULET_BIN"
	}
	if why != "" {
		return m.Run(), nil
	}
	dir, err := os.MkdirTemp("/var/lib", "rivulet-lab-peers-")
	if err != nil {
		return 1, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if code != 0 {
			for _, name := range []string{"a", "b"} {
				raw, _ := os.ReadFile(filepath.Join(dir, name, "root/var/log/rivulet.log"))
				fmt.Fprintf(os.Stderr, "--- the end of the log of device %s\n%s\n", name, raw[max(0, len(raw)-5000):])
			}
		}
		err = errors.Join(err, lab.Down(ctx, dir), os.RemoveAll(dir))
	}()
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	if theLab, err = lab.Up(ctx, lab.Options{Dir: dir, Binary: binary(), Devices: 2}); err != nil {
		return 1, err
	}
	devices, err := theLab.Devices()
	if err != nil {
		return 1, err
	}
	a, b = devices[0], devices[1]
	for _, d := range devices {
		if err := install(d); err != nil {
			return 1, err
		}
		if err := d.WaitPeered(ctx, 1); err != nil {
			return 1, err
		}
	}
	return m.Run(), nil
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

func need(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	if why != "" {
		t.Skip(why)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), limit)
	t.Cleanup(cancel)
	return ctx
}

// await polls until ok returns an empty text, which says what is missing.
func await(t *testing.T, ctx context.Context, ok func() string) {
	t.Helper()
	missing := ""
	for {
		if missing = ok(); missing == "" {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("in vain: %s", missing)
		case <-time.After(300 * time.Millisecond):
		}
	}
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
	await(t, ctx, func() string {
		var code int
		rep, code = examine(t, ctx, d, name)
		l, _ := rep.Failed()
		for _, want := range layers {
			if l.Name == want && (code == 1) == (want != "") && code >= 0 {
				return ""
			}
		}
		return fmt.Sprintf("doctor names %q (%s), exit code %d, not %q", l.Name, l.Text, code, layers)
	})
	return rep
}

func kubectl(t *testing.T, ctx context.Context, d *lab.Device, args ...string) string {
	t.Helper()
	out, err := d.Kubectl(ctx, args...)
	if err != nil {
		t.Fatalf("%v: %v: %s", args, err, out)
	}
	return strings.TrimSpace(out)
}
