package upgrade

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"rivulet/appliance/machine/process"
	"rivulet/fabric/changes"
	"rivulet/image/device/layout"
)

// TrialEnv is set in the environment of a tried version.
const TrialEnv = "RIVULET_ON_TRIAL"

// OnTrial reports whether this process is a tried version.
func OnTrial() bool { return os.Getenv(TrialEnv) != "" }

// steady is how many consecutive checks must succeed at the end of the window.
const steady = 3

// stopGrace is how long the tried version may take to stop.
const stopGrace = 50 * time.Second

// Try runs the new version as a child until its window ends, it ends, or ctx does. The child ends with this process:
// there is never a tried version without a judge.
func (d *Device) Try(ctx context.Context, s State) Verdict {
	a := *s.Attempt
	if a.Image != nil {
		// From here on this process evaluates the slot, and the timer for a missing judge is not needed.
		if err := os.Remove(layout.RunTrying); err != nil && !errors.Is(err, fs.ErrNotExist) {
			d.Log.Warn("the deadline of a slot that nobody judges goes on", "err", err)
		}
	}
	n := startNotify(d.Run, d.Log)
	defer n.close()
	n.send("WATCHDOG=1\nSTATUS=trying version " + a.Next.Name)
	child, err := d.spawn(a, n)
	if err != nil {
		return Verdict{Kind: Crashed, Reason: err.Error()}
	}
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, unix.SIGHUP) // reload: for the child
	defer signal.Stop(hup)
	look := time.NewTicker(a.Every)
	defer look.Stop()
	end := time.Now().Add(a.Window)
	good, want := 0, max(1, min(steady, int(a.Window/a.Every)))
	for {
		select {
		case err := <-child.Done:
			if ctx.Err() != nil {
				return Verdict{Kind: Stopped, Code: exitCode(err)}
			}
			changes.Wait(ctx, crashPause)
			return Verdict{Kind: Crashed, Reason: how(err)}
		case <-ctx.Done():
			return Verdict{Kind: Stopped, Code: exitCode(d.stop(child))}
		case sig := <-hup:
			_ = child.Signal(sig) // it may have ended
			continue
		case <-look.C:
		}
		if _, err := os.Stat(filepath.Join(d.dir(), cancelName)); err == nil {
			_ = d.stop(child)
			return Verdict{Kind: Unhealthy, Reason: "cancelled by hand"}
		}
		last := d.healthy(ctx, a)
		if last == nil {
			good++
		} else {
			good = 0
			d.Log.Warn("the version that is tried is not healthy", "version", a.Next.Name, "err", last)
		}
		if time.Now().Before(end) {
			continue
		}
		if child.Ended() || ctx.Err() != nil {
			continue // the channels have the result
		}
		_ = d.stop(child)
		switch {
		case last != nil:
			return Verdict{Kind: Unhealthy, Reason: fmt.Sprintf("not healthy after %s: %v", a.Window, last)}
		case good < want:
			return Verdict{Kind: Unhealthy, Reason: fmt.Sprintf("healthy at only the last %d of %d looks", good, want)}
		}
		return Verdict{Kind: Healthy}
	}
}

// crashPause is the pause before the restart of a version that ended by itself.
const crashPause = 2 * time.Second

// spawn starts the new version.
func (d *Device) spawn(a Attempt, n *notifier) (*process.Child, error) {
	program := d.binary(a.Next)
	if a.Image != nil {
		program = "/proc/self/exe" // the tried slot runs already, and so does its binary
	}
	cmd := exec.Command(program, d.Args...)
	cmd.Args[0] = binaryName
	cmd.Env = childEnv(os.Environ(), a.Next.Dir, n)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	c, err := process.Start(cmd, syscall.SIGKILL, nil)
	if err != nil {
		return nil, fmt.Errorf("it cannot be started: %w", err)
	}
	return c, nil
}

// childEnv is this process's environment with the notification socket of the judge and without the watchdog: the judge
// feeds that, and detects a hanging version by the window.
func childEnv(env []string, id string, n *notifier) []string {
	out := []string{TrialEnv + "=" + id}
	for _, kv := range env {
		switch name, _, _ := strings.Cut(kv, "="); name {
		case "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", TrialEnv:
		default:
			out = append(out, kv)
		}
	}
	if n.path != "" {
		out = append(out, "NOTIFY_SOCKET="+n.path)
	}
	return out
}

// stop ends the child in order, and its engine with it.
func (d *Device) stop(c *process.Child) error {
	err := c.Stop(stopGrace, func() {
		d.Log.Warn("the version that is tried does not stop; killing it", "pid", c.Pid)
	})
	if eerr := d.endEngine(context.Background()); eerr != nil {
		d.Log.Warn("an engine is left", "err", eerr)
	}
	return err
}

func exitCode(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit) && exit.ExitCode() >= 0:
		return exit.ExitCode()
	}
	return 1
}

// how describes how a process ended, in the terms of a shell user.
func how(err error) string {
	if err == nil {
		return "exit code 0"
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			return unix.SignalName(ws.Signal())
		}
		return fmt.Sprintf("exit code %d", exit.ExitCode())
	}
	return err.Error()
}
