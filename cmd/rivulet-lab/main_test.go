package main

import (
	"errors"
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

// What cannot be is a mistake on the command line, before anything is made.
func TestWhatCannotBe(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--clusters", "a=3"}, "one server for each cluster"},
		{[]string{"--clusters", "a"}, "write NAME=1"},
		{[]string{"--clusters", "a=1", "--devices", "2"}, "leave out --devices"},
		{[]string{"--with", "foo"}, "all, or some of ufw,reject,docker,"},
		{[]string{"--with", "docker,"}, "all, or some of ufw,reject,docker,"},
	} {
		dir := t.TempDir()
		cmd := root()
		cmd.SetArgs(append([]string{"up", "--dir", dir}, c.args...))
		err := cmd.ExecuteContext(t.Context())
		var mistake *usageError
		if !errors.As(err, &mistake) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q", c.args, err, c.want)
		}
		if left, _ := os.ReadDir(dir); len(left) > 0 {
			t.Errorf("%v: %v was made", c.args, left)
		}
	}
}
