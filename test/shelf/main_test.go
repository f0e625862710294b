// Package shelf tests what a device goes through on a shelf in a lab while nobody
// looks after it: cables, addresses, links of other kinds, and clocks. The real
// binary runs on two devices that are peers; the tests share them and leave them
// running and peered.
package shelf

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"rivulet/appliance/api"
	"rivulet/test/lab"
	"rivulet/test/mainjob"
)

var (
	theLab *lab.Lab
	a, b   *lab.Device
	why    string // set when there can be no lab: the tests skip with it
)

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "shelf: "+err.Error())
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
	dir, err := os.MkdirTemp("/var/lib", "rivulet-lab-shelf-")
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
	if err := mainjob.ImportImage(ctx, devices); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// tellLogs prints the end of what each device's supervisor said.
func tellLogs(dir string) {
	for _, name := range []string{"a", "b"} {
		raw, err := os.ReadFile(filepath.Join(dir, name, "root/var/log/rivulet.log"))
		if err != nil {
			continue
		}
		if len(raw) > 8000 {
			raw = raw[len(raw)-8000:]
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

// must runs a program on a device and returns its output without the last newline.
func must(t *testing.T, ctx context.Context, d *lab.Device, args ...string) string {
	t.Helper()
	out, err := d.Run(ctx, args...)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSuffix(out, "\n")
}

func kubectl(t *testing.T, ctx context.Context, d *lab.Device, args ...string) string {
	t.Helper()
	return must(t, ctx, d, append([]string{"rivulet", "kubectl"}, args...)...)
}

// within polls f until it returns nil, and fails after the limit.
func within(t *testing.T, ctx context.Context, limit time.Duration, what string, f func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	begun := time.Now()
	if err := mainjob.Eventually(ctx, func() error { return f(ctx) }); err != nil {
		t.Fatalf("%s: not within %s: %v", what, limit, err)
	}
	t.Logf("%s: %.1f s", what, time.Since(begun).Seconds())
}

// ask returns all that the device says of itself, ready or not.
func ask(ctx context.Context, d *lab.Device) (st api.Status, err error) {
	out, err := d.Run(ctx, "rivulet", "status", "-o", "json")
	if bad := json.Unmarshal([]byte(out), &st); bad != nil {
		return st, fmt.Errorf("status of %s: %w", d.Name, errors.Join(bad, err))
	}
	return st, nil
}

// status is ask where rivulet runs.
func status(t *testing.T, ctx context.Context, d *lab.Device) api.Status {
	t.Helper()
	st, err := ask(ctx, d)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// pod makes a pod of a device's own and waits until it is ready.
func pod(t *testing.T, ctx context.Context, d *lab.Device, name string) {
	t.Helper()
	kubectl(t, ctx, d, "run", name, "--image="+mainjob.Image, "--overrides",
		`{"spec":{"terminationGracePeriodSeconds":1,"nodeName":"`+d.Name+`"}}`)
	kubectl(t, ctx, d, "wait", "--for=condition=Ready", "pod/"+name, "--timeout=60s")
}
