package install

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"rivulet/appliance/config"
	"rivulet/systemd"
)

func TestTheProgramIsReplacedInOneStepAndOnlyIfItDiffers(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "new"), filepath.Join(dir, "bin", "rivulet")
	write := func(text string) {
		if err := os.WriteFile(from, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	write("one")
	for i, want := range []struct {
		text    string
		changed bool
	}{{"one", true}, {"one", false}, {"two", true}} {
		write(want.text)
		changed, err := copyProgram(from, to)
		if err != nil || changed != want.changed {
			t.Errorf("%d: changed %v, %v", i, changed, err)
		}
		raw, err := os.ReadFile(to)
		fi, serr := os.Stat(to)
		if err != nil || serr != nil || string(raw) != want.text || fi.Mode().Perm() != 0o755 {
			t.Errorf("%d: %q %v %v", i, raw, fi, err)
		}
	}
	if changed, err := copyProgram(to, to); err != nil || changed {
		t.Errorf("onto itself: %v %v", changed, err)
	}
	if err := os.Chmod(to, 0o644); err != nil {
		t.Fatal(err)
	}
	if changed, err := copyProgram(from, to); err != nil || !changed {
		t.Errorf("one that cannot be run: %v %v", changed, err)
	}
}

// A write that fails leaves the old file and no other.
func TestAFailedWriteLeavesTheOldFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rivulet")
	if err := os.WriteFile(path, []byte("old"), 0o755); err != nil {
		t.Fatal(err)
	}
	full := errors.New("no space")
	err := replace(path, 0o755, func(f *os.File) error { f.WriteString("half"); return full })
	raw, _ := os.ReadFile(path)
	entries, _ := os.ReadDir(filepath.Dir(path))
	if !errors.Is(err, full) || string(raw) != "old" || len(entries) != 1 {
		t.Errorf("%v, content %q, %d files", err, raw, len(entries))
	}
}

func TestTheNameGoesIntoTheConfiguration(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rivulet", "config.yaml")
	for i, want := range []bool{true, false} {
		if changed, err := setName(path, "lab-1"); err != nil || changed != want {
			t.Errorf("%d: %v %v", i, changed, err)
		}
	}
	raw, err := os.ReadFile(path)
	if got := config.Parse(raw, config.Options{File: path}); err != nil || got.Config.Name != "lab-1" || len(got.Problems) != 0 {
		t.Errorf("%+v %v", got, err)
	}
	if _, err := setName(path, "lab-2"); err == nil || !strings.Contains(err.Error(), "name: lab-2") {
		t.Errorf("a user's file: %v, want it left alone and told how", err)
	}
	if again, _ := os.ReadFile(path); string(again) != string(raw) {
		t.Error("a user's file was changed")
	}
}

// A program of that name that is not ours is left alone, at the installation and at its end.
func TestLinks(t *testing.T) {
	dir := t.TempDir()
	name, theirs := systemd.Link{Path: filepath.Join(dir, "kubectl-rivulet"), To: "rivulet"}, systemd.Link{Path: filepath.Join(dir, "theirs"), To: "rivulet"}
	if err := os.WriteFile(theirs.Path, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	for i, want := range []bool{true, false} {
		if made, err := link(name); made != want || err != nil || !ours(name) {
			t.Errorf("%d: made %v, %v", i, made, err)
		}
	}
	if made, err := link(theirs); made || err != nil || ours(theirs) {
		t.Errorf("theirs: %v, %v", made, err)
	}
	if _, err := link(systemd.Link{Path: filepath.Join(dir, "none", "x"), To: "rivulet"}); err == nil {
		t.Error("a link in a folder that is not there")
	}
}

// Each further name leads to the program, and a package has the same names: sudo on RHEL looks into /usr/bin, and not into
// /usr/local/bin.
func TestLinksLeadToTheProgram(t *testing.T) {
	nfpm, err := os.ReadFile("../../../image/package/nfpm.yaml")
	if err != nil {
		t.Fatal(err)
	}
	sudo := false
	for _, l := range systemd.Links {
		if to := filepath.Join(filepath.Dir(l.Path), l.To); to != systemd.Binary {
			t.Errorf("%s leads to %s", l.Path, to)
		}
		sudo = sudo || filepath.Dir(l.Path) == "/usr/bin"
	}
	if !sudo {
		t.Error("no name in /usr/bin")
	}
	for _, l := range systemd.PackageLinks {
		if to := filepath.Join(filepath.Dir(l.Path), l.To); to != systemd.PackageBinary {
			t.Errorf("%s leads to %s", l.Path, to)
		}
		if !strings.Contains(string(nfpm), "  - src: "+l.To+"\n    dst: "+l.Path+"\n    type: symlink\n") {
			t.Errorf("the package lacks %s", l.Path)
		}
	}
	for _, f := range systemd.PackageFiles() {
		if !strings.Contains(string(nfpm), "\n    dst: "+f.Path+"\n") {
			t.Errorf("the package lacks %s", f.Path)
		}
		if strings.Contains(f.Content, "/usr/local") || strings.HasPrefix(f.Path, "/etc/") {
			t.Errorf("a package must not have %s:\n%s", f.Path, f.Content)
		}
	}
}
