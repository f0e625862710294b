package vcluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"rivulet/appliance/engine/controlplane"
	"rivulet/appliance/machine/host"
	machine "rivulet/appliance/machine/process"
)

// process is a running control plane, started by this supervisor or an earlier one.
type process struct {
	pid      int
	fd       int           // pidfd
	reports  *os.File      // its status messages; nil for a version that only logs them
	old      bool          // of another version than this supervisor
	ending   bool          // it has the signal to end once it is unused
	ended    chan struct{} // closed at its end
	code     int           // exit code, after ended; -1: unknown, or a signal
	logStart int64         // offset of its output in the log
}

// maxReports bounds the reports of a process, bytes.
const maxReports = 4 << 10

// reported returns the lines of its reports so far. They stay in the socket for a later supervisor.
func (p *process) reported() []string {
	raw := make([]byte, maxReports)
	n := 0
	if conn, err := p.reports.SyscallConn(); err == nil {
		_ = conn.Control(func(fd uintptr) {
			n, _, _ = unix.Recvfrom(int(fd), raw, unix.MSG_PEEK|unix.MSG_DONTWAIT)
		})
	}
	lines := strings.Split(string(raw[:max(n, 0)]), "\n")
	return lines[:len(lines)-1] // the last is incomplete
}

// endIdle makes it end once it is unused.
func (p *process) endIdle() {
	if p.ending || p.reports == nil { // the signal would end a version without reports at once
		return
	}
	p.ending = true
	_ = unix.PidfdSendSignal(p.fd, controlplane.ReplaceSignal, nil, 0)
}

func (p *process) usable() bool {
	return p.reports == nil || slices.Contains(p.reported(), controlplane.Usable)
}

// asleep reports whether it ended to sleep, and when it is due again; zero: never, or unknown.
func (p *process) asleep() (asleep bool, due time.Time) {
	if p.reports == nil {
		return false, due
	}
	for _, line := range p.reported() {
		word, number, _ := strings.Cut(line, " ")
		if word != controlplane.Asleep {
			continue
		}
		asleep = true
		if at, err := strconv.ParseInt(number, 10, 64); err == nil && at > 0 {
			due = time.Unix(at, 0)
		}
	}
	return asleep, due
}

// awaitUsable returns a channel that is closed after the first report, which is that it is usable.
func (p *process) awaitUsable() <-chan struct{} {
	said := make(chan struct{})
	go func() {
		defer close(said)
		_ = awaitReadable(p.reports) // forget ends it
	}()
	return said
}

// listen opens the port of a virtual cluster.
func listen(addr netip.AddrPort) (*os.File, error) {
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(addr))
	if err != nil {
		return nil, err
	}
	defer l.Close()
	return l.File()
}

// awaitReadable returns nil once a connection waits in a listening socket, or the process of a pidfd has ended. It
// returns an error after the deadline of the file.
func awaitReadable(f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Read(func(fd uintptr) bool {
		n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return n > 0
	})
}

// launch is how to start a process.
type launch struct {
	executable string
	dir        string // its root
	log        string // file of its output
	pidFile    string
	settings   controlplane.Settings
	listener   *os.File
	memory     int64 // limit, bytes
}

// logBound is the size at which the log is truncated, bytes; logLook is the interval of checks while the process runs.
const (
	logBound = 4 << 20
	logLook  = time.Minute
)

// start starts the process, which is not usable yet.
func (l launch) start() (*process, error) {
	raw, err := json.Marshal(l.settings)
	if err != nil {
		return nil, err
	}
	boundLog(l.log)
	out, err := os.OpenFile(l.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, diskErr(err)
	}
	defer out.Close()
	cmd := exec.Command(l.executable)
	cmd.Args = []string{controlplane.Name}
	cmd.Dir = l.dir
	// GOGC has its default until the process is usable; the limit is for peaks, not a goal.
	cmd.Env = []string{controlplane.Env + "=" + string(raw), "TMPDIR=" + controlplane.Data, "HOME=" + controlplane.Data, "TZ=UTC", "GOGC=100", "GOMEMLIMIT=" + strconv.FormatInt(l.memory*3/4, 10)}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("vcluster: %w", err)
	}
	status, reports := os.NewFile(uintptr(pair[0]), "status"), os.NewFile(uintptr(pair[1]), "reports")
	defer status.Close()
	// ListenFD, StatusFD, ReportsFD.
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = out, out, []*os.File{l.listener, status, reports}
	pidfd := -1
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC, Setsid: true, PidFD: &pidfd}
	if err := cmd.Start(); err != nil {
		reports.Close()
		return nil, fmt.Errorf("vcluster: start the control plane: %w; is the kernel without network namespaces? see: rivulet doctor", err)
	}
	p := &process{pid: cmd.Process.Pid, fd: pidfd, reports: reports, ended: make(chan struct{})}
	err = errors.Join(confine(l.settings.Name, p.pid, l.memory), writeFile(l.pidFile, []byte(fmt.Sprintf("%d %s\n", p.pid, startTime(p.pid))), 0o600, 0))
	if err != nil {
		_ = cmd.Process.Kill()
	}
	go func() {
		defer close(p.ended)
		_ = cmd.Wait()
		p.code = cmd.ProcessState.ExitCode()
	}()
	if err != nil {
		<-p.ended
		p.forget()
		return nil, err
	}
	return p, nil
}

