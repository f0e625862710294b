// Package labtest is the frame of a suite of tests on devices: one lab for all of
// them, made before the first and taken down after the last, with the end of the
// devices' logs where a test failed. Without root or the binary there is no lab, and
// the tests skip with the reason.
package labtest

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"rivulet/appliance/api"
	"rivulet/offload/policy"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/mainjob"
	"rivulet/test/harness/pressure"
	"rivulet/test/harness/tree"
)

const (
	tail      = 6000             // bytes of a log that are told
	lastWords = 20 * time.Second // before the time limit of the test program: it ends by a panic, and the lab with it
	labs      = "/var/lib"       // where the labs of tests are
)

// Suite is a lab and its devices by name. Its zero value has none.
type Suite struct {
	// Prepare makes the devices what the tests begin with; without it all are ready.
	Prepare func(ctx context.Context, s *Suite) error
	// Binary is the rivulet under test, if it is not Binary().
	Binary string
	// Needs are further files without which there are no tests, and what makes each.
	Needs map[string]string
	// Expected are the codes of health problems that its devices have from the start.
	Expected []string
	// LeavesNothing is set where each test leaves the lab as it was: one that does not fails.
	LeavesNothing bool
	// Tell prints what else there is to know when something failed.
	Tell func(ctx context.Context, s *Suite)

	Lab     *lab.Lab
	Devices map[string]*lab.Device
	why     string // set when there can be no lab

	watched sync.Map // names of tests whose machine is watched
}

// upTime is how long it may take until n devices are prepared, on two cores.
func upTime(n int) time.Duration { return 3*time.Minute + time.Duration(n)*time.Minute }

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

