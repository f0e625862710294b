package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Errors that callers tell apart.
var (
	ErrNoLab = errors.New("no lab")
	ErrUp    = errors.New("a lab is up already")
)

// Options say what to make.
type Options struct {
	Dir     string // the lab's folder; everything is below it
	Binary  string // the rivulet binary; devices see its folder as /opt/rivulet
	Devices int    // named a, b, c …
	// Clusters, instead of Devices, says which devices to make: see ParseClusters. Join makes them clusters.
	Clusters []Cluster
	// Disk, in bytes, gives each device an ext4 disk of that size: it can be full, and a power cut loses what was not
	// synced. 0: a folder on the host's disk.
	Disk int64
	// Memory, in bytes, is how much each device has, and believes to have. 0: all of the host's.
	Memory int64
	// CPUs is how many of the host's cores each device may use, all of it together. 0: all of them. See SetCPUs.
	CPUs float64
	// Unplugged boots the devices without their cables; Heal plugs them in.
	Unplugged bool
	// Env is given to `rivulet run`, by device; "" is for all devices.
	Env map[string][]string
	// Warm leaves the program in the page cache, if this boot has read it anew before: for labs whose memory nobody judges.
	Warm bool
	// Systemd names devices whose PID 1 is the host's systemd. Rivulet is not started on them:
	// it is there as /opt/rivulet/rivulet, to be installed.
	Systemd []string
	// With names what each device has beside Rivulet: see Others and ParseWith. A LAN of such devices has a router.
	With []string
	// Tell is called with each step, for people; it may be nil.
	Tell func(format string, args ...any)
}

// Lab is a set of devices on one LAN. A Lab may be used by one goroutine at a time; several processes may hold it open.
type Lab struct {
	dir  string
	tell func(string, ...any)
}

// DefaultDir is where the lab of the demo lives.
const DefaultDir = "/var/lib/rivulet-lab"

// Beside is the rivulet in the folder of the program that calls it.
func Beside() string {
	self, err := os.Executable()
	if err != nil { // without /proc; Up names the file that is missing
		return "rivulet"
	}
	return filepath.Join(filepath.Dir(self), "rivulet")
}

// uncached has the devices read the program from the disk, as after a boot. The linker's output has folios of 2 MiB in
// the page cache, of which Linux 6.18 maps each as a whole: 190 MB of the ELF instead of 100 for each process. What an
// installation or an upgrade writes has folios of 64 KiB. A warm lab does it once for each build and boot.
func uncached(binary string, warm bool) error {
	f, err := os.Open(binary)
	if err != nil {
		return err
	}
	defer f.Close()
	var at unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &at); err != nil {
		return err
	}
	this := fmt.Sprintln(at.Dev, at.Ino, at.Size, at.Mtim.Nano())
	if last, err := os.ReadFile(readAnew); warm && err == nil && string(last) == this {
		return nil
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return err
	}
	return os.WriteFile(readAnew, []byte(this), 0o600)
}

// readAnew names the build that was read anew last. It is in memory: after a boot nothing is cached.
const readAnew = "/run/rivulet-lab.read"

