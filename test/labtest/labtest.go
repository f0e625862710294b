// Package labtest is the frame of a suite of tests on devices: one lab for all of
// them, made before the first and taken down after the last, with the end of the
// devices' logs where a test failed. Without root or the binary there is no lab, and
// the tests skip with the reason.
package labtest

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

	"rivulet/appliance/api"
	"rivulet/test/lab"
)

// tail is how many bytes of a log are told.
const tail = 6000

// Suite is a lab and its devices by name. Its zero value has none.
type Suite struct {
	Lab     *lab.Lab
	Devices map[string]*lab.Device
	why     string // set when there can be no lab
}

// Binary is the rivulet under test: RIVULET_BIN, or what make build has made.
func Binary() string {
	if b := os.Getenv("RIVULET_BIN"); b != "" {
		return b
	}
	return filepath.Join("..", "..", "bin", "rivulet")
}

// Main makes the lab that o describes (but for Dir and Binary), waits until all
// devices are ready, runs the tests and ends the process. Logs are those told
// beside the supervisor's when something failed, as paths on a device.
func (s *Suite) Main(m *testing.M, name string, o lab.Options, logs ...string) {
	code, err := s.run(m, name, o, append([]string{"/var/log/rivulet.log"}, logs...))
	if err != nil {
		fmt.Fprintln(os.Stderr, name+": "+err.Error())
		code = 1
	}
	os.Exit(code)
}

func (s *Suite) run(m *testing.M, name string, o lab.Options, logs []string) (code int, err error) {
	switch _, err := os.Stat(Binary()); {
	case os.Geteuid() != 0:
		s.why = "needs root for namespaces"
	case err != nil:
		s.why = "needs the binary: make build, or set RIVULET_BIN"
	}
	if s.why != "" {
		return m.Run(), nil
	}
	if o.Dir, err = os.MkdirTemp("/var/lib", "rivulet-lab-"+name+"-"); err != nil {
		return 1, err
	}
	o.Binary = Binary()
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if code != 0 {
			tellLogs(o.Dir, logs)
		}
		err = errors.Join(err, lab.Down(ctx, o.Dir))
	}()
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	if s.Lab, err = lab.Up(ctx, o); err != nil {
		return 1, err
	}
	all, err := s.Lab.Devices()
	if err != nil {
		return 1, err
	}
	s.Devices = map[string]*lab.Device{}
	for _, d := range all {
		s.Devices[d.Name] = d
		if err := d.WaitReady(ctx); err != nil {
			return 1, err
		}
	}
	return m.Run(), nil
}

// tellLogs reads what is in the lab's folder: it may be half made.
func tellLogs(dir string, logs []string) {
	roots, _ := filepath.Glob(filepath.Join(dir, "*", "root"))
	for _, root := range roots {
		for _, log := range logs {
			raw, _ := os.ReadFile(filepath.Join(root, log)) // a log that is not there tells nothing
			fmt.Fprintf(os.Stderr, "--- the end of %s of device %s\n%s\n", log, filepath.Base(filepath.Dir(root)), raw[max(0, len(raw)-tail):])
		}
	}
}

// Bounded skips without a lab.
func (s *Suite) Bounded(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	if s.why != "" {
		t.Skip(s.why)
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

// Result is how a program ended.
type Result struct {
	Code        int
	Out, ErrOut string
}

// On runs a program on a device; it may fail.
func On(t *testing.T, ctx context.Context, d *lab.Device, args ...string) Result {
	t.Helper()
	cmd, err := d.Command(ctx, args...)
	if err != nil {
		t.Fatal(err)
	}
	var out, errOut strings.Builder
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &out, &errOut, time.Second
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatalf("%v: %v", args, err)
	}
	return Result{cmd.ProcessState.ExitCode(), out.String(), errOut.String()}
}

// Must runs a program that has to succeed, and returns what it printed without the
// blanks around it.
func Must(t *testing.T, ctx context.Context, d *lab.Device, args ...string) string {
	t.Helper()
	r := On(t, ctx, d, args...)
	if r.Code != 0 {
		t.Fatalf("%s: %v: exit code %d: %s%s", d.Name, args, r.Code, r.Out, r.ErrOut)
	}
	return strings.TrimSpace(r.Out)
}

// Status is all that the device says of itself, ready or not.
func Status(t *testing.T, ctx context.Context, d *lab.Device) (st api.Status) {
	t.Helper()
	r := On(t, ctx, d, "rivulet", "status", "-o", "json")
	if err := json.Unmarshal([]byte(r.Out), &st); err != nil {
		t.Fatalf("status of %s: %v: %s", d.Name, err, r.ErrOut)
	}
	return st
}

// Eventually polls f until it returns nil, within the limit.
func Eventually(t *testing.T, ctx context.Context, limit time.Duration, what string, f func() error) {
	t.Helper()
	begun := time.Now()
	for {
		err := f()
		if err == nil {
			t.Logf("%s: %.1f s", what, time.Since(begun).Seconds())
			return
		}
		if ctx.Err() != nil || time.Since(begun) > limit {
			t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(100 * time.Millisecond) // between two looks
	}
}
