package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRename(t *testing.T) {
	for _, c := range []struct {
		name, source, want string
		hasMain, fails     bool
	}{
		{"program", "// Doc\npackage main\n\nfunc main() {\n}\n", "// Doc\npackage hostlocal\n\n// Main is the plugin's main function.\nfunc Main() {\n}\n", true, false},
		{"further file", "package main\n\nfunc mainly() {}\n", "package hostlocal\n\nfunc mainly() {}\n", false, false},
		{"library", "package allocator\n", "", false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			text, hasMain, err := rename(c.source, packageName("host-local"))
			if (err != nil) != c.fails || text != c.want || hasMain != c.hasMain {
				t.Fatalf("got %q, %v, %v", text, hasMain, err)
			}
		})
	}
}

func TestGenerateLeavesTestsOutAndWantsOneMain(t *testing.T) {
	from, to := filepath.Join(t.TempDir(), "host-local"), t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(from, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(from, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("dns.go", "package main\n")
	if err := generate(from, to); err == nil || !strings.Contains(err.Error(), "0 main functions") {
		t.Fatalf("a program without main was taken: %v", err)
	}
	write("main.go", "package main\n\nfunc main() {\n}\n")
	write("main_test.go", "package main\n")
	if err := generate(from, to); err != nil {
		t.Fatal(err)
	}
	made, err := filepath.Glob(filepath.Join(to, "hostlocal", "*"))
	if err != nil || len(made) != 2 {
		t.Fatalf("made %v, %v", made, err)
	}
}
