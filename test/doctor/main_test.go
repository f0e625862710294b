// Package doctor tests `rivulet doctor`, the health list and `rivulet support` on
// devices of a lab: a healthy one, and one broken thing after the other made for
// real. Each test leaves both devices as it found them.
package doctor

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

	"rivulet/appliance/doctor"
	"rivulet/test/lab"
)

var (
	theLab *lab.Lab
	a, b   *lab.Device // a keeps running; rivulet is stopped on b where a test says so
	why    string      // set when there can be no lab
)

func binary() string {
	if b := os.Getenv("RIVULET_BIN"); b != "" {
		return b
	}
	return filepath.Join("..", "..", "bin", "rivulet")
}

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "doctor: "+err.Error())
		code = 1
	}
	os.Exit(code)
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
	dir, err := os.MkdirTemp("/var/lib", "rivulet-lab-doctor-")
	if err != nil {
		return 1, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if code != 0 {
			tellLogs(dir)
		}
		err = errors.Join(err, lab.Down(ctx, dir))
	}()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
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
		if err := d.WaitPeered(ctx, 1); err != nil {
			return 1, err
		}
	}
	return m.Run(), nil
}

func tellLogs(dir string) {
	for _, name := range []string{"a", "b"} {
		raw, _ := os.ReadFile(filepath.Join(dir, name, "root/var/log/rivulet.log")) // a log that is not there tells nothing
		if len(raw) > 5000 {
			raw = raw[len(raw)-5000:]
		}
		fmt.Fprintf(os.Stderr, "--- the end of the log of device %s\n%s\n", name, raw)
	}
}

// need skips without a lab and bounds the test.
func need(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	if why != "" {
		t.Skip(why)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), limit)
	t.Cleanup(cancel)
	return ctx
}

// on runs a program on a device; it may fail.
func on(t *testing.T, ctx context.Context, d *lab.Device, args ...string) (out, errOut string, code int) {
	t.Helper()
	cmd, err := d.Command(ctx, args...)
	if err != nil {
		t.Fatal(err)
	}
	var o, e strings.Builder
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &o, &e, time.Second
	err = cmd.Run()
	if err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatalf("%v: %v", args, err)
	}
	return o.String(), e.String(), cmd.ProcessState.ExitCode()
}

// must runs a program on a device that has to succeed.
func must(t *testing.T, ctx context.Context, d *lab.Device, args ...string) string {
	t.Helper()
	out, errOut, code := on(t, ctx, d, args...)
	if code != 0 {
		t.Fatalf("%s: %v: exit code %d: %s", d.Name, args, code, errOut)
	}
	return out
}

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

// eventually polls f until it returns nil.
func eventually(t *testing.T, ctx context.Context, f func() error) {
	t.Helper()
	for {
		err := f()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatal(err)
		case <-time.After(200 * time.Millisecond): // between two looks
		}
	}
}
