package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// story is one lab of three devices that the steps of TestLab share.
type story struct {
	*testing.T
	ctx     context.Context
	lab     *Lab
	a, b, c *Device
}

func TestLab(t *testing.T) {
	needRoot(t)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	tr := newTraces(t)
	t.Setenv(strings.TrimSuffix(markEnv, "="), tr.mark)
	o := Options{Dir: tr.dir, Binary: standInBinary(t), Devices: 3, Env: map[string][]string{"": tr.env(), "b": {"ONLY=b"}}}
	l, err := Up(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = Down(ctx, tr.dir) }()
	ds, err := l.Devices()
	if err != nil || len(ds) != 3 {
		t.Fatalf("devices: %v %v", ds, err)
	}
	for _, d := range ds {
		if err := d.WaitPeered(ctx, 1); err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range []struct {
		name string
		f    func(story)
	}{
		{"a second one in the same folder is refused", func(s story) {
			if _, err := Up(ctx, o); !errors.Is(err, ErrUp) {
				t.Errorf("got %v", err)
			}
		}},
		{"a device is a machine of its own", ownMachine},
		{"a process of the host shares a device's processors", adopted},
		{"commands", commands},
		{"everybody hears everybody", func(s story) { s.hears("ab ac bc", "") }},
		{"cut two devices", cutTwo},
		{"take a cable out", unplug},
		{"what is left on a device", leftOnDevice},
		{"another address", renumber},
		{"a radio beside the cable", secondInterface},
		{"processes killed", killed},
		{"stop and start", stopStart},
		{"slow processors", slow},
		{"power cut", powerCut},
		{"still slow", stillSlow},
	} {
		t.Run(step.name, func(t *testing.T) { step.f(story{t, ctx, l, ds[0], ds[1], ds[2]}) })
	}

	s, err := loadState(tr.dir)
	if err != nil {
		t.Fatal(err)
	}
	tr.remember(s.LAN)
	for _, d := range s.Devices {
		tr.remember(d.Init)
	}
	if len(tr.namespaces) != 1+3*6 {
		t.Errorf("%d namespaces, want one for the LAN and six per device", len(tr.namespaces))
	}
	if err := Down(ctx, tr.dir); err != nil {
		t.Fatal(err)
	}
	tr.none(t, s.Cgroups)
	if err := Down(ctx, tr.dir); !errors.Is(err, ErrNoLab) {
		t.Errorf("second down: %v, want ErrNoLab", err)
	}
}

func ownMachine(s story) {
	s.is(s.a, "a\n", "hostname")
	s.is(s.a, "rivulet-lab-init\n", "sh", "-c", "tr '\\0' '\\n' < /proc/1/cmdline | head -1")
	s.is(s.a, "", "sh", "-c", "find /etc/rancher /etc/cni -mindepth 1") // whatever the host has there
	s.is(s.b, "b\n", "sh", "-c", "tr '\\0' '\\n' < /proc/$(cat /run/rivulet/supervisor.pid)/environ | sed -n s/^ONLY=//p")
	s.is(s.a, "", "sh", "-c", "ip route show default")
	if s.out(s.a, "cat", "/etc/machine-id") == s.out(s.b, "cat", "/etc/machine-id") {
		s.Error("two devices have one machine ID")
	}
	// Every hierarchy shows the device's cgroup as root; on a pure v2 host processes are in the leaf /init.
	for line := range strings.Lines(s.out(s.a, "cat", "/proc/self/cgroup")) {
		if at := strings.TrimSpace(line[strings.LastIndex(line, ":")+1:]); at != "/" && at != "/init" {
			s.Errorf("in cgroup %s", strings.TrimSpace(line))
		}
	}
	s.is(s.a, "", "sh", "-c", "mkdir -p /tmp/m && mount -t tmpfs m /tmp/m && mkdir /sys/fs/cgroup/*/x 2>/dev/null; test -c /dev/net/tun && test -r /dev/kmsg")
	s.is(s.a, "shared\n", "findmnt", "-no", "PROPAGATION", "/")
	// Root of a device and what it runs may not set the clock, which is the host's.
	for _, pid := range []string{"1", "self", "$(cat /run/rivulet/supervisor.pid)"} {
		var bounds uint64
		if _, err := fmt.Sscanf(s.out(s.a, "sh", "-c", "sed -n 's/^CapBnd://p' /proc/"+pid+"/status"), "%x", &bounds); err != nil || bounds == 0 || bounds&(1<<25) != 0 {
			s.Errorf("process %s may set the host's clock: %x %v", pid, bounds, err)
		}
	}
	before, err := os.ReadFile("/proc/sys/vm/overcommit_memory")
	if err != nil {
		s.Fatal(err)
	}
	other := "1"
	if strings.TrimSpace(string(before)) == other {
		other = "0"
	}
	s.is(s.a, other, "sh", "-c", "printf "+other+" > /proc/sys/vm/overcommit_memory; cat /proc/sys/vm/overcommit_memory")
	if after, _ := os.ReadFile("/proc/sys/vm/overcommit_memory"); string(after) != string(before) {
		s.Errorf("a device changed the host's vm.overcommit_memory to %s", after)
	}
}

func leftOnDevice(s story) {
	lines := func() []string {
		s.Helper()
		lines, err := s.a.Fingerprint()
		if err != nil {
			s.Fatal(err)
		}
		return lines
	}
	before := lines()
	if want := fmt.Sprintf("listens on tcp6 port %d", standInPort); !slices.Contains(before, want) {
		s.Errorf("%q is not among %q", want, before)
	}
	s.out(s.a, "sh", "-c", "mkdir -p /etc/rivulet /tmp/left && echo 'mode: lan' >/etc/rivulet/config.yaml && mount -t tmpfs left /tmp/left")
	table := &nftables.Table{Family: nftables.TableFamilyINet, Name: "left"}
	s.rules(func(c *nftables.Conn) {
		chain := c.AddChain(&nftables.Chain{Name: "c", Table: c.AddTable(table)})
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}})
	})
	if err := s.lab.Cut("a", "b"); err != nil {
		s.Fatal(err)
	}
	var more []string
	for _, line := range lines() {
		if !slices.Contains(before, line) {
			more = append(more, strings.TrimRight(line, "0123456789abcdef")) // without the hash
		}
	}
	if want := []string{"a and b are cut", "config.yaml ", "mount /tmp/left", "nft table 1 left, chain c: 1 rules"}; !slices.Equal(more, want) {
		s.Errorf("left are %q, want %q", more, want)
	}
	s.out(s.a, "sh", "-c", "rm /etc/rivulet/config.yaml; umount /tmp/left")
	s.rules(func(c *nftables.Conn) { c.DelTable(table) })
	if err := s.lab.Heal(); err != nil {
		s.Fatal(err)
	}
	if after := lines(); !slices.Equal(after, before) {
		s.Errorf("all is undone, and %q is not %q", after, before)
	}
}

