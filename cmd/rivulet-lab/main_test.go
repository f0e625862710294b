package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The rivulet to run is the one beside this program, whatever the working directory is; if
// there is none the error names the file and the cure.
func TestTheBinaryIsBesideTheProgram(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: nobody else may make a lab")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	cmd := root()
	cmd.SetArgs([]string{"up", "--dir", t.TempDir()})
	err = cmd.ExecuteContext(t.Context())
	if err == nil {
		t.Fatal("a lab without a rivulet")
	}
	for _, want := range []string{filepath.Join(filepath.Dir(self), "rivulet") + ":", "make build", "--binary"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
}
