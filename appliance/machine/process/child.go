package process

import (
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// Child is a child process of this one.
type Child struct {
	*os.Process
	Done chan error // receives the result, once
}

// Start starts a child in its own process group: Ctrl-C in a terminal reaches this process only. The kernel signals the
// child when this process dies; that is tied to the forking thread, which therefore lives as long as the child. ended,
// which may be nil, is called after the child's end.
func Start(cmd *exec.Cmd, death syscall.Signal, ended func()) (*Child, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: death}
	c := &Child{Done: make(chan error, 1)}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		c.Process = cmd.Process
		started <- err
		if err != nil {
			return
		}
		c.Done <- cmd.Wait()
		if ended != nil {
			ended()
		}
	}()
	return c, <-started
}

// Ended reports whether the child has ended, without taking the result.
func (c *Child) Ended() bool { return len(c.Done) > 0 }

// Stop ends the child by SIGTERM, and by SIGKILL after grace; late is called then. It returns the child's result.
func (c *Child) Stop(grace time.Duration, late func()) error {
	_ = c.Signal(syscall.SIGTERM) // it may have ended
	select {
	case err := <-c.Done:
		return err
	case <-time.After(grace):
		late()
		_ = c.Kill()
		return <-c.Done
	}
}
