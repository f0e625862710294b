package upgrade

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rivulet/appliance/engine/datastore"
	"rivulet/appliance/state/paths"
	"rivulet/image/signed"
	"rivulet/test/harness/await"
)

func TestFits(t *testing.T) {
	at := func(kubernetes, build string) Version {
		return Version{Name: "x", Kubernetes: kubernetes, BuildID: build}
	}
	for _, tc := range []struct {
		from, next Version
		words      string
	}{
		{at("v1.35.0-k3s3", "a"), at("v1.35.2-k3s1", "b"), ""},
		{at("v1.35.2-k3s3", "a"), at("v1.35.0-k3s1", "b"), ""},
		{at("v1.35.0-k3s3", "a"), at("v1.36.0-k3s1", "b"), ""},
		{at("v1.35.0-k3s3", "a"), at("v1.37.0-k3s1", "b"), "1.36 first"},
		{at("v1.35.0-k3s3", "a"), at("v1.34.9-k3s1", "b"), "never taken back"},
		{at("v1.35.0-k3s3", "a"), at("v1.35.0-k3s3", "a"), "runs already"},
	} {
		err := fits(tc.from, tc.next, false)
		if tc.words == "" && err == nil {
			continue
		}
		if !errors.Is(err, ErrRefused) || tc.words == "" || !strings.Contains(err.Error(), tc.words) || !strings.Contains(err.Error(), "; ") {
			t.Errorf("%s → %s: %v, want %q", tc.from.Kubernetes, tc.next.Kubernetes, err, tc.words)
		}
	}
}

// An older release is signed as well as a newer one: somebody has to say that it is meant.
func TestFitsOlder(t *testing.T) {
	for _, tc := range []struct {
		from, next string
		older      bool
	}{
		{"v0.2.0", "v0.1.9", true}, {"v0.10.0", "v0.9.0", true}, {"v1.0.0", "v1.0.0-rc.1", true}, {"v0.1.0-dev.900", "v0.1.0-dev.899", true},
		{"v0.1.9", "v0.2.0", false}, {"v0.9.0", "v0.10.0", false}, {"v1.0.0", "v1.0.0", false}, {"mine", "v0.1.0", false}, {"v0.1.0", "mine", false},
	} {
		from, next := Version{Name: tc.from, Kubernetes: "v1.35.0", BuildID: "a"}, Version{Name: tc.next, Kubernetes: "v1.35.0", BuildID: "b"}
		if err := fits(from, next, false); (err != nil) != tc.older || err != nil && (!errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "; take a newer release, or add --older")) {
			t.Errorf("%s → %s: %v", tc.from, tc.next, err)
		}
		if err := fits(from, next, true); err != nil {
			t.Errorf("%s → %s, as meant: %v", tc.from, tc.next, err)
		}
	}
}

// A step goes from the version of the data, where that is not the one that runs.
func TestFitsTheData(t *testing.T) {
	state := t.TempDir()
	runs := Version{Name: "x", Kubernetes: "v1.34.0", BuildID: "a"}
	if v := onData(state, runs); v != runs {
		t.Errorf("%+v, want what runs", v)
	}
	wrote(t, state, "v1.36.0")
	if err := fits(onData(state, runs), Version{Name: "y", Kubernetes: "v1.36.1", BuildID: "b"}, false); err != nil {
		t.Errorf("the way out: %v", err)
	}
	if err := fits(onData(state, runs), Version{Name: "y", Kubernetes: "v1.35.1", BuildID: "b"}, false); !errors.Is(err, ErrRefused) {
		t.Errorf("older than the data: %v", err)
	}
	wrote(t, state, "v1.33.0")
	if v := onData(state, runs); v != runs {
		t.Errorf("%+v, want what runs", v)
	}
}

// wrote makes the data in a state folder those of a version of Kubernetes.
func wrote(t *testing.T, state, kubernetes string) {
	t.Helper()
	file := paths.Writer(state)
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(`{"kubernetes":"`+kubernetes+`","rivulet":"v7.0.0"}`), 0o600)); err != nil {
		t.Fatal(err)
	}
}

