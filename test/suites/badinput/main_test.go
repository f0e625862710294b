// Package badinput tests what Rivulet says and does when it is given what it
// cannot use: words, disks, databases, helpers, ports, neighbours and hosts. The
// real binary runs on two devices of a lab, both called pi. Each case wants the
// cause and a cure in one line, the right exit code, nothing lost, no crash loop,
// and that the rest goes on.
package badinput

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"rivulet/appliance/api"
	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
)

var suite = labtest.Suite{Prepare: labtest.Peered}

func TestMain(m *testing.M) {
	if role := os.Getenv("BADINPUT_ROLE"); role != "" {
		play(role)
		return
	}
	suite.Main(m, "badinput", lab.Options{Devices: 2, Env: map[string][]string{"": {"RIVULET_NAME=pi"}}})
}

// pair returns the lab's two devices, peered. A test leaves both running.
func pair(t *testing.T) (a, b *lab.Device) {
	t.Helper()
	ctx := suite.Bounded(t, 3*time.Minute)
	if err := labtest.Peered(ctx, &suite); err != nil {
		t.Fatal(err)
	}
	return suite.Devices["a"], suite.Devices["b"]
}

// limit bounds what a test does, its cleanup included.
func limit(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), d)
	t.Cleanup(cancel)
	return ctx
}

// result is how a program ended.
type result struct {
	code        int
	out, errOut string
}

func end(t *testing.T, cmd *exec.Cmd) result {
	t.Helper()
	var out, errOut strings.Builder
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &out, &errOut, time.Second
	if cmd.Env == nil {
		cmd.Env = environ()
	}
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%v: %v", cmd.Args, err)
	}
	return result{cmd.ProcessState.ExitCode(), out.String(), errOut.String()}
}

// environ is this program's environment without what is meant for it and for no rivulet.
func environ(more ...string) []string {
	mine := slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "RIVULET_") })
	return append(mine, more...)
}

// on runs a program on a device; it may fail.
func on(t *testing.T, d *lab.Device, args ...string) result {
	t.Helper()
	r := labtest.On(t, limit(t, time.Minute), d, args...)
	return result{r.Code, r.Out, r.ErrOut}
}

// must runs a program on a device that has to succeed.
func must(t *testing.T, d *lab.Device, args ...string) string {
	t.Helper()
	return labtest.Must(t, limit(t, time.Minute), d, args...)
}

// told checks an error: one line on standard error with all the words, and the exit code.
func told(t *testing.T, r result, code int, words ...string) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(r.errOut), "\n")
	last := lines[len(lines)-1]
	if r.code != code || !strings.HasPrefix(last, "rivulet: ") {
		t.Errorf("exit code %d, want %d; said %q", r.code, code, r.errOut)
	}
	for _, w := range words {
		if !strings.Contains(last, w) {
			t.Errorf("%q is missing in %q", w, last)
		}
	}
}

// status is what a device says of itself, and how `rivulet status` prints it.
func status(t *testing.T, d *lab.Device) (st api.Status, text string) {
	t.Helper()
	r := on(t, d, "rivulet", "status", "-o", "json")
	if r.out != "" {
		if err := json.Unmarshal([]byte(r.out), &st); err != nil {
			t.Fatal(err)
		}
	}
	return st, on(t, d, "rivulet", "status").out
}

// shows waits until the printed status has all the words.
func shows(t *testing.T, d *lab.Device, within time.Duration, words ...string) string {
	t.Helper()
	var text string
	eventually(t, within, func() error {
		_, text = status(t, d)
		for _, w := range words {
			if !strings.Contains(text, w) {
				return fmt.Errorf("%q is missing in the status of %s:\n%s", w, d.Name, text)
			}
		}
		return nil
	})
	return text
}

// eventually polls f until it returns nil.
func eventually(t *testing.T, within time.Duration, f func() error) {
	t.Helper()
	await.NoError(t, context.WithoutCancel(t.Context()), within, "it is so", f) // in cleanups, too
}

func stop(t *testing.T, d *lab.Device) {
	t.Helper()
	if err := d.Stop(limit(t, 30*time.Second)); err != nil {
		t.Fatal(err)
	}
}

func start(t *testing.T, d *lab.Device) {
	t.Helper()
	if err := d.Start(limit(t, 30*time.Second)); err != nil {
		t.Fatal(err)
	}
}

func ready(t *testing.T, d *lab.Device) {
	t.Helper()
	eventually(t, 90*time.Second, func() error { // also where the test itself has started rivulet
		if st, text := status(t, d); !st.Ready {
			return fmt.Errorf("%s is not ready:\n%s", d.Name, text)
		}
		return nil
	})
}

// pod makes a pod of the pause image at home and waits until it runs.
func pod(t *testing.T, d *lab.Device, name string) {
	t.Helper()
	eventually(t, 20*time.Second, func() error { // a new cluster has no service account in its first seconds
		if r := on(t, d, "rivulet", "kubectl", "run", name, "--image=rivulet.dev/pause:1", "--image-pull-policy=Never", "--restart=Always"); r.code != 0 {
			return errors.New(r.errOut)
		}
		return nil
	})
	must(t, d, "rivulet", "kubectl", "wait", "--for=condition=Ready", "pod/"+name, "--timeout=45s")
}

// life is a pod's container, when it started and how often: what must not change.
func life(t *testing.T, d *lab.Device, name string) string {
	t.Helper()
	return must(t, d, "rivulet", "kubectl", "get", "pod", name, "-o",
		"jsonpath={.spec.nodeName} {.status.podIP} {.status.containerStatuses[0].containerID} {.status.containerStatuses[0].state.running.startedAt} restarts={.status.containerStatuses[0].restartCount}")
}

// log is what the device's supervisor has said since mark, a length of its log.
func log(t *testing.T, d *lab.Device, mark int) string {
	t.Helper()
	raw, err := os.ReadFile(d.Log())
	if err != nil {
		t.Fatal(err)
	}
	return string(raw[min(mark, len(raw)):])
}

const state = "/var/lib/rivulet"
