// Package systemd tests Rivulet as a service: installed by its own command on a
// device whose PID 1 is systemd, watched, booted, reset and taken out again, with
// nothing left. A second device, without systemd, is its neighbour and is reset by
// hand meanwhile.
package systemd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"rivulet/test/lab"
	"rivulet/test/mainjob"
)

var devices = map[string]*lab.Device{}

// why is set when the lab cannot be had: the tests skip with it.
var why string

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "systemd: "+err.Error())
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
	_, noBinary := os.Stat(binary())
	_, noSystemd := os.Stat("/lib/systemd/systemd")
	switch {
	case os.Geteuid() != 0:
		why = "needs root for namespaces"
	case noBinary != nil:
		why = "needs the binary: make build"
	case noSystemd != nil:
		why = "needs systemd: make deps"
	}
	if why != "" {
		return m.Run(), nil
	}
	dir, err := os.MkdirTemp("/var/lib", "rivulet-lab-systemd-")
	if err != nil {
		return 1, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if code != 0 {
			tellLogs(ctx)
		}
		err = errors.Join(err, lab.Down(ctx, dir))
	}()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	l, err := lab.Up(ctx, lab.Options{Dir: dir, Binary: binary(), Devices: 2, Systemd: []string{"a"}})
	if err != nil {
		return 1, err
	}
	all, err := l.Devices()
	if err != nil {
		return 1, err
	}
	for _, d := range all {
		devices[d.Name] = d
	}
	return m.Run(), nil
}

func tellLogs(ctx context.Context) {
	if out, err := devices["a"].Run(ctx, "journalctl", "--no-pager", "-n", "60"); err == nil {
		fmt.Fprintf(os.Stderr, "--- the end of the journal of device a\n%s\n", out)
	}
	if out, err := devices["b"].Run(ctx, "tail", "-n", "40", "/var/log/rivulet.log"); err == nil {
		fmt.Fprintf(os.Stderr, "--- the end of the log of device b\n%s\n", out)
	}
}

// need skips without a lab and bounds the test.
func need(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	if why != "" {
		t.Skip(why)
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

// must runs a program on a device and returns its output.
func must(t *testing.T, ctx context.Context, d *lab.Device, args ...string) string {
	t.Helper()
	out, err := d.Run(ctx, args...)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return out
}

// eventually polls f until it returns nil or ctx ends.
func eventually(t *testing.T, ctx context.Context, what string, f func() error) {
	t.Helper()
	begun := time.Now()
	if err := mainjob.Eventually(ctx, f); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	t.Logf("%s: %.1f s", what, time.Since(begun).Seconds())
}
