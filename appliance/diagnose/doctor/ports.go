package doctor

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"rivulet/appliance/config/fixed"
	"rivulet/appliance/engine"
	"rivulet/appliance/health"
	"rivulet/appliance/machine/process"
	"rivulet/fabric/netmon"
)

var ports = Probe{Kind: health.Ports, Title: "ports", Run: probePorts}

// neededPorts are the ports of Rivulet; those that the cluster can do without cause a warning.
var neededPorts = []struct {
	network string
	port    int
	what    string
	need    Status
}{
	{"tcp", engine.PortAPI, "API server", Fail},
	{"tcp", 6444, "API server", Fail},
	{"tcp", engine.PortKubelet, "kubelet", Fail},
	{"tcp", 10257, "controller manager", Fail},
	{"tcp", 10259, "scheduler", Fail},
	{"tcp", fixed.ControlPort, "peers", Fail},
	{"udp", fixed.ControlPort, "tunnel", Fail},
	{"udp", fixed.DNSPort, "cluster DNS", Fail},
	{"tcp", fixed.DNSPort, "cluster DNS", Fail},
	{"tcp", 10010, "containerd", Warn},
	{"tcp", 10248, "health of the kubelet", Warn},
	{"tcp", 10249, "figures of kube-proxy", Warn},
	{"tcp", 10256, "health of kube-proxy", Warn},
}

func probePorts(_ context.Context, e *Env) Result {
	var taken, hidden []string
	worst := Pass
	ours := 0
	for _, n := range neededPorts {
		name, pid, used := netmon.Holder(e.path("/proc"), n.network, n.port)
		switch {
		case !used:
		case pid != 0 && e.isOurs(pid):
			ours++
		case pid == 0 && e.User != 0:
			hidden = append(hidden, fmt.Sprintf("%s %d", strings.ToUpper(n.network), n.port))
		default:
			who := "a process that cannot be seen from here"
			if pid != 0 {
				who = fmt.Sprintf("%s (pid %d)", name, pid)
			}
			taken = append(taken, fmt.Sprintf("%s %d (%s) by %s", strings.ToUpper(n.network), n.port, n.what, who))
			if worst != Fail {
				worst = n.need
			}
		}
	}
	if worst == Pass {
		if len(hidden) > 0 {
			return Skipf("only root sees which process has %s: sudo rivulet doctor --only ports", strings.Join(hidden, ", "))
		}
		if ours == 0 {
			return Passf("all that are needed are free")
		}
		return Passf("all that are needed are ours or free")
	}
	return Result{Status: worst, Text: "taken: " + strings.Join(taken, ", "), Cure: "end the program, or make it listen elsewhere; Rivulet then goes on by itself"}
}

// isOurs follows the ancestors of a process to one in a PID file of Rivulet. It also finds the engine of a killed
// supervisor, which has its own PID file.
func (e *Env) isOurs(pid int) bool {
	mine := map[int]bool{}
	for _, f := range []string{"supervisor", "engine", "tunnel"} {
		if n, err := strconv.Atoi(e.read(e.Run + "/" + f + ".pid")); err == nil {
			mine[n] = true
		}
	}
	for range 16 { // there are no deeper trees
		if mine[pid] {
			return true
		}
		if pid <= 1 {
			return false
		}
		f := process.StatFields(e.read(fmt.Sprintf("/proc/%d/stat", pid)))
		if len(f) < 2 {
			return false
		}
		pid, _ = strconv.Atoi(f[1])
	}
	return false
}