// Up makes the devices and starts rivulet on each. When it fails it removes what it made; when it is killed, Down does.
func Up(ctx context.Context, o Options) (*Lab, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("lab: namespaces and cgroups need root: use sudo")
	}
	binary, err := filepath.Abs(o.Binary)
	if err != nil {
		return nil, fmt.Errorf("lab: %w", err)
	}
	if _, err := os.Stat(binary); err != nil {
		return nil, fmt.Errorf("lab: there is no rivulet to run: %w; build it with make build, or name another with --binary", err)
	}
	if filepath.Base(binary) != "rivulet" {
		return nil, fmt.Errorf("lab: the binary must be called rivulet, not %s", filepath.Base(binary))
	}
	if err := uncached(binary, o.Warm); err != nil {
		return nil, fmt.Errorf("lab: %w", err)
	}
	names := o.names()
	if len(names) < 1 || len(names) > maxDevices {
		return nil, fmt.Errorf("lab: %d devices: choose 1 to %d", len(names), maxDevices)
	}
	for name := range o.Env {
		if name != "" && !slices.Contains(names, name) {
			return nil, fmt.Errorf("lab: environment for %q: there is no device of that name; there are %s", name, strings.Join(names, ", "))
		}
	}
	if err := validCPUs(o.CPUs); err != nil {
		return nil, err
	}
	if _, err := ParseWith(strings.Join(o.With, ",")); err != nil {
		return nil, err
	}
	if len(o.With) > 0 && len(o.Systemd) > 0 {
		return nil, errors.New("lab: a device whose PID 1 is systemd starts what it has by itself: leave out With")
	}
	hs, err := hostHierarchies()
	if err != nil {
		return nil, err
	}
	dir, err := labDir(o.Dir)
	if err != nil {
		return nil, err
	}
	l := &Lab{dir: dir, tell: o.Tell}
	unlock, err := lock(dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if _, err := os.Stat(stateFile(dir)); err == nil {
		return nil, fmt.Errorf("lab: %w in %s: use it, or end it with `rivulet-lab down`", ErrUp, dir)
	}
	s := &state{ID: newID(), Boot: hostBoot(), Binary: binary, Disk: o.Disk, Memory: o.Memory, CPUs: o.CPUs, With: o.With, NextIP: firstNewIP}
	for _, h := range hs {
		s.Cgroups = append(s.Cgroups, filepath.Join(h.Mount, cgroupName(s.ID)))
	}
	for i, name := range names {
		s.Devices = append(s.Devices, deviceState{
			Name: name, Address: lanAddress(firstIP + i), MAC: fmt.Sprintf("02:77:00:00:00:%02x", firstIP+i),
			Env: slices.Concat(o.Env[""], o.Env[name]), Unplugged: o.Unplugged,
			Systemd: slices.Contains(o.Systemd, name),
		})
	}
	if err := s.save(dir); err != nil {
		return nil, err
	}
	if warning := inotifyShortage(len(names)); warning != "" {
		l.say("%s", warning)
	}
	if err := l.make(ctx, s, hs); err != nil {
		// ctx may be what ended it; cleaning up has its own time.
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		return nil, errors.Join(err, l.remove(clean, s))
	}
	return l, nil
}

// make makes what the state says, which is on disk by now.
func (l *Lab) make(ctx context.Context, s *state, hs []hierarchy) error {
	if len(s.With) == 0 {
		l.say("one LAN, 10.77.0.0/24, no router, no Internet")
	} else {
		l.say("one LAN, 10.77.0.0/24, a router without Internet; on each device: %s", strings.Join(s.With, ", "))
	}
	if err := l.startLAN(s, hs); err != nil {
		return err
	}
	for i := range s.Devices {
		l.say("device %s at %s starts", s.Devices[i].Name, s.Devices[i].Address)
		if err := l.boot(ctx, s, &s.Devices[i], hs); err != nil {
			return err
		}
	}
	return nil
}

