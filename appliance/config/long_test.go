//go:build !race

package config

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// processor is the time that this process has computed for: it does not depend on what else
// the machine does.
func processor(t *testing.T) time.Duration {
	t.Helper()
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
		t.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// A long odd file takes no longer than a person waits, and its mistake has a line. One goroutine reads it.
func TestLongMistakes(t *testing.T) {
	for _, unit := range []string{"\n", "a: b\n", "- [\n- ]\n", "'\n", "[\n", "{a: \n}\n", " - a\n", "\"\\\n", "a:\n  b: [\n c]\n", "? \n", "# x\n"} {
		text := strings.Repeat(unit, maxSize/len(unit)-10) + "\t: [\n"
		begun := processor(t)
		got := problems(text)
		if d := processor(t) - begun; d > 20*time.Second || len(got) == 0 {
			t.Errorf("%q over and over: %s, %d problems", unit, d, len(got))
		} else {
			t.Logf("%q: %s, %.80s", unit, d, got[0])
		}
	}
}
