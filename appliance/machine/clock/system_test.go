package clock

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"rivulet/test/harness/await"
)

// The machine's own clock is read, never set: it is that of everybody here.
func TestMachine(t *testing.T) {
	m := Machine(slog.New(slog.DiscardHandler))
	boot, now := m.Boot(), m.Now()
	if boot <= 0 || apart(now, time.Now()) > time.Minute {
		t.Errorf("up for %s, and it is %s", boot, now)
	}
	if later := m.Boot(); later < boot || later-boot > time.Minute {
		t.Errorf("up for %s, then for %s", boot, later)
	}
	m.Discipline() // whatever it says, it is no error
	if chip, err := m.Chip(); err == nil && chip.Year() < 1970 {
		t.Errorf("the chip says %s", chip)
	}
}

// The timer that tells of changes ends with its context, and leaves nothing open.
func TestChangesEnd(t *testing.T) {
	timers := func() (n int) {
		fds, _ := filepath.Glob("/proc/self/fd/*")
		for _, fd := range fds {
			if to, _ := os.Readlink(fd); to == "anon_inode:[timerfd]" {
				n++
			}
		}
		return n
	}
	before := timers()
	ctx, cancel := context.WithCancel(t.Context())
	changes := Machine(slog.New(slog.DiscardHandler)).Changes(ctx)
	if timers() != before+1 {
		t.Skip("needs a kernel with timerfd")
	}
	select {
	case <-changes:
		t.Error("a change is told, and nobody has set the clock")
	case <-time.After(20 * time.Millisecond):
	}
	cancel()
	await.True(t, 5*time.Second, "the timer is closed", func() bool { return timers() == before })
}
