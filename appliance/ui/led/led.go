// Package led shows the state of a device by its lamp, for devices without a screen:
//
//	dark, a short flash every 2 s           all is well
//	on and off, 1 s each                    it is starting
//	quick blinking                          there is an error: see the status page
//
// It alone writes the lamp's files in /sys/class/leds, and restores them at the end. It does not use the kernel's
// triggers: a lamp that does not change means a device that hangs. Failure: one line in the log.
package led

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"rivulet/fabric/changes"
)

// Dir is the kernel's folder of lamps.
const Dir = "/sys/class/leds"

// names are those of the system lamp: in Debian's device trees for the Raspberry Pi, and in the vendor's.
var names = []string{"ACT", "led-act", "led0"}

// State is what the lamp shows.
type State int

const (
	Starting State = iota
	Well
	Wrong
)

// rhythm is how long the lamp is lit and dark in each cycle.
func (s State) rhythm() (lit, dark time.Duration) {
	switch s {
	case Well:
		return 100 * time.Millisecond, 1900 * time.Millisecond
	case Wrong:
		return 125 * time.Millisecond, 125 * time.Millisecond
	default:
		return time.Second, time.Second
	}
}

// checkEvery is the interval of checks of the state. The lamp may appear later, when udev loads its driver.
const checkEvery = 4 * time.Second

// Run shows the state until ctx ends.
func Run(ctx context.Context, dir string, state func() State, log *slog.Logger) {
	for {
		if l := find(dir); l != nil {
			err := l.run(ctx, state)
			if err != nil && !errors.Is(err, fs.ErrNotExist) { // the lamp is gone: it may return
				log.Warn("the lamp cannot be used; the status page says the same", "lamp", l.dir, "err", err)
				return
			}
		}
		if !changes.Wait(ctx, checkEvery) {
			return
		}
	}
}

type lamp struct{ dir string }

func find(dir string) *lamp {
	for _, name := range names {
		l := &lamp{filepath.Join(dir, name)}
		if _, err := os.Stat(l.file("brightness")); err == nil {
			return l
		}
	}
	return nil
}

func (l *lamp) file(name string) string { return filepath.Join(l.dir, name) }

// write writes to an existing file of the kernel.
func (l *lamp) write(name, text string) error {
	f, err := os.OpenFile(l.file(name), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString(text)
	return err
}

// chosen matches the active trigger of a list, the one in brackets.
var chosen = regexp.MustCompile(`\[([^]]+)\]`)

func (l *lamp) run(ctx context.Context, state func() State) error {
	before, err := os.ReadFile(l.file("trigger"))
	if err != nil {
		return err
	}
	if err := l.write("trigger", "none"); err != nil {
		return err
	}
	defer func() {
		if m := chosen.FindSubmatch(before); m != nil {
			_ = l.write("trigger", string(m[1]))
		}
	}()
	for {
		lit, dark := state().rhythm()
		for begun := time.Now(); time.Since(begun) < checkEvery; {
			for _, half := range []struct {
				brightness string
				length     time.Duration
			}{{"1", lit}, {"0", dark}} {
				if err := l.write("brightness", half.brightness); err != nil {
					return err
				}
				if !changes.Wait(ctx, half.length) {
					return nil
				}
			}
		}
	}
}