// rules changes the nftables of a.
func (s story) rules(change func(*nftables.Conn)) {
	s.Helper()
	state, err := loadState(s.lab.dir)
	if err == nil {
		err = inNetns(state.device("a").Init, func(_ *netlink.Handle, ns netns.NsHandle) error {
			c, err := nftables.New(nftables.WithNetNSFd(int(ns)))
			if err != nil {
				return err
			}
			change(c)
			return c.Flush()
		})
	}
	if err != nil {
		s.Fatal(err)
	}
}

func adopted(s story) {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		s.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	if err := s.a.Adopt(cmd.Process.Pid); err != nil {
		s.Fatal(err)
	}
	state, err := loadState(s.lab.dir)
	if err != nil {
		s.Fatal(err)
	}
	cgroups := func(pid int) string {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		if err != nil {
			s.Fatal(err)
		}
		return string(text)
	}
	if got, want := cgroups(cmd.Process.Pid), cgroups(state.device("a").Init.PID); got != want {
		s.Errorf("it is in\n%s, the device's init in\n%s", got, want)
	}
}

func commands(s story) {
	s.is(s.a, `["get","pods"]`+"\n", "rivulet", "kubectl", "get", "pods")
	for _, c := range []struct {
		args []string
		code int
	}{
		{[]string{"sh", "-c", "exit 7"}, 7},
		{[]string{"sh", "-c", "kill -TERM $$"}, 128 + 15},
		{[]string{"no-such-program"}, exitNotFound},
	} {
		cmd, err := s.a.Command(s.ctx, c.args...)
		if err != nil {
			s.Fatal(err)
		}
		exit := (*exec.ExitError)(nil)
		if err := cmd.Run(); !errors.As(err, &exit) || exit.ExitCode() != c.code {
			s.Errorf("%v: %v, want exit code %d", c.args, err, c.code)
		}
	}
	// Signals have their usual meaning inside: nothing is ignored that is not ignored here. (What make starts ignores
	// one of the C library's own.)
	here, err := os.ReadFile("/proc/self/status")
	if err != nil {
		s.Fatal(err)
	}
	inside := s.out(s.a, "sh", "-c", "cat /proc/$(cat /run/rivulet/engine.pid)/status")
	if more := ignored(s, inside) &^ ignored(s, string(here)); more != 0 {
		s.Errorf("the engine ignores the signals %b, which are not ignored here", more)
	}
	// A relative name is the caller's.
	cmd, err := s.a.Command(s.ctx, "cat", "doc.go") // the test runs in its package's folder
	if err != nil {
		s.Fatal(err)
	}
	if out, err := cmd.Output(); err != nil || !strings.HasPrefix(string(out), "// Package lab") {
		s.Errorf("a file of the host by its relative name: %v %q", err, out)
	}
	// A command that is given up leaves nothing behind in the device.
	ctx, cancel := context.WithCancel(s.ctx)
	cmd, err = s.a.Command(ctx, "sh", "-c", "echo here; exec sleep 12345")
	if err != nil {
		s.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		s.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		s.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 5)); err != nil {
		s.Fatal(err)
	}
	cancel()
	cmd.Wait()
	s.eventually("the command's process is gone", func() bool {
		_, err := s.a.Run(s.ctx, "sh", "-c", "! grep -qx sleep /proc/[0-9]*/comm")
		return err == nil
	})
}

