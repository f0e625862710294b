package badinput

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// Without iptables no pod has a network: status says so and how to mend it, the
// engine is not started over and over, and it goes on when iptables is there.
func TestNoIptables(t *testing.T) {
	a, _ := pair(t)
	stop(t, a)
	tools := strings.Fields(must(t, a, "sh", "-c", "for f in iptables iptables-save iptables-restore; do readlink -f $(command -v $f); done | sort -u"))
	if len(tools) == 0 {
		t.Skip("needs iptables on this machine: apt-get install iptables")
	}
	for _, tool := range tools {
		must(t, a, "mount", "--bind", "/dev/null", tool)
	}
	hidden := true
	show := func() {
		for i := len(tools) - 1; hidden && i >= 0; i-- {
			must(t, a, "umount", "--lazy", tools[i])
		}
		hidden = false
	}
	t.Cleanup(show)
	start(t, a)
	shows(t, a, 15*time.Second, "not ready: engine: not in PATH: iptables", "apt-get install iptables")
	st, _ := status(t, a)
	for _, s := range st.Stages {
		if s.Name == "engine" && s.Starts > 1 || s.Name == "fabric" && s.State != "Ready" {
			t.Errorf("%+v", s)
		}
	}
	show()
	ready(t, a)
	peered(t, a)
}

// Without a TUN device there are no tunnels, and everything else works.
func TestNoTUN(t *testing.T) {
	a, _ := pair(t)
	stop(t, a)
	must(t, a, "sh", "-c", "kill -KILL $(cat /run/rivulet/tunnel.pid)")
	must(t, a, "mount", "-t", "tmpfs", "none", "/dev/net")
	hidden := true
	show := func() {
		if hidden {
			must(t, a, "umount", "--lazy", "/dev/net")
		}
		hidden = false
	}
	t.Cleanup(show)
	start(t, a)
	ready(t, a)
	shows(t, a, 10*time.Second, "no tunnel to any peer", "/dev/net/tun", "modprobe tun", "tried again")
	pod(t, a, "without-tunnel")
	must(t, a, "rivulet", "kubectl", "delete", "pod", "without-tunnel", "--wait=false")
	show()
	eventually(t, 10*time.Second, func() error {
		if _, text := status(t, a); strings.Contains(text, "/dev/net/tun") {
			return fmt.Errorf("there is a TUN device, yet the status says:\n%s", text)
		}
		return nil
	})
	peered(t, a)
}
