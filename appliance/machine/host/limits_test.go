package host

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLimitsAreRaisedAndNeverLowered(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "fs/inotify")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(name, v string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(v), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("max_user_instances", "128\n")
	write("max_user_watches", "1048576\n")
	if tooLow := RaiseLimitsAt(root); len(tooLow) != 0 {
		t.Fatalf("could not raise %v", tooLow)
	}
	for name, want := range map[string]string{"max_user_instances": "8192", "max_user_watches": "1048576"} {
		raw, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || strings.TrimSpace(string(raw)) != want {
			t.Errorf("%s is %q, want %s (%v)", name, raw, want, err)
		}
	}
}

func TestMissingSettingsAreNoLimits(t *testing.T) {
	if tooLow := RaiseLimitsAt(t.TempDir()); len(tooLow) != 0 {
		t.Fatalf("%v", tooLow)
	}
}