// Neither `rivulet install` nor a package takes the way back from a version on trial, and no program is put in place that
// cannot read the data.
func TestWhatMayNotReplaceTheProgram(t *testing.T) {
	state := t.TempDir()
	script, err := os.ReadFile("../../../image/package/scripts/preinstall")
	if err != nil || !bytes.Contains(script, []byte("state=/var/lib/rivulet\n")) {
		t.Fatalf("the script has another folder: %v", err)
	}
	script = bytes.Replace(script, []byte("state=/var/lib/rivulet\n"), []byte("state="+state+"\n"), 1)
	script = bytes.Replace(script, []byte("mark=/var/lib/"), []byte("mark="+state+"/"), 1)
	staged := State{}.staged(Attempt{Next: build(2), From: build(1)})
	trying := staged.begun("x", Saved{})
	for _, tc := range []struct {
		name string
		s    State
		want bool
	}{
		{"idle", State{Phase: Idle}, true},
		{"staged", staged, true},
		{"on trial", trying, false},
		{"being undone", trying.unhealthy("so it is"), false},
		{"undone", trying.ended("so it is", "", time.Time{}), true},
	} {
		if err := errors.Join(os.MkdirAll(paths.Versions(state), 0o700), store(paths.Versions(state), tc.s)); err != nil {
			t.Fatal(err)
		}
		if err := MayReplace(state); (err == nil) != tc.want || err != nil && (!errors.Is(err, ErrBusy) || !strings.Contains(err.Error(), "rivulet upgrade --cancel")) {
			t.Errorf("%s: install: %v", tc.name, err)
		}
		for _, arg := range []string{"install", "upgrade", "1", "2"} {
			out, err := exec.Command("sh", "-c", string(script), "preinst", arg).CombinedOutput()
			if (err == nil) != tc.want || err != nil && !strings.Contains(string(out), "rivulet upgrade --cancel") {
				t.Errorf("%s: package, %s: %v %s", tc.name, arg, err, out)
			}
		}
		if out, err := exec.Command("sh", "-c", string(script), "preinst", "abort-upgrade").CombinedOutput(); err != nil {
			t.Errorf("%s: dpkg cannot go back to the package of before: %v %s", tc.name, err, out)
		}
	}
	wrote(t, state, "v1.999.0")
	if err := MayReplace(state); !errors.Is(err, datastore.ErrNewer) {
		t.Errorf("an older Kubernetes: %v", err)
	}
}

func TestInspect(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	text := filepath.Join(dir, "text")
	raw, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	other := bytes.Clone(raw)
	other[18], other[19] = 0xf3, 0 // RISC-V
	for name, content := range map[string][]byte{"text": []byte("#!/bin/sh\necho hello\n"), "cut": raw[:len(raw)/2], "other": other} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	c, err := exec.LookPath("true")
	if err != nil {
		t.Fatal(err)
	}
	for path, words := range map[string]string{text: "no program", filepath.Join(dir, "other"): "another machine", c: "no Go program", self: "does not"} {
		if v, err := inspect(t.Context(), path); err == nil || !strings.Contains(err.Error(), words) || !strings.Contains(err.Error(), "; ") {
			t.Errorf("%s: %+v %v, want %q and a cure", path, v, err, words)
		}
	}
	id, err := BuildID(self)
	if err != nil || !strings.Contains(id, "/") {
		t.Errorf("build ID %q: %v", id, err)
	}
	if again, err := BuildID("/proc/self/exe"); err != nil || again != id {
		t.Errorf("build ID of what runs: %q %v, want %q", again, err, id)
	}
}

// A build without keys takes nothing, and says what to do.
func TestWithoutKeysNothingIsTaken(t *testing.T) {
	file := filepath.Join(t.TempDir(), "release")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Stage(t.Context(), Request{State: t.TempDir(), File: file})
	if !errors.Is(err, signed.ErrNoRoots) || !strings.Contains(err.Error(), "; ") {
		t.Errorf("%v, want %v", err, signed.ErrNoRoots)
	}
}

func TestStateSurvives(t *testing.T) {
	dir := t.TempDir()
	if s, err := Load(dir); err != nil || s.Phase != Idle {
		t.Errorf("a new device: %+v %v", s, err)
	}
	want := State{Base: "b"}.staged(Attempt{Next: build(2), From: build(1), Window: time.Hour, Peers: []string{"p"}}).begun("x", Saved{Kind: savedStore, Worker: true, ID: "me"})
	if err := store(dir, want); err != nil {
		t.Fatal(err)
	}
	got, err := Load(dir)
	if err != nil || got.Phase != Trying || got.Attempt.Next != want.Attempt.Next || got.Attempt.Window != time.Hour || got.Attempt.Snapshot != "x" || *got.Attempt.Saved != *want.Attempt.Saved {
		t.Errorf("%+v %v", got, err)
	}
	for _, bad := range []string{"", "{", `{"format":9}`, `{"phase":"trying"}`} {
		if err := os.WriteFile(filepath.Join(dir, stateName), []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), "; ") && !strings.Contains(err.Error(), "move") {
			t.Errorf("%q: %v, want a cure", bad, err)
		}
	}
}