// boundLog truncates a large file; its writers append, so no line is torn.
func boundLog(path string) {
	if st, err := os.Stat(path); err == nil && st.Size() > logBound {
		_ = os.Truncate(path, 0)
	}
}

// startTime returns the start time in ticks since boot, which distinguishes a process from a later one with its number.
func startTime(pid int) string {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	if fields := machine.StatFields(string(raw)); len(fields) > 19 {
		return fields[19]
	}
	return ""
}

// elsewhere reports whether a process has another root. A process that has just started has the device's.
func elsewhere(pid int, root string) bool {
	at := fmt.Sprintf("/proc/%d/root", pid)
	its, err := os.Stat(at)
	if link, e := os.Readlink(at); err != nil || e != nil || link == "/" {
		return false
	}
	ours, err := os.Stat(root)
	return err != nil || !os.SameFile(its, ours)
}

// adopt finds the process of an earlier supervisor, and its listening socket. It ends a process with another root than
// root, if that is given: after a restore another virtual cluster has its name.
func adopt(pidFile, root string) (*process, *os.File, error) {
	raw, err := os.ReadFile(pidFile)
	if err != nil {
		return nil, nil, err
	}
	number, since, _ := strings.Cut(strings.TrimSpace(string(raw)), " ")
	pid, err := strconv.Atoi(number)
	if err != nil {
		return nil, nil, err
	}
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, nil, err
	}
	if since == "" || startTime(pid) != since { // the number is reused
		unix.Close(fd)
		return nil, nil, os.ErrProcessDone
	}
	socket, err := -1, error(nil)
	if root != "" && elsewhere(pid, root) {
		err = errors.New("it is of a virtual cluster that has been set aside")
	}
	if err == nil {
		socket, err = unix.PidfdGetfd(fd, controlplane.ListenFD, 0)
	}
	if err == nil {
		if on, e := unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_ACCEPTCONN); e != nil || on != 1 {
			unix.Close(socket)
			err = fmt.Errorf("descriptor %d is something else", controlplane.ListenFD)
		}
	}
	if err != nil { // it cannot be managed, and blocks a new one
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		// Frees its port.
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(endLimit.Milliseconds()))
		unix.Close(fd)
		return nil, nil, fmt.Errorf("the listening socket of process %d: %w", pid, err)
	}
	_ = unix.SetNonblock(socket, true)
	p := &process{pid: pid, fd: fd, reports: reportsOf(fd), code: -1, ended: make(chan struct{})}
	go func() {
		defer close(p.ended)
		again, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return
		}
		f := os.NewFile(uintptr(again), "pidfd") // readable after its end
		defer f.Close()
		_ = awaitReadable(f)
	}()
	return p, os.NewFile(uintptr(socket), "listener"), nil
}

// reportsOf takes over the reports of a process, nil if its version has none.
func reportsOf(pidfd int) *os.File {
	fd, err := unix.PidfdGetfd(pidfd, controlplane.ReportsFD, 0)
	if err != nil {
		return nil
	}
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	kind, e := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil || e != nil || domain != unix.AF_UNIX || kind != unix.SOCK_STREAM || unix.SetNonblock(fd, true) != nil {
		unix.Close(fd)
		return nil
	}
	return os.NewFile(uintptr(fd), "reports")
}

// sameFile reports whether two paths lead to one file.
func sameFile(a, b string) bool {
	x, err := os.Stat(a)
	y, e := os.Stat(b)
	return err == nil && e == nil && os.SameFile(x, y)
}

