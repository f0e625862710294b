package cli

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/cobra"

	"rivulet/appliance/state/durable"
)

// A file is whole or as it was before, whatever fails on the way, and only the disk's
// errors have the disk's cure.
func TestFilesAreWholeOrNotThere(t *testing.T) {
	own := errors.New("the supervisor has gone; see: rivulet logs")
	write := func(text string, err error) func(io.Writer) error {
		return func(w io.Writer) error { _, werr := io.WriteString(w, text); return errors.Join(werr, err) }
	}
	for _, tt := range []struct {
		name string
		step string // that the disk refuses
		fill func(io.Writer) error
		want string // of the error
		left string
	}{
		{"all is well", "", write("new", nil), "", "new"},
		{"it breaks off", "", write("half", own), own.Error(), "old"},
		{"no file can be made", durable.Create, write("new", nil), "no space left on device; elsewhere", "old"},
		{"the disk is full at the end", durable.Sync, write("new", nil), "no space left on device; elsewhere", "old"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "file")
			if err := os.WriteFile(path, []byte("old"), 0o644); err != nil {
				t.Fatal(err)
			}
			durable.Failpoint = func(step, _ string) error {
				if step == tt.step {
					return syscall.ENOSPC
				}
				return nil
			}
			defer func() { durable.Failpoint = nil }()
			err := toFile(path, "elsewhere", tt.fill)
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || err.Error() != tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
			if raw, err := os.ReadFile(path); err != nil || string(raw) != tt.left {
				t.Errorf("%q %v, want %q", raw, err, tt.left)
			}
			if fi, err := os.Stat(path); err != nil || tt.left == "new" && fi.Mode().Perm() != 0o600 {
				t.Errorf("mode %v %v: others may read it", fi.Mode(), err)
			}
			if all, _ := os.ReadDir(filepath.Dir(path)); len(all) != 1 {
				t.Errorf("left behind: %v", all)
			}
		})
	}
}

// A write that the disk refuses is the disk's error, whatever is made of it on the way.
func TestAFullDisk(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("needs /dev/full")
	}
	defer full.Close()
	err = toFile(filepath.Join(t.TempDir(), "file"), "elsewhere", func(w io.Writer) error {
		w.(*durable.Writer).Writer = full
		if _, err := io.WriteString(w, "x"); err != nil {
			return errors.New("broken")
		}
		return nil
	})
	if err == nil || err.Error() != "write /dev/full: no space left on device; elsewhere" {
		t.Error(err)
	}
}

// A word that opens something need not be an argument, which every user of the machine sees.
func TestASecretWordMayComeFromStandardInput(t *testing.T) {
	for in, want := range map[string]string{"the token\nmore": "the token", " a link \r\n": "a link", "": "", "\nlate": ""} {
		cmd := &cobra.Command{Use: "join"}
		cmd.SetIn(strings.NewReader(in))
		got, err := secretWord(cmd, "-")
		if got != want || (err == nil) != (want != "") || err != nil && !strings.Contains(err.Error(), "join - < FILE") {
			t.Errorf("%q: %q, %v; want %q", in, got, err, want)
		}
	}
	if got, err := secretWord(&cobra.Command{}, "word"); got != "word" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}