// TestCancelGoesByTheStateUnderTheLock: another process may have tried or cancelled the update since it was first read.
func TestCancelGoesByTheStateUnderTheLock(t *testing.T) {
	state := t.TempDir()
	d := &Device{State: state, Log: discard}
	if err := os.MkdirAll(d.dir(), 0o755); err != nil {
		t.Fatal(err)
	}
	// A pipe in its place has another content at each read.
	file := filepath.Join(d.dir(), stateName)
	if err := unix.Mkfifo(file, 0o600); err != nil {
		t.Fatal(err)
	}
	write := func(s State) {
		raw, err := json.Marshal(s)
		if err := errors.Join(err, os.WriteFile(file, raw, 0o600)); err != nil {
			t.Error(err)
		}
	}
	done := make(chan error, 1)
	go func() {
		phase, err := Cancel(state, time.Now())
		if phase != Idle {
			err = errors.Join(err, errors.New("it has cancelled what it found: "+string(phase)))
		}
		done <- err
	}()
	write(State{Format: format, Phase: Staged, Attempt: &Attempt{}})
	await.True(t, 10*time.Second, "it takes the lock", func() bool { _, err := os.Stat(filepath.Join(d.dir(), ".lock")); return err == nil })
	write(State{Format: format, Phase: Idle, Last: &Outcome{OK: true}})
	if err := <-done; err != nil {
		t.Error(err)
	}
	if fi, err := os.Lstat(file); err != nil || fi.Mode().Type() != os.ModeNamedPipe {
		t.Errorf("the state was written: %v %v", fi, err)
	}
}

// TestWhatIsStagedIsSyncedWithItsMode: after a power cut a version without it could not be started.
func TestWhatIsStagedIsSyncedWithItsMode(t *testing.T) {
	dir := t.TempDir()
	r := Request{State: dir, File: filepath.Join(dir, "rivulet")}
	if err := os.WriteFile(r.File, []byte("a program"), 0o600); err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(dir, "staged")
	if _, err := take(r, io.Discard, to); err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Stat(to); err != nil || fi.Mode() != 0o755 {
		t.Errorf("%v %v", fi, err)
	}
}

// With SELinux a file keeps the label with which it was made: the program is a file of its own folder there.
func TestAnInstalledProgramIsNoFileOfTheStateWithSELinux(t *testing.T) {
	for _, label := range []string{"", "system_u:object_r:bin_t:s0"} {
		dir := t.TempDir()
		from, to := filepath.Join(dir, "versions"), filepath.Join(dir, "bin")
		put(t, from, "next")
		put(t, to, "before")
		if label != "" {
			if err := unix.Setxattr(to, "security.selinux", []byte(label), 0); err != nil {
				t.Skipf("needs root and a file system with labels: %v", err)
			}
		}
		must(t, install(from, to))
		a, err := os.Stat(from)
		must(t, err)
		b, err := os.Stat(to)
		must(t, err)
		raw, err := os.ReadFile(to)
		must(t, err)
		if string(raw) != "next" || os.SameFile(a, b) != (label == "") {
			t.Errorf("label %q: content %q, the same file: %v", label, raw, os.SameFile(a, b))
		}
		if label != "" && b.Mode() != 0o755 {
			t.Errorf("%v", b.Mode())
		}
	}
}

