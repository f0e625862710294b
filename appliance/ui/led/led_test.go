package led

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// lampAt makes the kernel's files of a lamp.
func lampAt(t *testing.T, dir, name string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{"brightness": "0", "trigger": "none mmc0 [heartbeat] timer"} {
		if err := os.WriteFile(filepath.Join(path, file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

func says(t *testing.T, path, file string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(path, file))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// How much of a minute the lamp is lit, and how often it changes, tells the states
// apart. It is looked at in steps of 25 ms, an odd moment after each.
func TestWhatTheLampSays(t *testing.T) {
	for _, c := range []struct {
		name             string
		state            State
		changes, lit, of int // in of steps
	}{
		{"well", Well, 60, 120, 2400},
		{"starting", Starting, 60, 1200, 2400},
		{"wrong", Wrong, 480, 1200, 2400},
	} {
		synctest.Test(t, func(t *testing.T) {
			dir := t.TempDir()
			path := lampAt(t, dir, "ACT")
			lampAt(t, dir, "PWR")
			ctx, stop := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				Run(ctx, dir, func() State { return c.state }, slog.New(slog.DiscardHandler))
				close(done)
			}()
			time.Sleep(time.Millisecond)
			lit, changes, was := 0, 0, "0"
			for range c.of {
				now := says(t, path, "brightness")
				if now == "1" {
					lit++
				}
				if now != was {
					changes++
				}
				was = now
				time.Sleep(25 * time.Millisecond)
			}
			if lit != c.lit || changes < c.changes-1 || changes > c.changes+1 {
				t.Errorf("%s: lit in %d of %d, %d changes; want %d, %d", c.name, lit, c.of, changes, c.lit, c.changes)
			}
			if got := says(t, path, "trigger"); !strings.HasPrefix(got, "none") {
				t.Errorf("the kernel has it: %q", got)
			}
			stop()
			<-done
			if got := says(t, path, "trigger"); !strings.HasPrefix(got, "heartbeat") {
				t.Errorf("the kernel did not get it back: %q", got)
			}
			if got := says(t, filepath.Join(dir, "PWR"), "trigger"); got != "none mmc0 [heartbeat] timer" {
				t.Errorf("another lamp was touched: %q", got)
			}
		})
	}
}

// A change of what there is to say is shown within two looks.
func TestTheLampFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		path := lampAt(t, dir, "led0")
		state := make(chan State, 1)
		last := Well
		go Run(t.Context(), dir, func() State {
			select {
			case last = <-state:
			default:
			}
			return last
		}, slog.New(slog.DiscardHandler))
		time.Sleep(time.Minute)
		state <- Wrong
		time.Sleep(2 * checkEvery)
		changes, was := 0, ""
		for range 40 {
			if now := says(t, path, "brightness"); now != was {
				changes, was = changes+1, now
			}
			time.Sleep(25 * time.Millisecond)
		}
		if changes < 7 {
			t.Errorf("%d changes in a second", changes)
		}
	})
}

// Without a lamp nothing happens; one that comes later is found; one that cannot be
// used is given up and said once.
func TestNoLampALateOneABrokenOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		var said bytes.Buffer
		done := make(chan struct{})
		go func() {
			Run(t.Context(), dir, func() State { return Wrong }, slog.New(slog.NewTextHandler(&said, nil)))
			close(done)
		}()
		time.Sleep(time.Minute)
		path := lampAt(t, dir, "ACT")
		time.Sleep(2 * checkEvery)
		synctest.Wait()
		if got := says(t, path, "trigger"); !strings.HasPrefix(got, "none") {
			t.Errorf("a lamp that came later: %q", got)
		}
		// A folder in its place: writing to it fails, even for root.
		if err := os.Remove(filepath.Join(path, "brightness")); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(filepath.Join(path, "brightness"), 0o755); err != nil {
			t.Fatal(err)
		}
		<-done
		if got := said.String(); strings.Count(got, "the lamp cannot be used") != 1 {
			t.Errorf("%q", got)
		}
	})
}
