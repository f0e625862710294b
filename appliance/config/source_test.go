package config

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// device is a configuration file and a state folder of their own.
func device(t *testing.T) Source {
	t.Helper()
	dir := t.TempDir()
	return Source{Path: filepath.Join(dir, "etc", "config.yaml"), Keep: filepath.Join(dir, "state", "config.good.yaml"), Host: aHost}
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Defaults < file < environment < flags, key by key, and each says where it is from.
func TestTheStrongestWins(t *testing.T) {
	s := device(t)
	put(t, s.Path, "name: file\nreserve: {cpu: 100m, memory: 1Gi}\nshare: {cpu: 50%}\n")
	s.Over = []Override{
		{"reserve.memory", "2Gi", Origin{"environment", "RIVULET_RESERVE_MEMORY"}},
		{"name", "flag", Origin{"flag", "--name"}},
	}
	l := s.Load(noon)
	v := l.View("node-1")
	if l.From != FromFile || len(l.Problems) > 0 || v.Values.Name != "flag" || v.Values.Reserve != (Reserve{"100m", "2Gi"}) ||
		v.Values.Share.CPU != "50%" || v.Values.Share.Memory != "100%" || v.Values.Trust.Mode != TrustLAN {
		t.Errorf("%+v", v)
	}
	for key, want := range map[string]string{
		"name": "flag --name", "reserve.cpu": "file " + s.Path + ":2:16", "reserve.memory": "environment RIVULET_RESERVE_MEMORY",
		"share.cpu": "file " + s.Path + ":3:14", "share.memory": "default", "trust.mode": "default", "lan.interfaces": "default",
	} {
		if got := v.Origins[key].String(); got != want {
			t.Errorf("%s is from %q, want %q", key, got, want)
		}
	}
	if v := (Source{Path: "/none/x"}).Load(noon).View("node-1"); v.Values.Name != "node-1" || v.From != FromDefaults {
		t.Errorf("without a file: %+v", v)
	}
}

// A broken file changes nothing but what is told: the last good one stays, in this
// process and after it, until the file is good again or gone.
func TestLastGood(t *testing.T) {
	s := device(t)
	put(t, s.Path, "name: one\ntrust: {mode: ask}\n")
	k := Open(s)
	if l := k.Now(); l.From != FromFile || l.Config.Name != "one" || l.Unsaved != nil {
		t.Fatalf("%+v", l)
	}
	broken := func(what string, l Loaded, name string) {
		t.Helper()
		if l.From != FromLastGood || l.Config.Name != name || l.Config.Trust.Mode != TrustAsk || l.Closed || len(l.Problems) == 0 {
			t.Errorf("%s: %+v", what, l)
		}
	}
	for _, text := range []string{"name: [", "name: Bad", "\tx", "\x00", "trust: {mode: group}\n"} {
		put(t, s.Path, text)
		_, l := k.Reload()
		broken(text, l, "one")
		broken(text+" after a restart", s.Load(noon), "one")
		if raw, err := os.ReadFile(s.Keep); err != nil || !strings.HasPrefix(string(raw), "name: one") {
			t.Fatalf("%q overwrote the last good one: %q %v", text, raw, err)
		}
	}
	if info, err := os.Stat(s.Keep); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the copy may hold secrets: %v %v", info.Mode(), err)
	}
	// What is in force in this process stays, whatever the disk does.
	if err := os.Remove(s.Keep); err != nil {
		t.Fatal(err)
	}
	_, l := k.Reload()
	broken("without the copy", l, "one")

	put(t, s.Path, "name: two\ntrust: {mode: ask}\n")
	if _, l := k.Reload(); l.From != FromFile || l.Config.Name != "two" {
		t.Errorf("mended: %+v", l)
	}
	if err := os.Remove(s.Path); err != nil {
		t.Fatal(err)
	}
	if _, l := k.Reload(); l.From != FromDefaults || l.Config.Name != "" || l.Closed || len(l.Problems) > 0 {
		t.Errorf("removed: %+v", l)
	}
	if _, err := os.Stat(s.Keep); !errors.Is(err, fs.ErrNotExist) {
		t.Error("the copy outlived the file: a broken file next year would bring it back")
	}
}

// A file that cannot be used where none was good before may have said whom to trust.
func TestTheFirstFileBrokenTrustsNobodyNew(t *testing.T) {
	s := device(t)
	put(t, s.Path, "trust: {mode: gruop}\n")
	if l := s.Load(noon); !l.Closed || l.From != FromDefaults || len(l.Problems) != 1 {
		t.Errorf("%+v", l)
	}
	k := Open(s)
	put(t, s.Path, "trust: {mode: lan}\n")
	if _, l := k.Reload(); l.Closed || l.From != FromFile {
		t.Errorf("mended: %+v", l)
	}

	s = device(t)
	s.Named = true
	if l := s.Load(noon); !l.Closed || len(l.Problems) != 1 || !strings.Contains(l.Problems[0].Error(), "there is no such file; create it") {
		t.Errorf("a file that is named and not there: %+v", l)
	}
	s.Named = false
	if l := s.Load(noon); l.Closed || len(l.Problems) > 0 {
		t.Errorf("no file: %+v", l)
	}
}