func TestPointAndTidy(t *testing.T) {
	state := t.TempDir()
	d := &Device{State: state, Installed: filepath.Join(state, "usr", "rivulet")}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	id, err := BuildID(self)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	other := "n" + id[1:]
	if other == id { // one build in 64 begins with it
		other = "m" + id[1:]
	}
	next := bytes.Replace(raw, []byte(id), []byte(other), -1) // the same program, of another build
	for file, content := range map[string][]byte{"v1-a/rivulet": raw, "v2-b/rivulet": next, "v0-z/rivulet": nil, ".new/x": nil, "../usr/rivulet": raw} {
		file = filepath.Join(d.dir(), file)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, content, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s := State{Current: &Version{Dir: "v2-b", BuildID: other}, Previous: &Version{Dir: "v1-a", BuildID: "previous"}, Base: "another"}
	d.Log = discard
	if d.Point(s) {
		t.Error("a binary that a person installed was replaced")
	}
	s.Base = id
	if first, again := d.Point(s), d.Point(s); !first || !again {
		t.Error("the current version is not at the installed place")
	}
	if got, err := BuildID(d.Installed); err != nil || got != s.Current.BuildID {
		t.Errorf("installed is %s %v", got, err)
	}
	if fi, err := os.Lstat(d.Installed); err != nil || !fi.Mode().IsRegular() || fi.Mode().Perm() != 0o755 {
		t.Errorf("%v %v: the program must outlive the state folder", fi.Mode(), err)
	}
	if at, err := os.Readlink(filepath.Join(d.dir(), "current")); err != nil || at != "v2-b" {
		t.Errorf("current: %s %v", at, err)
	}
	entries, _ := os.ReadDir(d.dir())
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if got := strings.Join(names, " "); got != "current v1-a v2-b" {
		t.Errorf("kept: %s", got)
	}
}

// TestTheLastSnapshotStays: which it is says the state. Its file may be the oldest by the clock.
func TestTheLastSnapshotStays(t *testing.T) {
	attempt := State{Phase: Trying, Attempt: &Attempt{Snapshot: "before-v2-b.backup"}}
	for what, c := range map[string]struct {
		state State
		want  string
	}{
		"kept":          {attempt.committed(time.Now()), "before-v2-b.backup"},
		"undone":        {attempt.ended("unhealthy", "", time.Now()), "before-v2-b.backup"},
		"never tried":   {State{Snapshot: "before-v2-b.backup", Attempt: &Attempt{}}.ended("cancelled", "", time.Now()), "before-v2-b.backup"},
		"by hand since": {attempt.committed(time.Now()).reset(time.Now()), "before-v2-b.backup"},
		"not recorded":  {State{Last: &Outcome{}}, "before-v1-a.backup before-v2-b.backup"},
		"staged":        {attempt.committed(time.Now()).staged(Attempt{}), ""},
	} {
		d := &Device{State: t.TempDir(), Log: discard}
		if err := os.MkdirAll(d.dir(), 0o755); err != nil {
			t.Fatal(err)
		}
		for name, ahead := range map[string]time.Duration{"before-v1-a.backup": 24 * time.Hour, "before-v2-b.backup": 0, "before-v2-b.backup.new": 0} {
			at := time.Now().Add(ahead)
			if err := errors.Join(os.WriteFile(d.snapshot(name), nil, 0o600), os.Chtimes(d.snapshot(name), at, at)); err != nil {
				t.Fatal(err)
			}
		}
		d.tidy(c.state)
		var left []string
		entries, _ := os.ReadDir(d.dir())
		for _, e := range entries {
			left = append(left, e.Name())
		}
		if got := strings.Join(left, " "); got != c.want {
			t.Errorf("%s: %q is left, want %q", what, got, c.want)
		}
	}
}

// TestMain makes this binary one that does not say what it is when it is asked.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "version" {
		os.Exit(3)
	}
	os.Exit(m.Run())
}

// The state may lie on another file system than the program.
func TestInstallAcrossFileSystems(t *testing.T) {
	other, err := os.MkdirTemp("/dev/shm", "rivulet-")
	if err != nil {
		t.Skipf("needs a second file system at /dev/shm: %v", err)
	}
	defer os.RemoveAll(other)
	from := filepath.Join(t.TempDir(), "rivulet")
	if err := os.WriteFile(from, []byte("new"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, dir := range map[string]string{"another": other, "the same": filepath.Dir(from)} {
		to := filepath.Join(dir, "installed")
		for file, content := range map[string]string{to: "old", to + ".new": "half of one"} {
			if err := os.WriteFile(file, []byte(content), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := install(from, to); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		raw, err := os.ReadFile(to)
		fi, serr := os.Lstat(to)
		if err != nil || serr != nil || string(raw) != "new" || fi.Mode().Perm()&0o111 == 0 || !fi.Mode().IsRegular() {
			t.Errorf("%s: %q %v %v", name, raw, err, serr)
		}
		if _, err := os.Lstat(to + ".new"); err == nil {
			t.Errorf("%s: something is left", name)
		}
	}
}

// A package's program stays what the service starts, whatever upgrades follow: a start through it goes on with the current
// version, and a newer package takes over.
func TestAPackageStartsTheCurrentVersion(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	program, link := filepath.Join(dir, "rivulet"), filepath.Join(dir, "link")
	if err := errors.Join(copyFile(exe, program, 0o755), os.Symlink("rivulet", link)); err != nil {
		t.Fatal(err)
	}
	id := packaged(program)
	if own, err := BuildID(exe); err != nil || id != own {
		t.Fatalf("%q, %v, want %q", id, err, own)
	}
	if got := packaged(link) + packaged(filepath.Join(dir, "none")); got != "" {
		t.Errorf("a link, or no file, is a package's program: %q", got)
	}
	s := State{Phase: Idle, Base: id, Current: &Version{BuildID: "v5"}, Previous: &Version{BuildID: "v4"}}
	if s.replaced(id) {
		t.Error("the package's program is taken for a newer one")
	}
	if !s.replaced("a newer package's") {
		t.Error("a newer package does not take over")
	}
}
