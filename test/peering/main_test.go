// Package peering tests how peerings begin and end on running devices: the real binary,
// one lab of two. What each rule of trust does is tested where the rules are.
package peering

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

var (
	devices map[string]*lab.Device
	why     string // set when there can be no lab: the tests skip with it
)

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "peering: "+err.Error())
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
	dir, err := os.MkdirTemp("/var/lib", "rivulet-lab-peering-")
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
	l, err := lab.Up(ctx, lab.Options{Dir: dir, Binary: binary(), Devices: 2})
	if err != nil {
		return 1, err
	}
	all, err := l.Devices()
	if err != nil {
		return 1, err
	}
	devices = map[string]*lab.Device{}
	for _, d := range all {
		devices[d.Name] = d
		if err := d.WaitReady(ctx); err != nil {
			return 1, err
		}
	}
	return m.Run(), nil
}

func tellLogs(dir string) {
	for _, name := range []string{"a", "b"} {
		raw, _ := os.ReadFile(filepath.Join(dir, name, "root/var/log/rivulet.log"))
		if len(raw) > 6000 {
			raw = raw[len(raw)-6000:]
		}
		fmt.Fprintf(os.Stderr, "--- the end of the log of device %s\n%s\n", name, raw)
	}
}

// bounded skips without a lab.
func bounded(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	if why != "" {
		t.Skip(why)
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

// result is how a program ended.
type result struct {
	code        int
	out, errOut string
}

func on(t *testing.T, ctx context.Context, d *lab.Device, args ...string) result {
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
	return result{cmd.ProcessState.ExitCode(), out.String(), errOut.String()}
}

func must(t *testing.T, ctx context.Context, d *lab.Device, args ...string) string {
	t.Helper()
	r := on(t, ctx, d, args...)
	if r.code != 0 {
		t.Fatalf("%s: %v: exit code %d: %s%s", d.Name, args, r.code, r.out, r.errOut)
	}
	return strings.TrimSpace(r.out)
}

func status(t *testing.T, ctx context.Context, d *lab.Device) (st api.Status) {
	t.Helper()
	r := on(t, ctx, d, "rivulet", "status", "-o", "json")
	if err := json.Unmarshal([]byte(r.out), &st); err != nil {
		t.Fatalf("status of %s: %v: %s", d.Name, err, r.errOut)
	}
	return st
}

// eventually polls f until it returns nil, for a minute at most.
func eventually(t *testing.T, ctx context.Context, what string, f func() error) {
	t.Helper()
	begun := time.Now()
	for {
		err := f()
		if err == nil {
			t.Logf("%s: %.1f s", what, time.Since(begun).Seconds())
			return
		}
		if ctx.Err() != nil || time.Since(begun) > time.Minute {
			t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(100 * time.Millisecond) // between two looks
	}
}