// replaceBy returns when processes of other versions have to be replaced: within after the installation of executable.
func replaceBy(executable string, within time.Duration) time.Time {
	var st unix.Stat_t
	if unix.Stat(executable, &st) != nil {
		return time.Now().Add(within)
	}
	return time.Unix(st.Ctim.Unix()).Add(within)
}

// replaceBy returns why a running process has to be replaced, "" if it has not, and until when. Its certificates are to be
// renewed at renew; zero is unknown.
func (p *process) replaceBy(executable string, renew time.Time, within time.Duration) (by time.Time, why string) {
	switch {
	case p.old:
		return replaceBy(executable, within), "of another version"
	case !renew.IsZero() && time.Now().After(renew):
		return renew.Add(within), "with certificates that are due for renewal"
	}
	return by, ""
}

// endLimit is how long an orderly end may take.
const endLimit = 15 * time.Second

// end ends the process, by SIGKILL after endLimit.
func (p *process) end(ctx context.Context) {
	for _, step := range []struct {
		signal unix.Signal
		wait   time.Duration
	}{{unix.SIGTERM, endLimit}, {unix.SIGKILL, endLimit}} {
		_ = unix.PidfdSendSignal(p.fd, step.signal, nil, 0)
		select {
		case <-p.ended:
			return
		case <-ctx.Done():
		case <-time.After(step.wait):
		}
	}
	<-p.ended
}

// forget releases the process's files. It is called once, after its end, when nothing signals it any more.
func (p *process) forget() {
	unix.Close(p.fd)
	if p.reports != nil {
		p.reports.Close()
	}
}

const cgroupName = "rivulet-vclusters"

// cgroups are the hierarchies for memory limits and CPU weights: version 2, and both controllers of version 1.
var cgroups = []struct{ root, probe, file string }{
	{"/sys/fs/cgroup", "cgroup.controllers", "memory.max"},
	{"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.limit_in_bytes"},
	{"/sys/fs/cgroup/cpu", "cpu.shares", ""},
}

// confine puts a process into its own cgroup under one for all virtual clusters. That one has the CPU weight of one
// service, the engine that of several (CPUWeight of the unit). Under memory pressure the kernel kills the process
// before the engine and after pods above their requests. Without the memory controller (a Raspberry Pi before its first
// boot parameter) there is no memory limit, without the CPU controller no weight.
func confine(name string, pid int, memory int64) error {
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte(scoreOver("/proc/self/oom_score_adj")), 0o644); err != nil {
		return fmt.Errorf("vcluster: %w", err)
	}
	for _, c := range cgroups {
		if _, err := os.Stat(filepath.Join(c.root, c.probe)); err != nil {
			continue
		}
		parent := filepath.Join(c.root, cgroupName)
		dir := filepath.Join(parent, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("vcluster: %w; is /sys/fs/cgroup mounted read-only?", err)
		}
		for _, controller := range []string{"+memory", "+cpu"} {
			_ = os.WriteFile(filepath.Join(c.root, "cgroup.subtree_control"), []byte(controller), 0o644)
			_ = os.WriteFile(filepath.Join(parent, "cgroup.subtree_control"), []byte(controller), 0o644)
		}
		if limit := filepath.Join(dir, c.file); c.file != "" {
			if _, err := os.Stat(limit); err == nil {
				if err := os.WriteFile(limit, []byte(strconv.FormatInt(memory, 10)), 0o644); err != nil {
					return fmt.Errorf("vcluster: %w", err)
				}
			}
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o644); err != nil && c.file != "" {
			return fmt.Errorf("vcluster: %w", err)
		}
	}
	return nil
}

// scoreOver is the score of a control plane under memory pressure: above the supervisor's, which the engine has, too. It is 0
// under systemd (OOMScoreAdjust of the unit).
func scoreOver(own string) string {
	raw, err := os.ReadFile(own)
	score, e := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil || e != nil {
		return "0"
	}
	return strconv.Itoa(min(max(score+500, 0), 1000))
}

func removeCgroup(name string) {
	for _, c := range cgroups {
		_ = os.Remove(filepath.Join(c.root, cgroupName, name))
	}
}

// memoryOf returns the private memory of a process, bytes; 0 if that cannot be read.
func memoryOf(pid int) int64 {
	raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	return int64(host.Fields(string(raw))["RssAnon"]) << 10
}
