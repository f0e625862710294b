package lab

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// The names under which the program that imports this package is executed again.
const (
	lanName    = "rivulet-lab-lan"    // holds the LAN's network namespace
	bootName   = "rivulet-lab-boot"   // makes a device's mounts, then becomes initName
	initName   = "rivulet-lab-init"   // PID 1 of a device
	enterName  = "rivulet-lab-enter"  // runs one program inside a device
	insideName = "rivulet-lab-inside" // becomes that program
	othersName = "rivulet-lab-others" // makes in a device what other software makes there, and keeps it
	wardenName = "rivulet-lab-warden" // takes the lab down when its owner has ended
)

func init() {
	var err error
	switch filepath.Base(os.Args[0]) {
	case lanName:
		err = holdLAN()
	case bootName:
		err = boot()
	case initName:
		err = pid1(os.Args[1:])
	case othersName:
		err = keepOthers(os.Args[1:])
	case wardenName:
		if err = warden(os.Args[1]); err == nil {
			os.Exit(0)
		}
	case enterName, insideName:
		run := map[string]func() (int, error){enterName: enter, insideName: inside}[filepath.Base(os.Args[0])]
		code, err := run()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(code)
	default:
		return
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// bootConfig is given to a device's boot on standard input, once it is in its cgroups.
type bootConfig struct {
	Disk        string      // image of the device's own disk; empty: the folder root is its disk
	Memory      int64       // in bytes; 0: the host's
	Name        string      `json:"name"`
	Dir         string      `json:"dir"` // of the device, on the host
	BinDir      string      `json:"binDir"`
	Hierarchies []hierarchy `json:"hierarchies"`
	Env         []string    `json:"env"`
	Systemd     bool        `json:"systemd,omitempty"`
	With        []string    `json:"with,omitempty"`
}

// stay is what the LAN's process is told once it is written down, and whether there is a router.
const stay = "stay"

func holdLAN() error {
	line, err := bufio.NewReader(os.Stdin).ReadString('\n')
	var hasRouter bool
	if _, bad := fmt.Sscanf(line, stay+" %t\n", &hasRouter); err != nil || bad != nil {
		return errors.New("lab: the lab ended before this process was written down")
	}
	if hasRouter {
		if err := serveLAN(":53"); err != nil {
			return fmt.Errorf("lab: the router's resolver: %w", err)
		}
	}
	signal.Notify(make(chan os.Signal, 1), unix.SIGHUP, unix.SIGINT, unix.SIGTERM)
	for {
		_ = unix.Pause()
	}
}

// leaveClockAlone takes from the calling thread, and from all that it becomes and starts, the right to set the clock: it is
// the host's, and every device's.
func leaveClockAlone() error {
	if err := unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_SYS_TIME, 0, 0, 0); err != nil {
		return fmt.Errorf("lab: give up the right to set the clock: %w", err)
	}
	return nil
}

// boot runs in new network, mount, PID, UTS and IPC namespaces. It makes the device's file system and executes the
// init, so that no thread is left that was started before the cgroup namespace.
func boot() error {
	runtime.LockOSThread() // what may not be done any more is this thread's, until it executes the init
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
	if err := leaveClockAlone(); err != nil {
		return err
	}
	if c.Systemd {
		return becomeSystemd(c)
	}
	env := append([]string{"PATH=/opt/rivulet:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "TERM=dumb"}, c.Env...)
	// The program itself is on the host's disk, out of reach after the change of root: run it by its open file.
	return fmt.Errorf("lab: run init: %w", unix.Exec("/proc/self/exe", append([]string{initName}, c.With...), env))
}
