package systemd

import (
	"context"
	"slices"
	"strings"
	"testing"

	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
)

// look lists, a line each, everything that a Rivulet may leave on a device.
const look = `
section() { sed "s|^|$1: |"; }
for t in iptables ip6tables; do $t-save 2>/dev/null | grep -v '^#' | sed 's/\[[0-9:]*\]//' | section $t; done
nft -s list ruleset 2>/dev/null | section nft
ip -o link | sed 's/^[0-9]*: //; s/ mtu.*//; s/@.*//; s/: <.*//' | section link
ip -o addr | awk '{print $2, $4}' | grep -v fe80:: | section address # those come a moment after the link
ip route show table all | grep -v '^multicast\|fe80::\|^ff00\|^anycast' | section route
ip rule | section rule
awk '{print $5}' /proc/self/mountinfo | sort | uniq -c | section mount
ls /run/netns /var/run/netns 2>/dev/null | grep cni- | section netns
find /sys/fs/cgroup -type d | grep 'kube\|rivulet\|cri-' | section cgroup
find /etc /var /usr/local/bin /opt /root /srv -xdev \
	! -path '/opt/rivulet/*' ! -path '/var/log/rivulet.log' ! -path '/var/log/journal*' ! -path '/var/lib/systemd/*' ! -path '/var/cache/*' \
	! -path '/var/lib/private*' ! -path '/var/tmp/systemd-private-*' | sort | section file
find /run -xdev ! -path '/run/systemd*' ! -path '/run/log/*' ! -path '/run/mount*' ! -path '/run/credentials*' ! -path '/run/user/*' ! -path '/run/lock/*' | sort | section run
for p in /proc/[0-9]*; do tr '\0' ' ' <$p/cmdline; echo; done 2>/dev/null | grep '^[^ ]*\(rivulet\|containerd\|pause\|/web\|^web\)' | grep -v '^[^ ]*rivulet-lab-' | section process
if [ -d /run/systemd/system ]; then
	systemctl list-units --all --plain --no-legend | awk '{print $1}' | grep 'rivulet\|kube\|cri-' | section unit
	ls /run/systemd/transient /run/systemd/system 2>/dev/null | grep 'rivulet\|kube\|cri-' | section transient
fi
true`

func traces(t *testing.T, ctx context.Context, d *lab.Device) map[string]bool {
	t.Helper()
	seen := map[string]bool{}
	for line := range strings.Lines(labtest.Output(t, ctx, d, "bash", "-c", look)) {
		seen[strings.TrimSpace(line)] = true
	}
	if len(seen) < 30 {
		t.Fatalf("looking at %s found only %d lines: %v", d.Name, len(seen), seen)
	}
	return seen
}

// same reports what is there now and was not, and the other way round.
func same(t *testing.T, what string, was, is map[string]bool) {
	t.Helper()
	// The lab makes these folders, empty; empty ones of that name are taken along.
	allowed := func(line string) bool {
		return slices.Contains([]string{"file: /etc/cni", "file: /etc/rancher", "file: /etc/rivulet"}, line)
	}
	for line := range is {
		if !was[line] && line != "run: /run/xtables.lock" { // iptables shares it with the host's own; it goes with the power
			t.Errorf("%s: left behind: %s", what, line)
		}
	}
	for line := range was {
		if !is[line] && !allowed(line) {
			t.Errorf("%s: gone with it: %s", what, line)
		}
	}
}