// ignored is the SigIgn mask of a /proc/PID/status.
func ignored(s story, status string) (mask uint64) {
	for line := range strings.Lines(status) {
		if n, _ := fmt.Sscanf(line, "SigIgn: %x", &mask); n == 1 {
			return mask
		}
	}
	s.Fatalf("no SigIgn in %q", status)
	return 0
}

func cutTwo(s story) {
	s.must(s.lab.Cut("b", "a"))
	s.hears("ac bc", "ab")
	s.must(s.lab.Cut("a", "b")) // the same again
	s.must(s.lab.Cut("b", "c"))
	s.hears("ac", "ab bc")
	for _, bad := range [][2]string{{"a", "a"}, {"a", "nobody"}} {
		if s.lab.Cut(bad[0], bad[1]) == nil {
			s.Errorf("cut %v was accepted", bad)
		}
	}
	s.must(s.lab.Heal())
	s.hears("ab ac bc", "")
}

func unplug(s story) {
	s.must(s.lab.Cut("c", ""))
	s.hears("ab", "ac bc")
	s.must(s.lab.Heal())
	s.hears("ab ac bc", "")
}

func renumber(s story) {
	was := s.address(s.b)
	now, err := s.b.Renumber(s.ctx)
	s.must(err)
	if got := s.address(s.b); got.String() == was.String() || !strings.HasPrefix(now, got.String()+"/") {
		s.Errorf("address %s, then %s, said %s", was, got, now)
	}
	s.is(s.b, "1\n", "sh", "-c", "ip -4 -o addr show dev eth0 | wc -l")
	s.hears("ab bc", "")
}

