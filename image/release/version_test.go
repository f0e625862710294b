package main

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	semver "k8s.io/apimachinery/pkg/util/version"
)

// repository is a git repository in a folder of the test.
type repository struct {
	t   *testing.T
	dir string
}

func newRepository(t *testing.T) repository {
	t.Helper()
	r := repository{t, t.TempDir()}
	r.git("init", "-q", "-b", "main")
	return r
}

func (r repository) git(args ...string) string {
	r.t.Helper()
	cmd := exec.CommandContext(r.t.Context(), "git", append([]string{"-C", r.dir, "-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false", "-c", "tag.gpgsign=false"}, args...)...)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
	out, err := cmd.CombinedOutput()
	if err != nil {
		r.t.Fatalf("git %v: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// commit writes the file and commits everything.
func (r repository) commit(file, text string) {
	r.t.Helper()
	if err := os.MkdirAll(filepath.Dir(filepath.Join(r.dir, file)), 0o755); err != nil {
		r.t.Fatal(err)
	}
	write(r.t, r.dir, file, []byte(text))
	r.git("add", "-A")
	r.git("commit", "-q", "--allow-empty", "-m", "c")
}

func (r repository) tag(name string) { r.t.Helper(); r.git("tag", "-a", name, "-m", name) }

func (r repository) version(env ...string) string {
	r.t.Helper()
	script, err := filepath.Abs("version")
	if err != nil {
		r.t.Fatal(err)
	}
	cmd := exec.CommandContext(r.t.Context(), script)
	cmd.Dir, cmd.Env = r.dir, append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		r.t.Fatalf("%v: %s", err, out)
	}
	return strings.TrimSpace(string(out))
}

// Each build sorts after the release before it and before the next one, in a clone with tags and in one without, for
// semver, dpkg and rpm.
func TestVersionsSortInTheOrderOfCommits(t *testing.T) {
	r := newRepository(t)
	var got []string
	is := func(want string, env ...string) {
		t.Helper()
		v := r.version(env...)
		if v != want {
			t.Errorf("%s, want %s", v, want)
		}
		got = append(got, v)
	}
	r.commit("CHANGELOG.md", "# Changes\n\n## Unreleased\n")
	is("v0.1.0-dev.1")
	write(t, r.dir, "CHANGELOG.md", []byte("# Changes\n\n## Unreleased\n\n- x\n"))
	is("v0.1.0-dev.1.dirty")
	r.commit("CHANGELOG.md", "# Changes\n\n## Unreleased\n\n## 0.1.0 - 2026-12-01\n")
	r.tag("v0.1.0")
	r.tag("other")
	is("v0.1.0-draft", "DRAFT=1")
	is("v0.1.0")
	write(t, r.dir, "CHANGELOG.md", []byte("changed"))
	is("v0.1.1-dev.2.dirty")
	r.git("checkout", "-q", "CHANGELOG.md")
	for range 8 {
		r.commit("a", strings.Repeat("a", len(got)))
	}
	is("v0.1.1-dev.10")
	is("v0.1.1-dev.10.draft", "DRAFT=1")
	plain := repository{t, t.TempDir()}
	plain.git("clone", "-q", "--no-tags", r.dir, ".")
	if v := plain.version(); v != "v0.1.1-dev.10" {
		t.Errorf("in a clone without tags: %s", v)
	}
	r.commit("a", "b")
	is("v0.1.1-dev.11")
	r.tag("v0.1.9")
	r.commit("a", "b2")
	is("v0.1.10-dev.12")
	r.tag("v0.2.0-rc.9")
	is("v0.2.0-draft.rc.9", "DRAFT=1")
	is("v0.2.0-rc.9")
	r.commit("a", "c")
	is("v0.2.0-rc.9.dev.13")
	r.tag("v0.2.0-rc.10")
	is("v0.2.0-rc.10")
	r.tag("v0.2.0")
	is("v0.2.0")
	r.commit("CHANGELOG.md", "## Unreleased\n\n## 0.3.0 - 2027-01-01\n")
	is("v0.2.1-dev.14") // its section is written before its tag

	r = repository{t, t.TempDir()}
	if v := r.version("GIT_CEILING_DIRECTORIES=" + filepath.Dir(r.dir)); v != "v0.1.0-dev.0" {
		t.Errorf("outside of git: %s", v)
	}
	inOrder(t, got)
}

// inOrder compares neighbours by each of the three rules.
func inOrder(t *testing.T, versions []string) {
	t.Helper()
	rules := map[string]func(a, b string) int{
		"semver": func(a, b string) int {
			n, err := semver.MustParseSemantic(a).Compare(b)
			if err != nil {
				t.Error(err)
			}
			return n
		},
	}
	// As nfpm writes them, with version_schema: semver.
	packaged := func(v string) string { return strings.Replace(strings.TrimPrefix(v, "v"), "-", "~", 1) }
	if _, err := exec.LookPath("dpkg"); err == nil {
		rules["dpkg"] = func(a, b string) int {
			if exec.CommandContext(t.Context(), "dpkg", "--compare-versions", packaged(a), "lt", packaged(b)).Run() == nil {
				return -1
			}
			return 1
		}
	}
	if _, err := exec.LookPath("rpm"); err == nil {
		rules["rpm"] = func(a, b string) int {
			out, err := exec.CommandContext(t.Context(), "rpm", "--eval", `%{lua:print(rpm.vercmp("`+packaged(a)+`", "`+packaged(b)+`"))}`).Output()
			if err != nil {
				t.Error(err)
			}
			return cmp.Compare(strings.TrimSpace(string(out)), "0")
		}
	}
	for rule, compare := range rules {
		for i, b := range versions[1:] {
			if compare(versions[i], b) >= 0 {
				t.Errorf("%s: %s is not older than %s", rule, versions[i], b)
			}
		}
		if reversed := slices.Clone(versions); len(versions) > 1 {
			slices.Reverse(reversed)
			if compare(reversed[0], reversed[1]) <= 0 {
				t.Errorf("%s: everything is older than everything", rule)
			}
		}
	}
}

// A binary is built anew when something that is linked in beside the code has changed, and not otherwise.
func TestWhatIsLinkedInMakesANewBinary(t *testing.T) {
	bin := t.TempDir()
	builds := func(changed string) bool {
		t.Helper()
		args := []string{"--no-print-directory", "-C", "../..", "BIN=" + bin, "GO=true", "BUNDLE=", "LICENSES=", "ARCH=", "VERSION=v1", "BUILD_TIME=1", "ROOT_KEYS=a", "MIN_GENERATION=1"}
		if changed != "" {
			args = append(args, changed)
		}
		out, err := exec.CommandContext(t.Context(), "make", append(args, filepath.Join(bin, "rivulet"))...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		write(t, bin, "rivulet", nil)
		return strings.Contains(string(out), "building "+bin+"/rivulet ")
	}
	for i, step := range []struct {
		changed string
		builds  bool
	}{{"", true}, {"", false}, {"VERSION=v2", true}, {"", true}, {"BUILD_TIME=2", true}, {"BUILD_TIME=2", false}, {"", true}, {"ROOT_KEYS=a,b", true}, {"", true}, {"MIN_GENERATION=2", true}} {
		if got := builds(step.changed); got != step.builds {
			t.Errorf("step %d, %q: built is %v", i, step.changed, got)
		}
	}
}
