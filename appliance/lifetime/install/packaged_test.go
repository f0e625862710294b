package install

import (
	"os"
	"path/filepath"
	"testing"

	"rivulet/systemd"
)

func TestPackageTool(t *testing.T) {
	for _, tc := range []struct{ tool, program, want string }{
		{"dpkg", "dpkg-query", "dpkg"},
		{"rpm", "rpm", "rpm"},
		{"neither", "other", ""},
	} {
		t.Run(tc.tool, func(t *testing.T) {
			dir := t.TempDir()
			// It owns this program and nothing else.
			script := "#!/bin/sh\nfor last; do :; done\n[ $last = " + systemd.PackageBinary + " ]\n"
			if err := os.WriteFile(filepath.Join(dir, tc.program), []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
			t.Setenv("PATH", dir)
			if got := PackageTool(t.Context()); got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}
