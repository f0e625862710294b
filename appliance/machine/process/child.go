package process

import (
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// Child is a process that this one has started.
type Child struct {
	*os.Process
	Done chan error // receives how it ended, once
}

// Start starts a child in a process group of its own: Ctrl-C in a terminal reaches this process only. The kernel
// signals it when this process dies; that is tied to the thread that forked, which therefore lives as long as the
// child. ended, which may be nil, is called after it.
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

// Ended reports whether the child is gone, without taking how.
func (c *Child) Ended() bool { return len(c.Done) > 0 }

// Stop ends the child in order, and by force after grace; late is called then. It returns how the child ended.
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