func secondInterface(s story) {
	address, err := s.b.AddInterface("wlan0")
	s.must(err)
	radio, _, err := net.ParseCIDR(address)
	s.must(err)
	if _, err := s.b.AddInterface("wlan0"); err == nil {
		s.Error("a second wlan0 was added")
	}
	s.must(s.b.Plug("eth0", false))
	s.is(s.b, "0\n", "cat", "/sys/class/net/eth0/carrier")
	s.is(s.b, "", "ip", "-4", "-o", "addr", "show", "dev", "eth0")
	answers := func(when string, want bool) {
		s.Helper()
		limit := 3 * time.Second
		if !want {
			limit = 200 * time.Millisecond
		}
		ctx, cancel := context.WithTimeout(s.ctx, limit)
		defer cancel()
		err := poll(ctx, 20*time.Millisecond, func() (bool, error) {
			c, err := s.a.Dial(ctx, "tcp", fmt.Sprintf("%s:%d", radio, standInPort))
			if err == nil {
				c.Close()
			}
			return err == nil, nil
		})
		if (err == nil) != want {
			s.Errorf("%s: b answers on wlan0: %v, want %v", when, err == nil, want)
		}
	}
	answers("eth0 is out", true)
	s.must(s.lab.Cut("a", "b"))
	answers("a and b are cut", false)
	s.must(s.lab.Heal())
	answers("the cut is healed", true)
	s.is(s.b, "0\n", "cat", "/sys/class/net/eth0/carrier") // that was no cut

	s.must(s.b.SetMTU("wlan0", 1400))
	s.is(s.b, "1400\n", "cat", "/sys/class/net/wlan0/mtu")
	s.must(s.b.SetAddress("wlan0", "10.99.0.1/24"))
	s.is(s.b, "10.99.0.1/24\n", "sh", "-c", "ip -4 -o addr show dev wlan0 | awk '{print $4}'")
	s.must(s.b.Kill(s.ctx, "power"))
	s.must(s.b.Start(s.ctx))
	s.is(s.b, "1400\n", "cat", "/sys/class/net/wlan0/mtu") // all of it is as it was
	s.is(s.b, "0\n", "cat", "/sys/class/net/eth0/carrier")
	s.must(s.b.Plug("wlan0", false))
	s.must(s.b.Plug("eth0", true))
	s.must(s.b.WaitReady(s.ctx))
	s.hears("ab bc", "")
}

func killed(s story) {
	for _, what := range []string{"engine", "tunnel"} {
		was := s.out(s.a, "cat", "/run/rivulet/"+what+".pid")
		s.must(s.a.Kill(s.ctx, what))
		s.eventually("another "+what, func() bool {
			now, err := s.a.Run(s.ctx, "cat", "/run/rivulet/"+what+".pid")
			return err == nil && now != was
		})
	}
	engine := s.out(s.a, "cat", "/run/rivulet/engine.pid")
	s.must(s.a.Kill(s.ctx, "supervisor"))
	s.is(s.a, "", "sh", "-c", "kill -0 "+engine) // the others live on
	if err := s.a.Kill(s.ctx, "supervisor"); err == nil {
		s.Error("a second kill found a supervisor")
	}
	if err := s.a.WaitReady(s.ctx); err == nil || !strings.Contains(err.Error(), "SIGKILL") {
		s.Errorf("waiting for a dead supervisor: %v", err)
	}
	// Its PID file is still there; the next owner of an engine's PID is not the engine.
	s.is(s.a, "", "sh", "-c", "kill -9 "+engine+"; touch -d '1 hour ago' /run/rivulet/engine.pid; echo 1 > /dev/null")
	s.is(s.a, "", "sh", "-c", "setsid sleep 300 >/dev/null 2>&1 & echo $! > /run/rivulet/engine.pid; touch -d '1 hour ago' /run/rivulet/engine.pid")
	if err := s.a.Kill(s.ctx, "engine"); err == nil || !strings.Contains(err.Error(), "younger") {
		s.Errorf("killing a process younger than the PID file: %v", err)
	}
	s.is(s.a, "", "sh", "-c", "kill -0 $(cat /run/rivulet/engine.pid)")
	s.must(s.a.Start(s.ctx))
	s.must(s.a.WaitReady(s.ctx))
}