// labDir makes the lab's folder, if it can carry the devices' disks.
func labDir(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("lab: %w", err)
	}
	if strings.ContainsAny(dir, `:,\`) {
		return "", fmt.Errorf("lab: %s: a colon, comma or backslash cannot be part of an overlay's options: choose another folder", dir)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("lab: %w", err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err == nil && fs.Type == unix.OVERLAYFS_SUPER_MAGIC {
		return "", fmt.Errorf("lab: %s is on an overlay, which cannot carry another: choose a folder on a disk", dir)
	}
	return dir, nil
}

// Open finds a lab that Up made.
func Open(dir string) (*Lab, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("lab: %w", err)
	}
	if _, err := loadState(dir); err != nil {
		return nil, err
	}
	return &Lab{dir: dir}, nil
}

func (l *Lab) say(format string, args ...any) {
	if l.tell != nil {
		l.tell(format, args...)
	}
}

// startLAN makes the process that holds the LAN's namespace, and the bridge in it.
func (l *Lab) startLAN(s *state, hs []hierarchy) error {
	cmd := reexec(lanName)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: unix.CLONE_NEWNET}
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("lab: %w", err)
	}
	defer w.Close()
	cmd.Stdin = r
	s.LAN, err = begin(cmd)
	r.Close()
	if err != nil {
		return err
	}
	if err := s.save(l.dir); err != nil {
		return err
	}
	// Until it is told to stay it ends with us: nobody has to find it who has no record of it.
	if _, err := fmt.Fprintln(w, stay, len(s.With) > 0); err != nil {
		return fmt.Errorf("lab: the LAN's process ended: %w", err)
	}
	if err := makeCgroups(hs, s.ID, "lan"); err != nil {
		return err
	}
	if err := joinCgroups(hs, s.ID, "lan", "", s.LAN.PID); err != nil {
		return err
	}
	return makeBridge(s.LAN, len(s.With) > 0)
}

// reexec is this program under another name.
func reexec(name string, args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Args[0] = name
	return cmd
}

// begin starts a process that will outlive this one, and says who it is.
func begin(cmd *exec.Cmd) (Proc, error) {
	if err := cmd.Start(); err != nil {
		return Proc{}, fmt.Errorf("lab: start %s: %w", cmd.Args[0], err)
	}
	p, err := procOf(cmd.Process.Pid)
	go cmd.Wait() // or it stays a zombie while we live
	if err != nil {
		return Proc{}, fmt.Errorf("lab: %s ended at once: %w", cmd.Args[0], err)
	}
	return p, nil
}

func (l *Lab) deviceDir(name string) string { return filepath.Join(l.dir, name) }
func (l *Lab) initSocket(name string) string {
	return filepath.Join(l.deviceDir(name), "init.sock")
}

// boot switches a device on: namespaces, cgroups, cable, and then rivulet.
func (l *Lab) boot(ctx context.Context, s *state, d *deviceState, hs []hierarchy) error {
	dir := l.deviceDir(d.Name)
	if err := os.MkdirAll(filepath.Join(dir, "root"), 0o755); err != nil {
		return fmt.Errorf("lab: %w", err)
	}
	if err := makeCgroups(hs, s.ID, d.Name); err != nil {
		return err
	}
	if s.Memory > 0 {
		if err := limitMemory(hs, s.ID, d.Name, s.Memory); err != nil {
			return err
		}
	}
	if s.CPUs > 0 {
		if err := limitCPU(hs, s.ID, d.Name, s.CPUs); err != nil {
			return err
		}
	}
	disk := ""
	if s.Disk > 0 {
		disk = filepath.Join(dir, diskFile)
		if err := errors.Join(makeDisk(disk, s.Disk), waitDisk(ctx, disk)); err != nil {
			return err
		}
	}
	os.Remove(l.initSocket(d.Name))
	at, closeDir, err := l.socketName(d.Name)
	if err != nil {
		return err
	}
	defer closeDir()
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: at, Net: "unix"})
	if err != nil {
		return fmt.Errorf("lab: %w", err)
	}
	listener.SetUnlinkOnClose(false)
	defer listener.Close()
	socket, err := listener.File()
	if err != nil {
		return fmt.Errorf("lab: %w", err)
	}
	defer socket.Close()
	console, err := os.OpenFile(filepath.Join(dir, "init.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("lab: %w", err)
	}
	defer console.Close()

	cmd := reexec(bootName)
	cmd.Stdout, cmd.Stderr = console, console
	cmd.ExtraFiles = []*os.File{socket}
	cmd.Dir = "/"
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("lab: %w", err)
	}
	cmd.Stdin = r
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC}
	p, err := begin(cmd)
	r.Close()
	if err != nil {
		w.Close()
		return err
	}
	d.Init = p
	if err := s.save(l.dir); err != nil {
		w.Close()
		return err
	}
	// It waits for its configuration until it is in its cgroups: what it sees as their roots follows from that.
	err = joinCgroups(hs, s.ID, d.Name, "", p.PID)
	if err == nil {
		err = json.NewEncoder(w).Encode(bootConfig{Name: d.Name, Dir: dir, BinDir: filepath.Dir(s.Binary), Hierarchies: hs, Env: d.Env, Disk: disk, Memory: s.Memory, Systemd: d.Systemd, With: s.With})
	}
	w.Close()
	if err == nil {
		err = startLoopback(d)
	}
	for _, n := range d.nics() {
		if err == nil {
			err = plugIn(s.LAN, d, n)
		}
	}
	if err == nil {
		err = applyCables(s)
	}
	if err == nil {
		_, err = l.askInit(ctx, d, "start")
	}
	if err != nil {
		if log, _ := os.ReadFile(filepath.Join(dir, "init.log")); len(log) > 0 {
			err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(log)))
		}
	}
	return err
}

// socketName is a name for a device's socket that fits into the 107 bytes that it may have, wherever the lab is.
func (l *Lab) socketName(device string) (string, func(), error) {
	dir, err := os.Open(l.deviceDir(device))
	if err != nil {
		return "", nil, fmt.Errorf("lab: %w", err)
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(l.initSocket(device))), func() { dir.Close() }, nil
}

// askInit has a device's init do something: see pid1.go. It returns what init says of the supervisor.
func (l *Lab) askInit(ctx context.Context, d *deviceState, order string) (string, error) {
	if d.Systemd {
		return l.askSystemd(ctx, d, order)
	}
	limit := 20 * time.Second
	if order == "start" { // a busy machine makes others slowly
		limit = time.Minute
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	name, closeDir, err := l.socketName(d.Name)
	if err != nil {
		return "", err
	}
	defer closeDir()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", name)
	if err != nil {
		return "", fmt.Errorf("lab: device %s does not answer: %w", d.Name, err)
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	conn.SetDeadline(deadline)
	fmt.Fprintln(conn, order)
	answer, err := io.ReadAll(conn)
	if err != nil || len(answer) == 0 {
		return "", fmt.Errorf("lab: device %s gave no answer to %s: %w", d.Name, order, errors.Join(err, io.ErrUnexpectedEOF))
	}
	got, ok := strings.CutPrefix(strings.TrimSpace(string(answer)), "ok ")
	if !ok {
		return "", fmt.Errorf("lab: device %s: %s", d.Name, got)
	}
	return got, nil
}

// Down ends everything of the lab and removes its folder. It may be called on a lab that was left half made, and again.
func Down(ctx context.Context, dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("lab: %w", err)
	}
	if _, err := os.Stat(dir); err != nil {
		_, err = loadState(dir) // says that there is none
		return err
	}
	unlock, err := lock(dir)
	if err != nil {
		return err
	}
	defer unlock()
	s, err := loadState(dir)
	if errors.Is(err, ErrNoLab) { // an Up that was killed before it had made anything
		if err := endWarden(ctx, dir); err != nil {
			return err
		}
		for _, name := range []string{stateFile(dir) + ".new", filepath.Join(dir, "lock"), ownerFile(dir) + ".new", ownerFile(dir), dir} {
			os.Remove(name)
		}
	}
	if err != nil {
		return err
	}
	return (&Lab{dir: dir}).remove(ctx, s)
}

// remove ends and removes what the state names and nothing else, the state last: a removal that is cut short can be
// repeated. The lock is held.
func (l *Lab) remove(ctx context.Context, s *state) error {
	var errs []error
	for _, d := range s.Devices {
		errs = append(errs, d.Init.kill(ctx)) // the init of a PID namespace takes everything in it along, and its mounts
	}
	errs = append(errs, s.LAN.kill(ctx))
	for _, c := range s.Cgroups {
		errs = append(errs, killCgroup(ctx, c), removeCgroup(ctx, c))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, d := range s.Devices {
		if err := os.RemoveAll(l.deviceDir(d.Name)); err != nil {
			return fmt.Errorf("lab: %w", err)
		}
	}
	if err := endWarden(ctx, l.dir); err != nil { // while the lock keeps it from waiting for another
		return err
	}
	for _, name := range []string{stateFile(l.dir) + ".new", stateFile(l.dir), filepath.Join(l.dir, "lock"), ownerFile(l.dir) + ".new", ownerFile(l.dir)} {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("lab: %w", err)
		}
	}
	os.Remove(l.dir) // stays if the user keeps something else there
	return nil
}

// killCgroup ends processes that are in the lab's cgroups and in no state file: those of an Up that was killed between
// starting a device and writing it down.
func killCgroup(ctx context.Context, dir string) error {
	return filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() {
			return nil //nolint:nilerr // what ended meanwhile
		}
		raw, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		if err != nil {
			return nil //nolint:nilerr // it ended meanwhile
		}
		for _, f := range strings.Fields(string(raw)) {
			var pid int
			if _, err := fmt.Sscan(f, &pid); err != nil {
				continue
			}
			p, err := procOf(pid)
			if err != nil {
				continue
			}
			if err := p.kill(ctx); err != nil {
				return err
			}
		}
		return nil
	})
}
