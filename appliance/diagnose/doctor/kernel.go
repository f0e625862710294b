package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"rivulet/appliance/health"
)

var kernel = Probe{Kind: health.Kernel, Title: "kernel features", Run: probeKernel}

// feature is one feature of the kernel. It exists if it could be created (try), if a file shows it (seen), or if its
// module can be loaded.
type feature struct {
	name, try, seen string
	module          string
	need            Status // Fail or Warn if it is missing
	without         string
}

var features = []feature{
	{name: "overlayfs", seen: "filesystem overlay", module: "overlay", need: Fail, without: "no container starts"},
	{name: "namespaces", seen: "/proc/self/ns/pid", need: Fail, without: "no container starts"},
	{name: "network namespaces", try: tryNetns, seen: "/proc/self/ns/net", need: Fail, without: "no pod gets a network"},
	{name: "cgroup namespaces", seen: "/proc/self/ns/cgroup", need: Warn, without: "containers see the host's cgroups"},
	{name: "user namespaces", seen: "/proc/self/ns/user", need: Warn, without: "pods with hostUsers: false do not start"},
	{name: "seccomp", seen: "/proc/sys/kernel/seccomp/actions_avail", need: Warn, without: "system calls of containers are not filtered"},
	{name: "veth", try: tryVeth, module: "veth", need: Fail, without: "no pod gets a network"},
	{name: "bridge", try: tryBridge, module: "bridge", need: Fail, without: "no pod gets a network"},
	{name: "bridge netfilter", seen: "/proc/sys/net/bridge/bridge-nf-call-iptables", module: "br_netfilter", need: Fail, without: "a pod does not reach a Service whose pod is on the same node"},
	{name: "nftables (nat, fib)", try: tryNft, module: "nft_nat", need: Fail, without: "no tunnel to peers"},
	{name: "nftables (sets, bridge)", try: tryPolicies, module: "nft_meta_bridge", need: Warn, without: "NetworkPolicies are not enforced"},
	{name: "iptables matches", try: tryIptables, module: "xt_statistic", need: Fail, without: "Services do not work"},
	{name: "TUN", try: tryTun, module: "tun", need: Fail, without: "no tunnel to peers"},
}

func probeKernel(ctx context.Context, e *Env) Result {
	tried, err := e.Try(ctx)
	var missing, unknown []string
	var load []*Fix
	worst := Pass
	for _, f := range features {
		has, known, why := f.check(e, tried)
		switch {
		case has:
		case !known:
			unknown = append(unknown, f.name)
		default:
			if why != "" {
				why = ": " + why
			}
			missing = append(missing, fmt.Sprintf("%s (%s%s)", f.name, f.without, why))
			if f.need == Fail {
				worst = Fail
			} else if worst == Pass {
				worst = Warn
			}
		}
		if !has && f.module != "" && e.module(f.module) == loadable {
			load = append(load, e.loadModule(f.module))
		}
	}
	if worst == Pass {
		if len(unknown) > 0 {
			return Skipf("cannot be seen from here: %s%s", strings.Join(unknown, ", "), rootHint(err))
		}
		return Passf("overlayfs, namespaces, seccomp, veth, bridge, netfilter, TUN")
	}
	r := Result{Status: worst, Text: "missing: " + strings.Join(missing, ", "), Cure: "use a kernel with these features; that of the distribution has them", Fix: both(load...)}
	if r.Fix != nil {
		r.Cure = "load the modules: rivulet doctor --fix"
	}
	return r
}

func rootHint(err error) string {
	if errors.Is(err, unix.EPERM) {
		return "; run it as root"
	}
	return ""
}

// check combines the evidence: a try takes precedence over a file, and that over a module.
func (f feature) check(e *Env, tried map[string]error) (has, known bool, why string) {
	if err, ok := tried[f.try]; ok && f.try != "" && !errors.Is(err, unix.EPERM) {
		if err != nil {
			return false, true, err.Error()
		}
		return true, true, ""
	}
	if kind, ok := strings.CutPrefix(f.seen, "filesystem "); ok {
		for line := range strings.Lines(e.read("/proc/filesystems")) {
			if w := strings.Fields(line); len(w) > 0 && w[len(w)-1] == kind {
				return true, true, ""
			}
		}
	} else if f.seen != "" && e.exists(f.seen) {
		return true, true, ""
	}
	switch e.module(f.module) {
	case loaded, builtin:
		return true, true, ""
	case loadable:
		// The kernel loads most modules on first use, but not one whose setting must exist before.
		return f.seen == "" || strings.HasPrefix(f.seen, "filesystem "), true, "module " + f.module + " is not loaded"
	}
	// Nothing was tried: a missing file is enough evidence.
	return false, f.seen != "", ""
}
