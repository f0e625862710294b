package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// Exit codes of Command that are not the program's own.
const (
	exitLab        = 125 // the device cannot be entered
	exitNotRunning = 126
	exitNotFound   = 127
)

// enter runs a program inside a device: DIR NAME PROGRAM ARGS... It joins the device's cgroups and namespaces, stays as
// the program's parent outside of the PID namespace, and ends with its exit code. Terminal, process group and
// environment are the caller's; the working directory is too, seen read-only below /host.
func enter() (int, error) {
	runtime.LockOSThread() // the namespaces are this thread's
	if len(os.Args) < 4 {
		return exitLab, fmt.Errorf("lab: %s needs a device and a program", enterName)
	}
	s, err := loadState(os.Args[1])
	if err != nil {
		return exitLab, err
	}
	name, argv := os.Args[2], os.Args[3:]
	d := s.device(name)
	if d == nil {
		return exitLab, fmt.Errorf("lab: there is no device %q", name)
	}
	hs, err := hostHierarchies()
	if err != nil {
		return exitLab, err
	}
	self, err := os.Open("/proc/self/exe") // the device does not see it by name
	if err != nil {
		return exitLab, fmt.Errorf("lab: %w", err)
	}
	cwd, cwdErr := os.Getwd()
	if err := errors.Join(joinCgroups(hs, s.ID, name, "init", os.Getpid()), joinNamespaces(d.Init)); err != nil {
		return exitLab, fmt.Errorf("lab: enter device %s: %w", name, err)
	}
	if cwdErr != nil || unix.Chdir("/host"+cwd) != nil {
		if err := unix.Chdir("/"); err != nil {
			return exitLab, fmt.Errorf("lab: %w", err)
		}
	}
	return runHere(self, argv)
}

// joinNamespaces takes the calling thread into all namespaces of p at once; its children follow into the PID namespace.
func joinNamespaces(p Proc) error {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if !p.Alive() {
		return os.ErrProcessDone
	}
	if err := unix.Unshare(unix.CLONE_FS); err != nil { // threads that share a root directory may not change it
		return err
	}
	return unix.Setns(fd, unix.CLONE_NEWNS|unix.CLONE_NEWPID|unix.CLONE_NEWNET|unix.CLONE_NEWUTS|unix.CLONE_NEWIPC|unix.CLONE_NEWCGROUP)
}

// runHere starts the program by way of this one, which then asks to be killed with us: Go's own way to ask that takes a
// parent in another PID namespace for a dead one.
func runHere(self *os.File, argv []string) (int, error) {
	// A terminal sends these to the program as well. Caught, because what is ignored the program would inherit.
	signal.Notify(make(chan os.Signal, 1), unix.SIGINT, unix.SIGQUIT)
	forward := make(chan os.Signal, 1)
	signal.Notify(forward, unix.SIGTERM, unix.SIGHUP)
	os.Unsetenv("PWD") // the caller's, not true here
	p, err := os.StartProcess(fmt.Sprintf("/proc/self/fd/%d", self.Fd()), append([]string{insideName}, argv...), &os.ProcAttr{
		Env: os.Environ(), Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
	})
	if err != nil {
		return exitLab, fmt.Errorf("lab: %w", err)
	}
	go func() {
		for sig := range forward {
			p.Signal(sig)
		}
	}()
	state, err := p.Wait()
	if err != nil {
		return exitLab, fmt.Errorf("lab: %w", err)
	}
	if ws := state.Sys().(syscall.WaitStatus); ws.Signaled() {
		return 128 + int(ws.Signal()), nil
	}
	return state.ExitCode(), nil
}

// inside becomes the program.
func inside() (int, error) {
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return exitLab, fmt.Errorf("lab: %w", err)
	}
	if err := leaveClockAlone(); err != nil {
		return exitLab, err
	}
	argv := os.Args[1:]
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return exitNotFound, fmt.Errorf("lab: %w", err)
	}
	return exitNotRunning, fmt.Errorf("lab: run %s: %w", path, unix.Exec(path, argv, os.Environ()))
}
