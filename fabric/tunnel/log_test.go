package tunnel

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A process that runs for years and is made to talk all the time: there are two files of
// a bounded size, and the newest words are in the first, those of the runtime too.
func TestLogFileIsBounded(t *testing.T) {
	for name, spoil := range map[string]func(path string) error{
		"put aside":            func(string) error { return nil },
		"cannot be put aside":  func(path string) error { return os.MkdirAll(path+".1/x", 0o700) },
		"is there, and is big": func(path string) error { return os.WriteFile(path, bytes.Repeat([]byte("x"), 9000), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "tunnel.log")
			if err := spoil(path); err != nil {
				t.Fatal(err)
			}
			fd, err := unix.Open("/dev/null", unix.O_WRONLY|unix.O_CLOEXEC, 0) // stands for standard error
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(fd)
			const most = 4096
			l, err := openLogFile(path, fd, most)
			if err != nil {
				t.Fatal(err)
			}
			for n := range 1000 {
				if _, err := fmt.Fprintf(l, "line %d\n", n); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := unix.Write(fd, []byte("panic: x\n")); err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(path)
			if err != nil || len(got) > most+20 || !strings.HasSuffix(string(got), "line 999\npanic: x\n") {
				t.Errorf("%d bytes, %v, end %q", len(got), err, got[max(0, len(got)-40):])
			}
			if old, err := os.ReadFile(path + ".1"); err == nil && len(old) > most {
				t.Errorf("%d bytes are put aside", len(old))
			}
		})
	}
}

// The process logs into the bounded file from its first word on.
func TestProcessLogsToItsFile(t *testing.T) {
	w := newWorld(t)
	w.apply(t)
	for _, d := range []*board{w.a, w.b} {
		got, err := os.ReadFile(d.config.LogFile)
		if err != nil || !strings.Contains(string(got), "configuration in force") {
			t.Errorf("%q, %v", got, err)
		}
		at, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/2", d.pid(t)))
		if err != nil || at != d.config.LogFile {
			t.Errorf("standard error is %s, %v", at, err)
		}
	}
}