// OwnDir makes the folder for a lab of a test's own, which ends with the test, or with
// the process.
func OwnDir(t *testing.T, name string) string {
	t.Helper()
	dir, err := lab.OwnDir(labs, "rivulet-lab-"+name+"-")
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
	switch {
	case errors.Is(err, errNotUp): // at the start of the line, for what reads it
		fmt.Fprintln(os.Stderr, err.Error()+": "+name)
		code = 1
	case err != nil:
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
	if err := sweep(); err != nil {
		return 1, err
	}
	o.Warm = o.Memory == 0 // boards with a limit are those whose memory is judged
	if o.Dir, err = lab.OwnDir(labs, "rivulet-lab-"+name+"-"); err != nil {
		return 1, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if code != 0 {
			s.tellLogs(ctx, o.Dir, logs)
		}
		if down := lab.Down(ctx, o.Dir); s.Lab != nil || !errors.Is(down, lab.ErrNoLab) { // an Up that fails has removed all
			err = errors.Join(err, down)
		}
	}()
	if err := s.up(o); err != nil {
		return 1, fmt.Errorf("%w: %w", errNotUp, err)
	}
	flag.Parse()
	if limit := flag.Lookup("test.timeout").Value.(flag.Getter).Get().(time.Duration); limit > lastWords {
		defer time.AfterFunc(limit-lastWords, func() {
			fmt.Fprintf(os.Stderr, "--- the time limit of %s is nearly over\n", limit)
			s.tellLogs(context.Background(), o.Dir, logs)
		}).Stop()
	}
	return m.Run(), nil
}

// errNotUp is a verdict of its own: no test has run.
var errNotUp = errors.New("lab did not come up")

// up makes the lab and prepares it.
func (s *Suite) up(o lab.Options) (err error) {
	meter, devices := pressure.Start(), o.Devices
	for _, c := range o.Clusters {
		devices += len(c.Devices())
	}
	ctx, cancel := context.WithTimeout(context.Background(), upTime(devices))
	defer cancel()
	begun := time.Now()
	defer func() {
		if figures := meter.Stop(); err != nil {
			tellPressure(os.Stderr, figures)
		} else {
			fmt.Fprintf(os.Stderr, "the lab of %d devices is up after %.1f s\n", devices, time.Since(begun).Seconds())
		}
	}()
	if s.Lab, err = lab.Up(ctx, o); err != nil {
		return err
	}
	all, err := s.Lab.Devices()
	if err != nil {
		return err
	}
	s.Devices = map[string]*lab.Device{}
	for _, d := range all {
		s.Devices[d.Name] = d
	}
	prepare := s.Prepare
	if prepare == nil {
		prepare = Ready
	}
	return prepare(ctx, s)
}

// tellPressure prints how busy the machine was, and whether a failure may be its own.
func tellPressure(w io.Writer, f pressure.Figures) {
	fmt.Fprintln(w, "pressure: "+f.String())
	if f.Exceeded() {
		fmt.Fprintf(w, "NOT JUDGED: the machine was late by %d ms or more in a hundredth of the time; %d ms are allowed\n", f.P99.Milliseconds(), pressure.Bound.Milliseconds())
	}
}

// watch tells how busy the machine was, where the test fails.
func (s *Suite) watch(t *testing.T) {
	name, _, _ := strings.Cut(t.Name(), "/")
	if _, already := s.watched.LoadOrStore(name, true); already {
		return
	}
	m := pressure.Start()
	t.Cleanup(func() {
		s.watched.Delete(name)
		if figures := m.Stop(); t.Failed() {
			tellPressure(os.Stdout, figures)
		}
	})
	if s.LeavesNothing {
		s.leavesNothing(t)
	}
}

// sweep takes down labs of tests that ended without doing so, and whose warden was killed, too.
func sweep() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	swept, err := lab.Sweep(ctx, filepath.Join(labs, "rivulet-lab-*"))
	for _, dir := range swept {
		fmt.Fprintf(os.Stderr, "swept: %s, whose owner has ended\n", dir)
	}
	return err
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

// Peered is Ready, and the lab is Settled.
func Peered(ctx context.Context, s *Suite) error {
	if err := Ready(ctx, s); err != nil {
		return err
	}
	return Settled(ctx, s)
}

// PeeredWithImage is Peered, all devices have the image of test/harness/mainjob, and pods of it reach each other.
func PeeredWithImage(ctx context.Context, s *Suite) error {
	if err := errors.Join(Ready(ctx, s), s.each(ctx, s.known)); err != nil {
		return err
	}
	if err := mainjob.ImportImage(ctx, s.All()); err != nil {
		return err
	}
	if err := Echo(ctx, s); err != nil {
		return err
	}
	return Settled(ctx, s)
}

// All are the devices in the order of their names.
func (s *Suite) All() []*lab.Device {
	return slices.SortedFunc(maps.Values(s.Devices), func(x, y *lab.Device) int { return strings.Compare(x.Name, y.Name) })
}

// tellLogs reads what is in the lab's folder, which may be half made, or on the disk of
// a device that has its own.
func (s *Suite) tellLogs(ctx context.Context, dir string, logs []string) {
	inits, _ := filepath.Glob(filepath.Join(dir, "*", "init.log"))
	for _, log := range inits {
		if raw, err := os.ReadFile(log); err == nil && len(raw) > 0 {
			fmt.Fprintf(os.Stderr, "--- the init of device %s\n%s\n", filepath.Base(filepath.Dir(log)), raw[max(0, len(raw)-tail):])
		}
	}
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

// Need skips a test without a lab. Where the test fails it tells how busy the machine was. It comes before all clean-up
// of the test, so that what the test leaves is seen.
func (s *Suite) Need(t *testing.T) {
	t.Helper()
	if s.why != "" {
		t.Skip(s.why)
	}
	s.watch(t)
}

// Bounded skips without a lab, and bounds what a test does. What it leaves is removed in
// a time of its own: see CleanUp.
func (s *Suite) Bounded(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	s.Need(t)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), limit)
	t.Cleanup(cancel)
	return ctx
}

// CleanUp is t.Cleanup with a context that ends after a minute, however much of its own
// time the test has used.
func CleanUp(t *testing.T, f func(ctx context.Context)) {
	t.Helper()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		f(ctx)
	})
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