func stopStart(s story) {
	boots := len(s.out(s.b, "cat", standInState+"/boots"))
	s.must(s.b.Start(s.ctx)) // it runs: nothing happens
	s.must(s.b.Stop(s.ctx))
	s.is(s.b, "", "test", "-e", standInState+"/orderly")
	s.must(s.b.Start(s.ctx))
	s.eventually("one more start", func() bool { return len(s.out(s.b, "cat", standInState+"/boots")) == boots+1 })
}

func powerCut(s story) {
	id := s.out(s.c, "cat", "/etc/machine-id")
	boots := len(s.out(s.c, "cat", standInState+"/boots"))
	s.out(s.c, "sh", "-c", "mkdir -p /sys/fs/cgroup/memory/pod/deep /sys/fs/cgroup/pod 2>/dev/null; echo x > /run/x; echo x > /etc/x")
	s.must(s.lab.Cut("a", "c"))
	s.must(s.c.Kill(s.ctx, "power"))
	if _, err := s.c.Run(s.ctx, "true"); err == nil {
		s.Error("a command ran without power")
	}
	addr, err := s.c.Renumber(s.ctx) // leases change while one is off
	s.must(err)
	s.must(s.c.Start(s.ctx))
	s.must(s.c.WaitReady(s.ctx))
	if got := s.address(s.c); !strings.HasPrefix(addr, got.String()+"/") {
		s.Errorf("boots with %s, want %s", got, addr)
	}
	s.is(s.c, id, "cat", "/etc/machine-id")
	s.is(s.c, strings.Repeat("I", boots+1), "cat", standInState+"/boots")
	s.is(s.c, "x\n", "cat", "/etc/x")
	s.is(s.c, "", "test", "!", "-e", "/run/x")
	s.hears("ab bc", "ac")
	s.must(s.lab.Heal())
	s.hears("ac", "")
}

// hears checks pairs such as "ab ac" with TCP, UDP and multicast: the first must come through, the others must not.
func (s story) hears(yes, no string) {
	s.Helper()
	for _, pair := range strings.Fields(yes) {
		if err := s.reach(pair, 3*time.Second); err != nil {
			s.Errorf("%s: %v", pair, err)
		}
	}
	for _, pair := range strings.Fields(no) {
		for name, err := range map[string]error{"TCP": s.tcp(pair, 200*time.Millisecond), "UDP": s.udp(pair, "", 100*time.Millisecond),
			"multicast": s.udp(pair, group, 100*time.Millisecond)} {
			if err == nil {
				s.Errorf("%s: %s came through", pair, name)
			}
		}
	}
}

func (s story) reach(pair string, limit time.Duration) error {
	return errors.Join(s.tcp(pair, limit), s.udp(pair, "", limit), s.udp(pair, group, limit))
}

const group = "224.0.0.251"

func (s story) pair(pair string) (from, to *Device) {
	by := map[byte]*Device{'a': s.a, 'b': s.b, 'c': s.c}
	return by[pair[0]], by[pair[1]]
}

func (s story) tcp(pair string, limit time.Duration) error {
	from, to := s.pair(pair)
	ctx, cancel := context.WithTimeout(s.ctx, limit)
	defer cancel()
	return poll(ctx, 20*time.Millisecond, func() (bool, error) {
		c, err := from.Dial(ctx, "tcp", fmt.Sprintf("%s:%d", s.address(to), standInPort))
		if err != nil {
			return false, nil
		}
		defer c.Close()
		name, _ := io.ReadAll(c)
		if string(name) != to.Name {
			return false, fmt.Errorf("%q answered", name)
		}
		return true, nil
	})
}

