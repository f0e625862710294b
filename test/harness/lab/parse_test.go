package lab

import (
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"testing"

	"golang.org/x/sys/unix"
)

func TestHierarchies(t *testing.T) {
	for name, c := range map[string]struct {
		mountinfo string
		want      []hierarchy
	}{
		"pure v2": {"31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
			[]hierarchy{{Mount: "/sys/fs/cgroup", V2: true}}},
		"v1 with systemd's names, and unified": {`31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
33 31 0:30 / /sys/fs/cgroup/systemd rw shared:9 master:2 - cgroup cgroup rw,xattr,release_agent=/lib/agent,name=systemd
34 31 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
35 31 0:31 / /elsewhere rw - cgroup2 cgroup2 rw
`, []hierarchy{{Mount: "/sys/fs/cgroup/cpu,cpuacct", Opts: "cpu,cpuacct"},
			{Mount: "/sys/fs/cgroup/systemd", Opts: "none,name=systemd"}, {Mount: "/sys/fs/cgroup/unified", V2: true}}},
		"mounted twice": {`32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu
33 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu
`, []hierarchy{{Mount: "/sys/fs/cgroup/cpu", Opts: "cpu"}}},
		"nothing": {"garbage\n\n", nil},
	} {
		if got := hierarchies(c.mountinfo); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	rest := " S 1 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 1 2"
	f.Add("7 (sleep)" + rest)
	f.Add("7 (a) b (c)" + rest)
	f.Add("7 (x) Z 1")
	f.Add("")
	f.Fuzz(func(t *testing.T, line string) {
		if p, err := parseStat(7, line); err == nil && p.PID != 7 {
			t.Errorf("%q: %+v", line, p)
		}
		// Whatever a program calls itself, the fields after the name count.
		if p, err := parseStat(7, fmt.Sprintf("7 (%s)%s", line, rest)); err != nil || p.Start != 4711 {
			t.Errorf("named %q: %+v %v", line, p, err)
		}
	})
}

// multicastFrom chooses the interface by its address, as a program on a LAN without a default route has to.
func multicastFrom(c *net.UDPConn, from netip.Addr) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	err = raw.Control(func(fd uintptr) {
		set = unix.SetsockoptInet4Addr(int(fd), unix.IPPROTO_IP, unix.IP_MULTICAST_IF, from.As4())
	})
	if err != nil {
		return err
	}
	return set
}
