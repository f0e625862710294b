package lab

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// The names under which the program that imports this package is executed again.
const (
	lanName   = "rivulet-lab-lan"   // holds the LAN's network namespace
	bootName  = "rivulet-lab-boot"  // makes a device's mounts, then becomes initName
	initName  = "rivulet-lab-init"  // PID 1 of a device
	enterName = "rivulet-lab-enter" // joins a device's cgroups, then becomes nsenter
)

func init() {
	var err error
	switch filepath.Base(os.Args[0]) {
	case lanName:
		for {
			unix.Pause()
		}
	case bootName:
		err = boot()
	case initName:
		err = pid1()
	case enterName:
		err = enter()
	default:
		return
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// bootConfig is given to a device's boot on standard input, once it is in its cgroups.
type bootConfig struct {
	Name        string      `json:"name"`
	Dir         string      `json:"dir"` // of the device, on the host
	BinDir      string      `json:"binDir"`
	Hierarchies []hierarchy `json:"hierarchies"`
	Env         []string    `json:"env"`
}

// boot runs in new network, mount, PID, UTS and IPC namespaces. It makes the device's file system and executes the
// init, so that no thread is left that was started before the cgroup namespace.
func boot() error {
	var c bootConfig
	if err := json.NewDecoder(os.Stdin).Decode(&c); err != nil {
		return fmt.Errorf("lab: boot: %w", err)
	}
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("lab: cgroup namespace: %w", err)
	}
	if err := unix.Sethostname([]byte(c.Name)); err != nil {
		return fmt.Errorf("lab: host name: %w", err)
	}
	if err := makeRoot(c); err != nil {
		return err
	}
	env := append([]string{"PATH=/opt/rivulet:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "TERM=dumb"}, c.Env...)
	// The program itself is on the host's disk, out of reach after the change of root: run it by its open file.
	return fmt.Errorf("lab: run init: %w", unix.Exec("/proc/self/exe", []string{initName}, env))
}

// pid1 reaps orphans, and starts the supervisor when asked to on the socket it inherited.
func pid1() error {
	f := os.NewFile(initSocketFD, "init socket")
	l, err := net.FileListener(f)
	if err != nil {
		return fmt.Errorf("lab: init: %w", err)
	}
	f.Close()
	children := make(chan os.Signal, 16)
	signal.Notify(children, unix.SIGCHLD)
	signal.Ignore(unix.SIGHUP, unix.SIGINT, unix.SIGTERM)
	go func() {
		for range children {
			for {
				var ws unix.WaitStatus
				if pid, err := unix.Wait4(-1, &ws, unix.WNOHANG, nil); pid <= 0 || err != nil {
					break
				}
			}
		}
	}()
	for {
		conn, err := l.Accept()
		if err != nil {
			return fmt.Errorf("lab: init: %w", err)
		}
		line, _ := bufio.NewReader(conn).ReadString('\n')
		answer := "ok"
		if strings.TrimSpace(line) != "start" {
			answer = "unknown request"
		} else if err := startSupervisor(); err != nil {
			answer = err.Error()
		}
		fmt.Fprintln(conn, answer)
		conn.Close()
	}
}

// initSocketFD is the listener that a device's init inherits, the first of ExtraFiles.
const initSocketFD = 3

// startSupervisor does what a service manager does; the reaper collects what ends.
func startSupervisor() error {
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
	_, err = os.StartProcess("/opt/rivulet/rivulet", []string{"rivulet", "run"}, &os.ProcAttr{
		Dir: "/", Env: os.Environ(), Files: []*os.File{null, out, out}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	return err
}

// consoleFile is the supervisor's output inside a device.
const consoleFile = "/var/log/rivulet.log"

// enter: PID-of-init ID NAME BINARY-DIR PROGRAM ARGS...
func enter() error {
	if len(os.Args) < 5 {
		return fmt.Errorf("lab: %s needs a device and a program", enterName)
	}
	pid, id, name := os.Args[1], os.Args[2], os.Args[3]
	hs, err := hostHierarchies()
	if err != nil {
		return err
	}
	if err := joinCgroups(hs, id, name, "init", os.Getpid()); err != nil {
		return err
	}
	if _, err := strconv.Atoi(pid); err != nil {
		return fmt.Errorf("lab: %q is no PID", pid)
	}
	const nsenter = "/usr/bin/nsenter"
	args := append([]string{"nsenter", "-t", pid, "-m", "-u", "-i", "-n", "-p", "-C", "-r", "-w", "--"}, os.Args[4:]...)
	return fmt.Errorf("lab: run %s: %w: install util-linux", nsenter, unix.Exec(nsenter, args, os.Environ()))
}
