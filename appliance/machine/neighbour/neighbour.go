// Package neighbour finds another Kubernetes that runs on this machine: by its processes and by who has the kubelet's
// port. Two of them share ports, rules, addresses and cgroups, so Rivulet starts nothing beside one, and removes nothing
// that may be one's.
//
// It reads /proc and writes nothing. Failure: what /proc does not show is not found; root sees everything.
package neighbour

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"rivulet/appliance/lifecycle"
	"rivulet/fabric/netmon"
)

// programs are the names (comm) of programs with a kubelet, as their makers call them.
var programs = []string{
	"kubelet",                                                   // kubeadm, OpenShift, RKE2, k0s, cloud providers
	"k3s", "k3s-server", "k3s-agent", "k3s server", "k3s agent", // k3s
	"rke2", "k0s", "microshift",
	"kubelite", // MicroK8s
}

// port is the kubelet's, TCP: only one of a machine can have it. The API server's is no sign: proxies and tunnels have it,
// too, and a worker does not need it (the engine looks at it itself).
const port = 10250

// Found is a program of another Kubernetes.
type Found struct {
	Name string
	PID  int // 0 if it is not visible
	Port int // that it has; 0 if it was found by its name
}

func (f Found) String() string {
	who := f.Name
	if who == "" {
		who = "a program"
	}
	if f.PID != 0 {
		who = fmt.Sprintf("%s (pid %d)", who, f.PID)
	}
	if f.Port != 0 {
		who += fmt.Sprintf(" with port %d/tcp", f.Port)
	}
	return who
}

// Find returns the programs of another Kubernetes in the network namespace of this process; proc is /proc, and run is
// Rivulet's run folder, by which its own programs are known. A Kubernetes in containers (kind, k3d) has a network of
// its own, or of this machine without a kubelet's name: it is none here.
func Find(proc, run string) (all []Found) {
	own := link(proc, "self", "ns/net")
	dirs, _ := filepath.Glob(filepath.Join(proc, "[0-9]*"))
	for _, dir := range dirs {
		name := commOf(dir)
		if !slices.Contains(programs, name) || link(dir, "ns/net") != own || Ours(dir, run) || inContainer(proc, dir, name) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil {
			all = append(all, Found{Name: name, PID: pid})
		}
	}
	name, pid, used := netmon.Holder(proc, "tcp", port)
	holder := filepath.Join(proc, strconv.Itoa(pid))
	if used && (pid == 0 || !Ours(holder, run) && !inContainer(proc, holder, name) && !slices.ContainsFunc(all, func(f Found) bool { return f.PID == pid })) {
		all = append(all, Found{Name: name, PID: pid, Port: port})
	}
	return all
}

// Alone is the Run of a component that is ready where no other Kubernetes runs: nothing that takes ports, addresses and
// rules starts beside one. It goes on by itself when that has ended. run is Rivulet's run folder.
func Alone(run string) func(context.Context, *lifecycle.Stage) error {
	return func(ctx context.Context, stage *lifecycle.Stage) error {
		if others := Find("/proc", run); len(others) > 0 {
			if others[0].Port != 0 {
				return fmt.Errorf("port %d/tcp is taken%s (%w), as by the kubelet of another Kubernetes; nothing of it is touched; stop that program, "+
					"Rivulet goes on by itself then; or remove Rivulet: sudo rivulet uninstall", port, netmon.Listener("tcp", port), syscall.EADDRINUSE)
			}
			return fmt.Errorf("another Kubernetes runs on this machine: %s; nothing of it is touched, and one machine has room for one: stop it "+
				"(sudo systemctl disable --now k3s, or its name), Rivulet goes on by itself then; or remove Rivulet: sudo rivulet uninstall", others[0])
		}
		stage.Ready()
		<-ctx.Done()
		return nil
	}
}

// inContainer reports whether a process has another view of the files than this machine's programs: a container in the
// machine's network. MicroK8s is a snap, which may have one, too.
func inContainer(proc, dir, name string) bool {
	return name != "kubelite" && link(dir, "ns/mnt") != link(proc, "self", "ns/mnt")
}

// Ours reports whether a process, given by its folder in /proc, is a program of Rivulet: the supervisor, the control
// plane of a virtual cluster, the engine, or what the engine has started, also of a supervisor that was killed.
func Ours(dir, run string) bool {
	exe := strings.TrimSuffix(filepath.Base(link(dir, "exe")), " (deleted)")
	return strings.HasPrefix(exe, "rivulet") || HasPath(dir, filepath.Join(run, "bin"))
}

// HasPath reports whether the PATH of a process has a folder: the engine and its children have the bundle's.
func HasPath(dir, folder string) bool {
	environ, _ := os.ReadFile(filepath.Join(dir, "environ"))
	for kv := range strings.SplitSeq(string(environ), "\x00") {
		if path, ok := strings.CutPrefix(kv, "PATH="); ok {
			return slices.Contains(filepath.SplitList(path), folder)
		}
	}
	return false
}

func link(parts ...string) string {
	to, _ := os.Readlink(filepath.Join(parts...))
	return to
}

func commOf(dir string) string {
	raw, _ := os.ReadFile(filepath.Join(dir, "comm"))
	return strings.TrimSpace(string(raw))
}
