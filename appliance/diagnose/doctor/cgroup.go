package doctor

import (
	"context"
	"slices"
	"strings"

	"rivulet/appliance/health"
)

var (
	memoryCgroup      = Probe{Kind: health.MemoryCgroup, Title: "memory cgroup controller", Every: rarely, Run: probeMemoryCgroup}
	cgroupVersion     = Probe{Kind: health.CgroupVersion, Title: "cgroup version", Run: probeCgroupVersion}
	cgroupControllers = Probe{Kind: health.CgroupControllers, Title: "other cgroup controllers", Every: rarely, Run: probeCgroupControllers}
)

// cgroups is what is mounted, which may differ from the kernel's command line: on small boards firmware and kernel
// change it without a trace in a file.
type cgroups struct {
	v1, v2      bool
	controllers []string          // usable ones
	at          map[string]string // v1: where a controller is mounted
}

func (e *Env) cgroups() cgroups {
	c := cgroups{at: map[string]string{}}
	for _, m := range e.mounts() {
		switch {
		case m.kind == "cgroup2" && m.at == "/sys/fs/cgroup":
			c.v2 = true
			c.controllers = strings.Fields(e.read("/sys/fs/cgroup/cgroup.controllers"))
		case m.kind == "cgroup" && strings.HasPrefix(m.at, "/sys/fs/cgroup/"):
			c.v1 = true
			for _, o := range m.options {
				c.controllers = append(c.controllers, o)
				c.at[o] = m.at
			}
		}
	}
	return c
}

func (c cgroups) has(controller string) bool { return slices.Contains(c.controllers, controller) }

func probeMemoryCgroup(_ context.Context, e *Env) Result {
	c := e.cgroups()
	switch {
	case !c.v1 && !c.v2:
		return Failf("mount them (systemd does so at boot), or start the machine with an ordinary init", "no cgroups are mounted at /sys/fs/cgroup")
	case c.has("memory"):
		if at := c.at["memory"]; at != "" && !e.exists(at+"/memory.limit_in_bytes") {
			return Failf("take cgroup_disable=memory off the kernel's command line and reboot", "%s is mounted, but the kernel serves no limits there", at)
		}
		return Passf("usable")
	}
	return noMemoryCgroup(e)
}

func probeCgroupVersion(_ context.Context, e *Env) Result {
	c := e.cgroups()
	const cure = "boot with systemd.unified_cgroup_hierarchy=1 on the kernel's command line, or install a newer release of the system"
	switch {
	case c.v2:
		return Passf("v2")
	case c.v1 && slices.ContainsFunc(e.mounts(), func(m mount) bool { return m.kind == "cgroup2" }):
		return Warnf(cure, "v1 with a v2 hierarchy beside it (hybrid): it works, and Kubernetes is about to drop v1")
	case c.v1:
		return Warnf(cure, "v1: it works, and Kubernetes is about to drop it")
	}
	return Failf("mount them (systemd does so at boot)", "no cgroups are mounted at /sys/fs/cgroup")
}

// needed has the effect of a missing controller.
var neededControllers = []struct{ name, v1, without string }{
	{"cpu", "cpu", "containers get no share of the CPU"},
	{"cpuset", "cpuset", "the kubelet does not start"},
	{"pids", "pids", "a container can take all process IDs of the machine"},
}

func probeCgroupControllers(_ context.Context, e *Env) Result {
	c := e.cgroups()
	if !c.v1 && !c.v2 {
		return Skipf("no cgroups are mounted")
	}
	var missing []string
	for _, n := range neededControllers {
		if !c.has(n.name) {
			missing = append(missing, n.name+" ("+n.without+")")
		}
	}
	if len(missing) > 0 {
		return Failf("use a kernel with these controllers, and take cgroup_disable= off its command line", "missing: %s", strings.Join(missing, ", "))
	}
	if at := c.at["cpu"]; at != "" && !e.exists(at+"/cpu.cfs_quota_us") {
		return Failf("use a kernel with CONFIG_CFS_BANDWIDTH", "CPU limits do not work: %s has no cpu.cfs_quota_us", at)
	}
	return Passf("cpu, cpuset, pids")
}
