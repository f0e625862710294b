package upgrade

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"unicode/utf8"
)

// Two programs are told from each other, and one from itself never: as the loop of
// development builds them, and as a release is built, without Go's own build ID.
func TestBuildID(t *testing.T) {
	dir := t.TempDir()
	// The C library makes it a program that the C linker links, as rivulet is one.
	source := "package main\n\nimport \"C\"\n\nvar version string\n\nfunc main() { println(version) }\n"
	for name, content := range map[string]string{"main.go": source, "go.mod": "module x\n\ngo 1.25\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	build := func(name, flags string) string {
		t.Helper()
		cmd := exec.Command("go", "build", "-o", name, "-ldflags", flags+" -s -w -linkmode external -extldflags -static", ".")
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=1", "GOFLAGS=-buildvcs=false -mod=mod", "GOWORK=off")
		if said, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, said)
		}
		id, err := BuildID(filepath.Join(dir, name))
		if err != nil || len(id) < 20 || !utf8.ValidString(id) {
			t.Fatalf("%s: build ID %q, %v", name, id, err)
		}
		return id
	}
	for _, release := range []string{"", "-buildid= "} {
		first := build("first", release+"-X main.version=v1")
		if again := build("again", release+"-X main.version=v1"); again != first {
			t.Errorf("%q: the same program has %q and %q", release, first, again)
		}
		if other := build("other", release+"-X main.version=v2"); other == first {
			t.Errorf("%q: two programs have the build ID %q", release, first)
		}
	}
}
