package cli

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"rivulet/systemd"
)

func firstbootOn(root string) (out, errOut string, err error) {
	var o, e bytes.Buffer
	cmd := newFirstboot(&common{})
	cmd.SetArgs([]string{"--root", root})
	cmd.SetOut(&o)
	cmd.SetErr(&e)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	err = cmd.Execute()
	return o.String(), e.String(), err
}

// Somebody's PC is not renamed.
func TestFirstbootIsForTheImage(t *testing.T) {
	root := t.TempDir()
	if _, _, err := firstbootOn(root); err == nil || !strings.Contains(err.Error(), "not a device of Rivulet's image") {
		t.Errorf("%v", err)
	}
	if files, _ := os.ReadDir(root); len(files) > 0 {
		t.Errorf("it left %v", files)
	}
}

func TestFirstboot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, as on a device")
	}
	root := t.TempDir()
	for name, text := range map[string]string{systemd.ImageMark: "a\n", "/boot/firmware/rivulet.yaml": "name: bench-7\nshare: {cpu: 50}\n"} {
		path := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	out, errOut, err := firstbootOn(root)
	if err != nil || out != "this device is bench-7\n" || !strings.Contains(errOut, "rivulet.yaml:2:14: share.cpu") || strings.Count(errOut, "\n") != 1 {
		t.Errorf("%q %q %v", out, errOut, err)
	}
}

func TestOnDisplay(t *testing.T) {
	for tty, want := range map[string]bool{"/dev/tty1": true, "/dev/ttyS0": false, "/dev/ttyAMA0": false, "/dev/pts/3": false} {
		fd := filepath.Join(t.TempDir(), "1")
		if err := os.Symlink(tty, fd); err != nil {
			t.Fatal(err)
		}
		if got := onDisplay(fd); got != want {
			t.Errorf("%s: %v", tty, got)
		}
	}
}
