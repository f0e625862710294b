package lab

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Orders that a device's init takes, a line each on its socket. It answers "ok " and what it knows of the supervisor, or
// what went wrong.
//
//	start                            run the supervisor, unless it runs
//	status                           "running PID", "ended: exit code 1", "never started"
//	kill supervisor|engine|tunnel    SIGKILL, answered when the process is gone
//	stop                             SIGTERM to the supervisor, answered at once

// initSocketFD is the listener that a device's init inherits, the first of ExtraFiles.
const initSocketFD = 3

// consoleFile is the supervisor's output inside a device.
const consoleFile = "/var/log/rivulet.log"

// supervisor is what init knows of it. Whatever else ends in the device is only reaped.
type supervisor struct {
	mu   sync.Mutex // held over fork, too: nothing is reaped before it is known
	pid  int        // 0: does not run
	last string     // how it ended
	with []string   // what is made before the first start
}

// pid1 is a device's init: it reaps orphans and does what a service manager would, when it is told to.
func pid1(with []string) error {
	f := os.NewFile(initSocketFD, "init socket")
	l, err := net.FileListener(f)
	if err != nil {
		return fmt.Errorf("lab: init: %w", err)
	}
	f.Close()
	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)
	// Caught and dropped, not ignored: what is ignored stays so in every process and container of the device.
	signal.Notify(make(chan os.Signal, 1), unix.SIGHUP, unix.SIGINT, unix.SIGTERM)
	s := &supervisor{last: "never started", with: with}
	go s.reap(children)
	for {
		conn, err := l.Accept()
		if err != nil {
			return fmt.Errorf("lab: init: %w", err)
		}
		go func() {
			defer conn.Close()
			line, _ := bufio.NewReader(conn).ReadString('\n')
			if err := s.do(strings.TrimSpace(line)); err != nil {
				fmt.Fprintln(conn, err)
				return
			}
			fmt.Fprintln(conn, "ok "+s.String())
		}()
	}
}

func (s *supervisor) reap(children <-chan os.Signal) {
	for range children {
		for {
			s.mu.Lock()
			var ws unix.WaitStatus
			pid, err := unix.Wait4(-1, &ws, unix.WNOHANG, nil)
			if pid > 0 && pid == s.pid {
				s.pid, s.last = 0, "ended: "+howEnded(ws)
			}
			s.mu.Unlock()
			if pid <= 0 || err != nil {
				break
			}
		}
	}
}

func howEnded(ws unix.WaitStatus) string {
	if ws.Signaled() {
		return unix.SignalName(ws.Signal())
	}
	return fmt.Sprintf("exit code %d", ws.ExitStatus())
}

func (s *supervisor) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pid != 0 {
		return fmt.Sprintf("running %d", s.pid)
	}
	return s.last
}

func (s *supervisor) do(order string) error {
	what, isKill := strings.CutPrefix(order, "kill ")
	switch {
	case order == "status":
		return nil
	case order == "start":
		return s.start()
	case order == "stop":
		p, err := s.proc("supervisor")
		if err != nil {
			return err
		}
		return p.signal(unix.SIGTERM)
	case isKill:
		p, err := s.proc(what)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
		defer cancel()
		if err := p.kill(ctx); err != nil || what != "supervisor" {
			return err
		}
		return poll(ctx, 5*time.Millisecond, func() (bool, error) { // until it is reaped, so that a start may follow
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.pid != p.PID, nil
		})
	}
	return fmt.Errorf("unknown order %q", order)
}

func (s *supervisor) start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pid != 0 {
		return nil
	}
	if len(s.with) > 0 {
		if err := startOthers(s.with); err != nil {
			return err
		}
		s.with = nil
	}
	out, err := os.OpenFile(consoleFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer out.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	pid, err := syscall.ForkExec("/opt/rivulet/rivulet", []string{"rivulet", "run"}, &syscall.ProcAttr{
		Dir: "/", Env: os.Environ(), Files: []uintptr{null.Fd(), out.Fd(), out.Fd()}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return fmt.Errorf("start rivulet: %w", err)
	}
	s.pid = pid
	return nil
}

// startOthers starts the process that makes others (others.go), and returns when they are made.
func startOthers(with []string) error {
	ready, in, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		in.Close()
		return err
	}
	defer null.Close()
	_, err = syscall.ForkExec("/proc/self/exe", append([]string{othersName}, with...), &syscall.ProcAttr{
		Dir: "/", Env: os.Environ(), Files: []uintptr{null.Fd(), 1, 2, in.Fd()}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	in.Close()
	if err != nil {
		return fmt.Errorf("start %s: %w", othersName, err)
	}
	line, err := bufio.NewReader(ready).ReadString('\n')
	if err != nil {
		return fmt.Errorf("%s has ended: %w", othersName, err)
	}
	if line = strings.TrimSpace(line); line != othersReady {
		return errors.New(line)
	}
	return nil
}

// proc finds one of Rivulet's processes: the supervisor is our child, the others have a PID file.
func (s *supervisor) proc(what string) (Proc, error) {
	if what == "supervisor" {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.pid == 0 {
			return Proc{}, errors.New("rivulet does not run: start it with `rivulet-lab start`")
		}
		return procOf(s.pid)
	}
	return procOfFile(filepath.Join("/run/rivulet", what+".pid"))
}

// procOfFile refuses a process that is younger than the file: that one merely inherited the PID.
func procOfFile(file string) (Proc, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return Proc{}, fmt.Errorf("it has not written its PID down: %w", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil || pid <= 1 {
		return Proc{}, fmt.Errorf("%s holds no PID", file)
	}
	fi, err := os.Stat(file)
	if err != nil {
		return Proc{}, err
	}
	p, err := procOf(pid)
	if err != nil {
		return Proc{}, fmt.Errorf("process %d of %s does not run", pid, file)
	}
	var boot unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot); err != nil {
		return Proc{}, err
	}
	const tick = time.Second / 100 // /proc counts in these on every Linux that Go runs on
	age := time.Duration(boot.Nano()) - time.Duration(p.Start)*tick
	if time.Now().Add(-age).After(fi.ModTime().Add(100 * time.Millisecond)) {
		return Proc{}, fmt.Errorf("process %d is younger than %s: it is another one", pid, file)
	}
	return p, nil
}
