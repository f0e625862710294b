// Package e2e tests Rivulet as its users meet it: the real binary on three
// devices of a lab, one LAN, no configuration, no Internet.
package e2e

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

// devices are a, b and c, peered; the tests share them and leave them peered.
var devices map[string]*lab.Device
var theLab *lab.Lab

// why is set when the lab cannot be had: the tests skip with it.
var why string

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e: "+err.Error())
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
		why = "needs the binary: make build"
	}
	if why != "" {
		return m.Run(), nil
	}
	dir, err := os.MkdirTemp("/var/lib", "rivulet-lab-e2e-")
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
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	theLab, err = lab.Up(ctx, lab.Options{
		Dir: dir, Binary: binary(), Devices: 3,
		Env: map[string][]string{"": {"RIVULET_RESERVE_CPU=" + mainjob.ReserveCPU()}},
	})
	if err != nil {
		return 1, err
	}
	all, err := theLab.Devices()
	if err != nil {
		return 1, err
	}
	devices = map[string]*lab.Device{}
	for _, d := range all {
		devices[d.Name] = d
	}
	for _, d := range all {
		if err := d.WaitPeered(ctx, 2); err != nil {
			return 1, err
		}
	}
	if err := mainjob.ImportImage(ctx, all); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// tellLogs prints the end of what each device's supervisor said.
func tellLogs(dir string) {
	for _, name := range []string{"a", "b", "c"} {
		raw, err := os.ReadFile(filepath.Join(dir, name, "root/var/log/rivulet.log"))
		if err != nil {
			continue
		}
		if len(raw) > 6000 {
			raw = raw[len(raw)-6000:]
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
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

// must runs a program on a device and returns its output.
func must(t *testing.T, ctx context.Context, d *lab.Device, args ...string) string {
	t.Helper()
	out, err := d.Run(ctx, args...)
	if err != nil {
		t.Fatal(err)
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
