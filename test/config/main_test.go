// Package config tests the configuration on running devices: the real binary, one
// lab of three. What a part does with its values is tested where the part is.
package config

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

// cFile is where c's configuration is: not there when c starts.
const cFile = "/root/c.yaml"

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "config: "+err.Error())
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
	dir, err := os.MkdirTemp("/var/lib", "rivulet-lab-config-")
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
	l, err := lab.Up(ctx, lab.Options{Dir: dir, Binary: binary(), Devices: 3, Env: map[string][]string{"c": {"RIVULET_CONFIG=" + cFile}}})
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
	for _, name := range []string{"a", "b", "c"} {
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

// write replaces a file on a device as a careful editor does.
func write(t *testing.T, ctx context.Context, d *lab.Device, path, text string) {
	t.Helper()
	must(t, ctx, d, "sh", "-c", `umask 077; mkdir -p "$(dirname "$1")" && printf '%s' "$2" > "$1.tmp" && mv "$1.tmp" "$1"`, "sh", path, text)
}

func status(t *testing.T, ctx context.Context, d *lab.Device) (st api.Status) {
	t.Helper()
	r := on(t, ctx, d, "rivulet", "status", "-o", "json")
	if err := json.Unmarshal([]byte(r.out), &st); err != nil {
		t.Fatalf("status of %s: %v: %s", d.Name, err, r.errOut)
	}
	return st
}

// shows waits until the printed status has all words of want and none of not.
func shows(t *testing.T, ctx context.Context, d *lab.Device, want []string, not ...string) {
	t.Helper()
	eventually(t, ctx, fmt.Sprintf("%s shows %q", d.Name, want), func() error {
		text := on(t, ctx, d, "rivulet", "status").out
		for _, w := range want {
			if !strings.Contains(text, w) {
				return fmt.Errorf("%q is missing in:\n%s", w, text)
			}
		}
		for _, w := range not {
			if strings.Contains(text, w) {
				return fmt.Errorf("%q is there in:\n%s", w, text)
			}
		}
		return nil
	})
}

// eventually polls f until it returns nil, for half a minute at most.
func eventually(t *testing.T, ctx context.Context, what string, f func() error) {
	t.Helper()
	begun := time.Now()
	for {
		err := f()
		if err == nil {
			t.Logf("%s: %.1f s", what, time.Since(begun).Seconds())
			return
		}
		if ctx.Err() != nil || time.Since(begun) > 30*time.Second {
			t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(100 * time.Millisecond) // between two looks
	}
}
