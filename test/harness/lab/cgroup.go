package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// hierarchy is one mounted cgroup hierarchy of the host. A cgroup v2 host has one; a v1 or hybrid host has several.
type hierarchy struct {
	Mount string // where the host has it, e.g. /sys/fs/cgroup/memory
	V2    bool
	Opts  string // v1: mount options that name it, e.g. "cpu,cpuacct" or "none,name=systemd"
}

// hierarchies reads them from mountinfo text. Super options such as rw, xattr and release_agent do not name a hierarchy.
func hierarchies(mountinfo string) []hierarchy {
	var hs []hierarchy
	for line := range strings.Lines(mountinfo) {
		f := strings.Fields(line)
		sep := slices.Index(f, "-")
		if sep < 6 || len(f) < sep+4 || !strings.HasPrefix(f[4], "/sys/fs/cgroup") {
			continue
		}
		h := hierarchy{Mount: f[4], V2: f[sep+1] == "cgroup2"}
		if !h.V2 && f[sep+1] != "cgroup" || slices.ContainsFunc(hs, func(o hierarchy) bool { return o.Mount == h.Mount }) {
			continue
		}
		var opts []string
		for _, o := range strings.Split(f[sep+3], ",") {
			switch {
			case strings.HasPrefix(o, "name="):
				opts = append(opts, "none", o)
			case o == "rw" || o == "ro" || o == "xattr" || o == "clone_children" || strings.HasPrefix(o, "release_agent=") ||
				strings.HasPrefix(o, "cpuset_v2_mode") || o == "noprefix":
			default:
				opts = append(opts, o)
			}
		}
		if !h.V2 {
			h.Opts = strings.Join(opts, ",")
		}
		hs = append(hs, h)
	}
	return hs
}

func hostHierarchies() ([]hierarchy, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("lab: %w", err)
	}
	hs := hierarchies(string(b))
	if len(hs) == 0 {
		return nil, errors.New("lab: no cgroup hierarchy is mounted under /sys/fs/cgroup: mount cgroup2 there")
	}
	return hs, nil
}

// pure tells a host whose only hierarchy is cgroup v2.
func pure(hs []hierarchy) bool { return len(hs) == 1 && hs[0].V2 }

func cgroupName(id string) string { return "rivulet-lab-" + id }

// makeCgroups makes <mount>/rivulet-lab-<id>/<name> in every hierarchy.
func makeCgroups(hs []hierarchy, id, name string) error {
	for _, h := range hs {
		parent := h.Mount
		for _, part := range []string{cgroupName(id), name} {
			if h.V2 {
				delegate(parent)
			}
			dir := filepath.Join(parent, part)
			if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("lab: %w", err)
			}
			for _, f := range []string{"cpuset.cpus", "cpuset.mems"} { // v1: empty in a new cgroup, and then nothing may join
				if b, err := os.ReadFile(filepath.Join(parent, f)); err == nil && !h.V2 {
					if err := os.WriteFile(filepath.Join(dir, f), b, 0); err != nil {
						return fmt.Errorf("lab: %w", err)
					}
				}
			}
			parent = dir
		}
	}
	return nil
}

// delegate turns on, one by one, the v2 controllers that dir may hand down; one that cannot be had is left out.
func delegate(dir string) {
	b, _ := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	for _, c := range strings.Fields(string(b)) {
		_ = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+c), 0)
	}
}

// joinCgroups moves a process into a device's cgroups. On a pure v2 host a device's processes live in the leaf "init",
// because a v2 cgroup that hands controllers down may hold no process itself; before the device's init has made it,
// leaf is "".
func joinCgroups(hs []hierarchy, id, name, leaf string, pid int) error {
	for _, h := range hs {
		dir := filepath.Join(h.Mount, cgroupName(id), name)
		if pure(hs) {
			dir = filepath.Join(dir, leaf)
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
			return fmt.Errorf("lab: join cgroup: %w", err)
		}
	}
	return nil
}

// removeCgroup removes a cgroup and all below it, waiting for processes that are just ending.
func removeCgroup(ctx context.Context, dir string) error {
	err := poll(ctx, 20*time.Millisecond, func() (bool, error) {
		var dirs []string
		_ = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, p)
			}
			return nil
		})
		slices.Reverse(dirs)
		for _, d := range dirs {
			if err := unix.Rmdir(d); err != nil && !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.ENOENT) {
				return false, fmt.Errorf("lab: remove cgroup %s: %w", d, err)
			}
		}
		_, err := os.Lstat(dir)
		return errors.Is(err, fs.ErrNotExist), nil
	})
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return fmt.Errorf("lab: cgroup %s cannot be removed, processes hold it: %s: end them and run `rivulet-lab down` again", dir, strings.Join(holders(dir), ", "))
	}
	return err
}

// holders lists the processes in a cgroup and below it, by PID and name. A zombie holds a cgroup, too.
func holders(dir string) (list []string) {
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil //nolint:nilerr // it was removed meanwhile
		}
		pids, _ := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		for _, pid := range strings.Fields(string(pids)) {
			what := pid
			status, _ := os.ReadFile("/proc/" + pid + "/status")
			for line := range strings.Lines(string(status)) {
				if strings.HasPrefix(line, "Name:") || strings.HasPrefix(line, "State:") {
					what += " " + strings.Join(strings.Fields(line)[1:], " ")
				}
			}
			list = append(list, what)
		}
		return nil
	})
	if list == nil {
		list = []string{"none that its cgroup.procs lists"}
	}
	return list
}

// mountCgroups mounts every hierarchy anew inside a device. The caller is already in its own cgroup namespace, so what
// the device sees as root is its own cgroup.
func mountCgroups(hs []hierarchy, root string) error {
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	base := filepath.Join(root, "sys/fs/cgroup")
	if pure(hs) {
		if err := mount("cgroup2", base, "cgroup2", flags, ""); err != nil {
			return err
		}
		leaf := filepath.Join(base, "init")
		if err := os.Mkdir(leaf, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := os.WriteFile(filepath.Join(leaf, "cgroup.procs"), []byte("0"), 0); err != nil {
			return err
		}
		delegate(base)
		return nil
	}
	if err := mount("tmpfs", base, "tmpfs", flags, "mode=755"); err != nil {
		return err
	}
	for _, h := range hs {
		name := strings.TrimPrefix(h.Mount, "/sys/fs/cgroup/")
		dir := filepath.Join(base, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		fstype := "cgroup"
		if h.V2 {
			fstype = "cgroup2"
		}
		if err := mount(fstype, dir, fstype, flags, h.Opts); err != nil {
			return err
		}
		for _, c := range strings.Split(h.Opts, ",") { // cpu -> cpu,cpuacct, as systemd does
			if strings.Contains(h.Opts, ",") && !strings.Contains(h.Opts, "name=") && c != name {
				if err := os.Symlink(name, filepath.Join(base, c)); err != nil {
					return fmt.Errorf("lab: %w", err)
				}
			}
		}
	}
	return nil
}
