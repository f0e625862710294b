// Package addons tests what other clusters run as containers and Rivulet has
// inside: volumes, resource metrics, Services for the LAN, cluster DNS. One lab of
// two devices, a and b, serves all tests.
package addons

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"rivulet/test/lab"
	"rivulet/test/mainjob"
)

var (
	theLab *lab.Lab
	a, b   *lab.Device
	// why is set when the lab cannot be had: the tests skip with it.
	why string
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == helperArg {
		helper(os.Args[2:]) // on a device
	}
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "addons: "+err.Error())
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	binary := os.Getenv("RIVULET_BIN")
	if binary == "" {
		binary = filepath.Join("..", "..", "bin", "rivulet")
	}
	switch _, err := os.Stat(binary); {
	case os.Geteuid() != 0:
		why = "needs root for namespaces"
	case err != nil:
		why = "needs the binary: make build"
	}
	if why != "" {
		return m.Run(), nil
	}
	dir, err := os.MkdirTemp("/var/lib", "rivulet-lab-addons-")
	if err != nil {
		return 1, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if code != 0 {
			for _, d := range []*lab.Device{a, b} {
				tellLog(d)
			}
		}
		err = errors.Join(err, lab.Down(ctx, dir))
	}()
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	if theLab, err = lab.Up(ctx, lab.Options{Dir: dir, Binary: binary, Devices: 2}); err != nil {
		return 1, err
	}
	all, err := theLab.Devices()
	if err != nil {
		return 1, err
	}
	a, b = all[0], all[1]
	for _, d := range all {
		if err := d.WaitReady(ctx); err != nil {
			return 1, err
		}
	}
	if err := mainjob.ImportImage(ctx, all); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

func tellLog(d *lab.Device) {
	if d == nil {
		return
	}
	if raw, err := os.ReadFile(d.Log()); err == nil {
		fmt.Fprintf(os.Stderr, "--- the end of the log of device %s\n%s\n", d.Name, raw[max(0, len(raw)-6000):])
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

func kubectl(t *testing.T, ctx context.Context, d *lab.Device, args ...string) string {
	t.Helper()
	out, err := d.Kubectl(ctx, args...)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// apply has a device's kubectl apply a manifest.
func apply(t *testing.T, ctx context.Context, d *lab.Device, manifest string) {
	t.Helper()
	if _, err := d.Run(ctx, "sh", "-c", `printf %s "$1" | rivulet kubectl apply -f -`, "apply", manifest); err != nil {
		t.Fatal(err)
	}
}

// eventually polls f until it returns nil or ctx ends.
func eventually(t *testing.T, ctx context.Context, what string, f func() error) time.Duration {
	t.Helper()
	begun := time.Now()
	if err := mainjob.Eventually(ctx, f); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	took := time.Since(begun)
	t.Logf("%s: %.1f s", what, took.Seconds())
	return took
}

// says waits until kubectl's answer is want.
func says(t *testing.T, ctx context.Context, d *lab.Device, want string, args ...string) time.Duration {
	t.Helper()
	return eventually(t, ctx, fmt.Sprintf("%q from kubectl %s", want, strings.Join(args, " ")), func() error {
		out, err := d.Kubectl(ctx, args...)
		if err == nil && strings.TrimSpace(out) != want {
			err = fmt.Errorf("it is %q", out)
		}
		return err
	})
}

// event waits for one that has the reason and the text.
func event(t *testing.T, ctx context.Context, d *lab.Device, reason, text string) {
	t.Helper()
	eventually(t, ctx, "event "+reason, func() error {
		out, err := d.Kubectl(ctx, "get", "events", "-A", "--field-selector=reason="+reason, "-o", "jsonpath={.items[*].message}")
		if err == nil && !strings.Contains(out, text) {
			err = fmt.Errorf("no %q in %q", text, out)
		}
		return err
	})
}
