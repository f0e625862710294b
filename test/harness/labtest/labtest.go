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
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"rivulet/appliance/api"
	"rivulet/offload/policy"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/mainjob"
	"rivulet/test/harness/tree"
)

const (
	tail      = 6000            // bytes of a log that are told
	upTimeout = 4 * time.Minute // until the devices are prepared
)

// Suite is a lab and its devices by name. Its zero value has none.
type Suite struct {
	// Prepare makes the devices what the tests begin with; without it all are ready.
	Prepare func(ctx context.Context, s *Suite) error
	// Binary is the rivulet under test, if it is not Binary().
	Binary string
	// Needs are further files without which there are no tests, and what makes each.
	Needs map[string]string
	// Tell prints what else there is to know when something failed.
	Tell func(ctx context.Context, s *Suite)

	Lab     *lab.Lab
	Devices map[string]*lab.Device
	why     string // set when there can be no lab
}

// Binary is the rivulet under test: RIVULET_BIN, or bin/rivulet of this tree, wherever the
// test is started.
func Binary() string {
	if b := os.Getenv("RIVULET_BIN"); b != "" {
		return b
	}
	return tree.Path("bin", "rivulet")
}

// longEnv asks for the tests that take long; make test-devices LONG=1 sets it.
const longEnv = "RIVULET_LONG"

// Long is whether the tests that take minutes or hours run, too.
func Long() bool { return os.Getenv(longEnv) != "" }

// NeedsLong skips a test that takes long, unless such tests are asked for.
func NeedsLong(t *testing.T) {
	t.Helper()
	if !Long() {
		t.Skip("takes long: make test-devices LONG=1, or set " + longEnv + "=1")
	}
}

// OwnDir makes the folder for a lab of a test's own, which ends with the test.
func OwnDir(t *testing.T, name string) string {
	t.Helper()
	dir, err := os.MkdirTemp("/var/lib", "rivulet-lab-"+name+"-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := lab.Down(ctx, dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// Main is Run, and ends the process.
func (s *Suite) Main(m *testing.M, name string, o lab.Options, logs ...string) {
	os.Exit(s.Run(m, name, o, logs...))
}

// Run makes the lab that o describes (but for Dir and Binary), prepares it, runs the
// tests and returns their exit code. Logs are those told beside the supervisor's when
// something failed, as paths on a device.
func (s *Suite) Run(m *testing.M, name string, o lab.Options, logs ...string) int {
	code, err := s.run(m, name, o, append([]string{"/var/log/rivulet.log"}, logs...))
	if err != nil {
		fmt.Fprintln(os.Stderr, name+": "+err.Error())
		code = 1
	}
	return code
}

func (s *Suite) run(m *testing.M, name string, o lab.Options, logs []string) (code int, err error) {
	if o.Binary = s.Binary; o.Binary == "" {
		o.Binary = Binary()
	}
	if s.why = missing(o.Binary, s.Needs); s.why != "" {
		return m.Run(), nil
	}
	if o.Dir, err = os.MkdirTemp("/var/lib", "rivulet-lab-"+name+"-"); err != nil {
		return 1, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if code != 0 {
			s.tellLogs(ctx, o.Dir, logs)
		}
		err = errors.Join(err, lab.Down(ctx, o.Dir))
	}()
	ctx, cancel := context.WithTimeout(context.Background(), upTimeout)
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
	}
	prepare := s.Prepare
	if prepare == nil {
		prepare = Ready
	}
	if err := prepare(ctx, s); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// missing says what there can be no lab without, in words for a skipped test.
func missing(binary string, needs map[string]string) string {
	if os.Geteuid() != 0 {
		return "needs root for namespaces"
	}
	if _, err := os.Stat(binary); err != nil {
		return "needs the binary " + binary + ": make build, or set RIVULET_BIN"
	}
	for file, cure := range needs {
		if _, err := os.Stat(file); err != nil {
			return "needs " + file + ": " + cure
		}
	}
	return ""
}

// Ready waits until all devices are.
func Ready(ctx context.Context, s *Suite) error {
	for _, d := range s.All() {
		if err := d.WaitReady(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Peered waits until all devices are ready and each is the peer of all others.
func Peered(ctx context.Context, s *Suite) error {
	for _, d := range s.All() {
		if err := d.WaitPeered(ctx, len(s.Devices)-1); err != nil {
			return err
		}
	}
	return nil
}

// PeeredWithImage is Peered, and all devices have the image of test/harness/mainjob.
func PeeredWithImage(ctx context.Context, s *Suite) error {
	if err := Peered(ctx, s); err != nil {
		return err
	}
	return mainjob.ImportImage(ctx, s.All())
}

// All are the devices in the order of their names.
func (s *Suite) All() []*lab.Device {
	return slices.SortedFunc(maps.Values(s.Devices), func(x, y *lab.Device) int { return strings.Compare(x.Name, y.Name) })
}

// tellLogs reads what is in the lab's folder, which may be half made, or on the disk of
// a device that has its own.
func (s *Suite) tellLogs(ctx context.Context, dir string, logs []string) {
	roots, _ := filepath.Glob(filepath.Join(dir, "*", "root"))
	for _, root := range roots {
		name := filepath.Base(filepath.Dir(root))
		for _, log := range logs {
			path := filepath.Join(root, log)
			if d := s.Devices[name]; d != nil {
				path = d.Path(log)
			}
			if raw, err := os.ReadFile(path); err == nil { // a log that is not there tells nothing
				fmt.Fprintf(os.Stderr, "--- the end of %s of device %s\n%s\n", log, name, raw[max(0, len(raw)-tail):])
			}
		}
	}
	if s.Tell != nil && s.Lab != nil {
		s.Tell(ctx, s)
	}
}

// Need skips a test without a lab.
func (s *Suite) Need(t *testing.T) {
	t.Helper()
	if s.why != "" {
		t.Skip(s.why)
	}
}

// Bounded skips without a lab, and bounds what a test does. What is done in a
// t.Cleanup is within it, too.
func (s *Suite) Bounded(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	s.Need(t)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), limit)
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

// Output runs a program that has to succeed, and returns all that it printed.
func Output(t *testing.T, ctx context.Context, d *lab.Device, args ...string) string {
	t.Helper()
	r := On(t, ctx, d, args...)
	if r.Code != 0 {
		t.Fatalf("%s: %v: exit code %d: %s%s", d.Name, args, r.Code, r.Out, r.ErrOut)
	}
	return r.Out
}

// Must is Output without the blanks around it.
func Must(t *testing.T, ctx context.Context, d *lab.Device, args ...string) string {
	t.Helper()
	return strings.TrimSpace(Output(t, ctx, d, args...))
}

// Kubectl runs one for a user of d; it has to succeed.
func Kubectl(t *testing.T, ctx context.Context, d *lab.Device, args ...string) string {
	t.Helper()
	return Must(t, ctx, d, append([]string{"rivulet", "kubectl"}, args...)...)
}

// Twin is the name of the twin that a namespace has on its only provider's device.
func Twin(t *testing.T, ctx context.Context, provider *lab.Device, home string) string {
	t.Helper()
	var list corev1.NamespaceList
	if err := json.Unmarshal([]byte(Kubectl(t, ctx, provider, "get", "namespaces", "-l", policy.OriginLabel, "-o", "json")), &list); err != nil {
		t.Fatal(err)
	}
	for _, ns := range list.Items {
		if ns.Annotations[policy.HomeNamespaceAnnotation] == home {
			return ns.Name
		}
	}
	t.Fatalf("namespace %s has no twin on %s", home, provider.Name)
	return ""
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