// The copy is used although a file that it names has gone; a new file is not.
func TestNamedFiles(t *testing.T) {
	s := device(t)
	secret := filepath.Join(t.TempDir(), "secret")
	put(t, secret, "  a-secret-of-the-group\n")
	put(t, s.Path, "name: a\ntrust: {mode: group, secretFile: "+secret+"}\n")
	l := s.Load(noon)
	if len(l.Problems) > 0 || l.Config.Trust.Secret.Reveal() != "a-secret-of-the-group" || len(l.Warnings) > 0 {
		t.Fatalf("%+v", l)
	}
	if err := os.Chmod(secret, 0o644); err != nil {
		t.Fatal(err)
	}
	if l := s.Load(noon); len(l.Warnings) != 1 || !strings.Contains(l.Warnings[0].Error(), "chmod 600 "+secret) {
		t.Errorf("others can read it: %+v", l.Warnings)
	}
	if err := os.Remove(secret); err != nil {
		t.Fatal(err)
	}
	if l := s.Load(noon); l.From != FromLastGood || l.Config.Name != "a" || l.Config.Trust.Mode != TrustGroup || l.Config.Trust.Secret != "" || len(l.Problems) != 1 {
		t.Errorf("%+v", l)
	}
}

func TestPermissions(t *testing.T) {
	s := device(t)
	for _, tc := range []struct {
		mode fs.FileMode
		text string
		want string
	}{
		{0o644, "name: a\n", ""},
		{0o644, "trust: {mode: group, secret: sixteen-and-more-letters}\n", "chmod 600"},
		{0o644, "registries: {configs: {a: {auth: {password: x}}}}\n", "chmod 600"},
		{0o600, "trust: {mode: group, secret: sixteen-and-more-letters}\n", ""},
		{0o666, "name: a\n", "chmod go-w"},
	} {
		put(t, s.Path, tc.text)
		if err := os.Chmod(s.Path, tc.mode); err != nil {
			t.Fatal(err)
		}
		l := s.Load(noon)
		if l.From != FromFile || (tc.want == "") != (len(l.Warnings) == 0) || tc.want != "" && !strings.Contains(l.Warnings[0].Error(), tc.want) {
			t.Errorf("%04o %q: %v %v, want %q", tc.mode, tc.text, l.Problems, l.Warnings, tc.want)
		}
	}
}

// What is at the path and is no text file is told in words, and nothing blocks.
func TestNoTextFile(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	put(t, at("file"), "name: a\n")
	if err := errors.Join(
		os.Mkdir(at("folder"), 0o755), syscall.Mkfifo(at("pipe"), 0o600), os.Symlink("/dev/zero", at("zero")),
		os.Symlink(at("loop"), at("loop")), os.WriteFile(at("long"), make([]byte, 10<<20), 0o600), os.Symlink("gone", at("dangling")),
	); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		at("folder"): "it is a folder; ", at("pipe"): "it is not a regular file; ", at("zero"): "it is not a regular file; ",
		at("loop"): "it cannot be read: too many levels", at("long"): "it is longer than 64 KiB; ", at("dangling"): "there is no such file; ",
		at("file/x"): "it cannot be read: not a directory; a part of the path is a file",
	} {
		l := Source{Path: path, Named: true}.Load(noon)
		if len(l.Problems) != 1 || !strings.HasPrefix(l.Problems[0].Error(), path+": "+want) || !l.Closed {
			t.Errorf("%s: %v, want %q", path, l.Problems, want)
		}
	}
}

// Somebody who is not root is told to use sudo.
func TestNoPermission(t *testing.T) {
	if os.Getenv("CONFIG_ROLE") == "nobody" {
		l := Source{Path: os.Getenv("CONFIG_PATH")}.Load(noon)
		if len(l.Problems) != 1 || !strings.HasSuffix(l.Problems[0].Error(), "it cannot be read: permission denied; use sudo") {
			t.Error(l.Problems)
		}
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root to become somebody else")
	}
	dir, err := os.MkdirTemp("/tmp", "config-nobody-") // the test's own folder cannot be entered by others
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	self, err := os.ReadFile("/proc/self/exe")
	if err == nil {
		err = errors.Join(os.Chmod(dir, 0o755), os.WriteFile(filepath.Join(dir, "test"), self, 0o755), os.WriteFile(filepath.Join(dir, "c.yaml"), nil, 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(dir, "test"), "-test.run=^TestNoPermission$")
	cmd.Dir = dir
	cmd.Env = []string{"CONFIG_ROLE=nobody", "CONFIG_PATH=" + filepath.Join(dir, "c.yaml"), "PATH=/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// A state folder that cannot be written costs nothing but the copy, and says so.
func TestNoCopy(t *testing.T) {
	s := device(t)
	put(t, filepath.Dir(s.Keep), "a file where the folder should be")
	put(t, s.Path, "name: a\n")
	k := Open(s)
	if l := k.Now(); l.From != FromFile || l.Config.Name != "a" || l.Unsaved == nil {
		t.Errorf("%+v", l)
	}
	put(t, s.Path, "name: [\n")
	if _, l := k.Reload(); l.From != FromLastGood || l.Config.Name != "a" {
		t.Errorf("this process knows it still: %+v", l)
	}
}
