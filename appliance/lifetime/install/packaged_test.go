package install

import (
	"os"
	"path/filepath"
	"testing"

	"rivulet/systemd"
)

func TestPackageTool(t *testing.T) {
	for _, tc := range []struct{ tool, program, database, want string }{
		{"dpkg", "dpkg-query", "", "dpkg"},
		{"rpm", "rpm", ".", "rpm"},
		{"rpm without a database, of which a query would make one", "rpm", "none", ""},
		{"neither", "other", "", ""},
	} {
		t.Run(tc.tool, func(t *testing.T) {
			dir := t.TempDir()
			// It owns this program and nothing else.
			script := "#!/bin/sh\nif [ $1 = --eval ]; then echo " + filepath.Join(dir, tc.database) + "; exit; fi\nfor last; do :; done\n[ $last = " + systemd.PackageBinary + " ]\n"
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