// udp sends from the first to the second, to its address or to a multicast group, until one packet is there.
func (s story) udp(pair, to string, limit time.Duration) error {
	sender, receiver := s.pair(pair)
	from, err := netip.ParseAddr(s.address(sender).String())
	if err != nil {
		return err
	}
	var in, out *net.UDPConn
	err = receiver.inNetwork(func() (err error) {
		eth, err := net.InterfaceByName(deviceNIC)
		if err != nil {
			return err
		}
		if to != "" {
			in, err = net.ListenMulticastUDP("udp4", eth, &net.UDPAddr{IP: net.ParseIP(to), Port: 5999})
		} else {
			to = s.address(receiver).String()
			in, err = net.ListenUDP("udp4", &net.UDPAddr{Port: 5999})
		}
		return err
	})
	if err != nil {
		return err
	}
	defer in.Close()
	// A device has no default route: multicast leaves by the interface whose address the socket has.
	err = sender.inNetwork(func() (err error) {
		out, err = net.ListenUDP("udp4", &net.UDPAddr{IP: from.AsSlice()})
		if err == nil {
			err = multicastFrom(out, from)
		}
		return err
	})
	if err != nil {
		return err
	}
	defer out.Close()
	ctx, cancel := context.WithTimeout(s.ctx, limit)
	defer cancel()
	return poll(ctx, 10*time.Millisecond, func() (bool, error) {
		out.WriteTo([]byte("x"), &net.UDPAddr{IP: net.ParseIP(to), Port: 5999})
		in.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
		_, who, err := in.ReadFrom(make([]byte, 9))
		return err == nil && who.(*net.UDPAddr).IP.Equal(from.AsSlice()), nil
	})
}

func (s story) address(d *Device) net.IP {
	s.Helper()
	st, err := loadState(s.lab.dir)
	s.must(err)
	ip, _, err := net.ParseCIDR(st.device(d.Name).Address)
	s.must(err)
	return ip
}

func (s story) out(d *Device, args ...string) string {
	s.Helper()
	out, err := d.Run(s.ctx, args...)
	s.must(err)
	return out
}

func (s story) is(d *Device, want string, args ...string) {
	s.Helper()
	if got := s.out(d, args...); got != want {
		s.Errorf("%s: %q gave %q, want %q", d.Name, strings.Join(args, " "), got, want)
	}
}

func (s story) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s story) eventually(what string, f func() bool) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.ctx, 10*time.Second)
	defer cancel()
	if poll(ctx, 20*time.Millisecond, func() (bool, error) { return f(), nil }) != nil {
		s.Fatal("not yet: " + what)
	}
}

func TestUpThatFailsLeavesNothing(t *testing.T) {
	needRoot(t)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	tr := newTraces(t)
	t.Setenv(strings.TrimSuffix(markEnv, "="), tr.mark)
	broken := filepath.Join(t.TempDir(), "rivulet")
	if err := os.WriteFile(broken, []byte("no program"), 0o755); err != nil {
		t.Fatal(err)
	}
	_, err := Up(ctx, Options{Dir: tr.dir, Binary: broken, Devices: 2, Env: map[string][]string{"": tr.env()}})
	if err == nil || !strings.Contains(err.Error(), "start rivulet") {
		t.Errorf("got %v", err)
	}
	tr.none(t, nil)
}

func TestUpRefuses(t *testing.T) {
	needRoot(t)
	binary := standInBinary(t)
	for _, c := range []struct {
		o    Options
		want string
	}{
		{Options{Dir: t.TempDir(), Binary: "/nowhere/rivulet", Devices: 1}, "make build"},
		{Options{Dir: t.TempDir(), Binary: binary, Devices: 0}, "choose 1 to"},
		{Options{Dir: t.TempDir(), Binary: binary, Devices: maxDevices + 1}, "choose 1 to"},
		{Options{Dir: t.TempDir() + "/x,y", Binary: binary, Devices: 1}, "choose another folder"},
		{Options{Dir: t.TempDir(), Binary: binary, Devices: 1, Env: map[string][]string{"z": {"A=B"}}}, "no device"},
	} {
		if _, err := Up(t.Context(), c.o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.o, err, c.want)
		}
	}
}
