package cleanup

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"rivulet/appliance/machine/host"
	"rivulet/appliance/machine/neighbour"
	"rivulet/appliance/machine/process"
	"rivulet/appliance/state/paths"
)

// How long processes may take to end after SIGTERM.
const (
	supervisorGrace = 60 * time.Second // it stops its components one after the other
	engineGrace     = 15 * time.Second
	podGrace        = 10 * time.Second
	killGrace       = 5 * time.Second
)

// found is a process of /proc.
type found struct {
	pid, parent int
	kind        kind
	name        string
}

type kind int

const (
	none       kind = iota
	supervisor      // holds state.db
	engine          // k3s and its containerd
	tunnel
	shim
	pod    // a process in one of Rivulet's containers
	helper // any other program of the bundle
)

// step is one kind of process to end, and its grace period.
type step struct {
	kind  kind
	what  string
	grace time.Duration
}

// processes ends Rivulet's processes: first those that restart others, last the shims.
func (c *cleaner) processes(ctx context.Context) {
	c.end(ctx,
		step{supervisor, "the supervisor", supervisorGrace},
		step{engine, "the engine and containerd", engineGrace},
		step{tunnel, "the tunnel", engineGrace},
		step{pod, "processes of pods", podGrace},
		step{shim, "containers' shims", 0}, // they do not end until their result is read
		step{helper, "helpers", 0},
	)
}

// startedAgain reports whether there is a supervisor although it was ended: a service manager or a script starts it.
func (c *cleaner) startedAgain() bool {
	pid, ok := host.Opener(paths.Store(c.State))
	if ok {
		c.Running = pid
		c.left("rivulet was started again (pid %d), and nothing of what it uses was removed; stop what starts it (with systemd: "+
			"sudo systemctl stop rivulet) and run this again", pid)
	}
	return ok
}

func (c *cleaner) end(ctx context.Context, steps ...step) {
	for _, step := range steps {
		// Twice, because a process may start another one while it is ended.
		ended := 0
		for range 2 {
			ours := slices.DeleteFunc(c.find(), func(p found) bool { return p.kind != step.kind })
			if len(ours) == 0 {
				break
			}
			if err := end(ctx, ours, step.grace); err != nil {
				c.left("%s: %v; end them by hand and run this again", step.what, err)
			}
			ended += len(ours)
		}
		if ended > 0 {
			c.removed("%s (%d)", step.what, ended)
		}
	}
}

// find returns Rivulet's processes in this mount namespace, and those of its containers.
func (c *cleaner) find() []found {
	all := map[int]*found{}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	holder, held := host.Opener(paths.Store(c.State))
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil || pid == os.Getpid() {
			continue
		}
		parent, ok := parentOf(dir)
		if !ok {
			continue
		}
		p := &found{pid: pid, parent: parent}
		p.kind, p.name = c.classify(dir)
		if held && pid == holder && p.kind == none && sameMounts(dir) {
			p.kind = supervisor
		}
		all[pid] = p
	}
	for _, p := range all {
		if p.kind == none && belowShim(all, p) {
			p.kind = pod
		}
	}
	var ours []found
	for _, p := range all {
		if p.kind != none && (p.kind != pod || belongsHere(all, p)) {
			ours = append(ours, *p)
		}
	}
	slices.SortFunc(ours, func(a, b found) int { return a.pid - b.pid })
	return ours
}

// classify returns the kind of a process by its program.
func (c *cleaner) classify(dir string) (kind, string) {
	cmdline, err := os.ReadFile(filepath.Join(dir, "cmdline"))
	if err != nil || len(cmdline) == 0 {
		return none, "" // ended, or a kernel thread
	}
	argv0, _, _ := bytes.Cut(cmdline, []byte{0})
	name := string(argv0)
	if c.inOurContainer(dir) {
		return pod, name
	}
	if !sameMounts(dir) {
		return none, name
	}
	if root, _ := os.Readlink(filepath.Join(dir, "root")); below(root, paths.VirtualClusters(c.real)) {
		return helper, name // the control plane of a virtual cluster
	}
	exe, _ := os.Readlink(filepath.Join(dir, "exe"))
	exe = strings.TrimSuffix(exe, " (deleted)")
	if below(exe, filepath.Join(c.real, "bundle")) {
		switch filepath.Base(exe) {
		case "rivulet-tunnel":
			return tunnel, name
		case "containerd-shim-runc-v2":
			return shim, name
		}
		return helper, name
	}
	// k3s and containerd overwrite their arguments by a title.
	title, _, _ := strings.Cut(name, " ")
	if title != c.EngineName && filepath.Base(title) != "containerd" {
		return none, name
	}
	if !neighbour.HasPath(dir, filepath.Join(c.Run, "bin")) {
		return none, name
	}
	return engine, name
}

// inOurContainer reports whether the root of the process is a layer of Rivulet's containerd.
func (c *cleaner) inOurContainer(dir string) bool {
	raw, err := os.ReadFile(filepath.Join(dir, "mountinfo"))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(raw)) {
		if f := strings.Fields(line); len(f) > 4 && f[4] == "/" {
			return strings.Contains(line, "dir="+paths.Agent(c.State, "containerd")+"/") || strings.Contains(line, "dir="+paths.Agent(c.real, "containerd")+"/")
		}
	}
	return false
}

// belowShim reports whether one of Rivulet's shims is an ancestor of p.
func belowShim(all map[int]*found, p *found) bool {
	for range len(all) {
		p = all[p.parent]
		if p == nil {
			return false
		}
		if p.kind == shim {
			return true
		}
	}
	return false
}

// belongsHere reports whether a container's process is of this machine: after its shim has died its parent is this
// init. A process of another Rivulet in its own namespaces, as in a lab, has the init of those.
func belongsHere(all map[int]*found, p *found) bool {
	for range len(all) {
		if p.parent == 1 {
			return true
		}
		parent := all[p.parent]
		if parent == nil || parent.kind != pod && parent.kind != shim {
			return false
		}
		if parent.kind == shim {
			return true
		}
		p = parent
	}
	return false
}

func sameMounts(dir string) bool {
	ours, err1 := os.Readlink("/proc/self/ns/mnt")
	theirs, err2 := os.Readlink(filepath.Join(dir, "ns/mnt"))
	return err1 == nil && err2 == nil && ours == theirs
}

func parentOf(dir string) (int, bool) {
	raw, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return 0, false
	}
	f := process.StatFields(string(raw))
	if len(f) < 2 || f[0][0] == 'Z' || f[0][0] == 'X' {
		return 0, false
	}
	parent, err := strconv.Atoi(f[1])
	return parent, err == nil
}

// end ends the processes: SIGTERM, a grace period, SIGKILL.
func end(ctx context.Context, ps []found, grace time.Duration) error {
	var all []process.Handle
	names := map[int]string{}
	for _, p := range ps {
		// A pidfd, and a check of /proc after it was opened, so that a reused number hits no other process.
		if h, err := process.Open(p.pid); err == nil {
			defer h.Close()
			all, names[p.pid] = append(all, h), p.name
		}
	}
	var stuck []string
	for _, h := range process.End(ctx, all, grace, killGrace) {
		stuck = append(stuck, fmt.Sprintf("%d (%s)", h.PID, names[h.PID]))
	}
	if len(stuck) > 0 {
		return fmt.Errorf("cleanup: these do not end: %s", strings.Join(stuck, ", "))
	}
	return nil
}

// below reports whether path is folder or inside of it.
func below(path, folder string) bool {
	return path == folder || strings.HasPrefix(path, strings.TrimSuffix(folder, "/")+"/")
}
