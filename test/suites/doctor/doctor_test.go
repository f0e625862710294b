package doctor

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"rivulet/appliance/diagnose/doctor"
	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
)

// A device on which nothing is wrong: no probe fails, the neighbour is heard and its
// handshakes are seen, and it takes seconds.
func TestAHealthyDevice(t *testing.T) {
	ctx := suite.Bounded(t, time.Minute)
	begun := time.Now()
	found, code := examine(t, ctx, a)
	if took := time.Since(begun); took > 20*time.Second {
		t.Errorf("took %s", took)
	}
	if code != 0 || len(found) != len(doctor.Probes()) {
		t.Errorf("exit code %d, %d probes", code, len(found))
	}
	for _, f := range found {
		if f.Status == doctor.Fail {
			t.Errorf("%s fails: %s", f.Name, f.Text)
		}
	}
	for name, words := range map[string]string{"memory-cgroup": "usable", "kernel": "overlayfs", "tun": "usable", "lan": "eth0", "multicast": "10.77.0.12",
		"udp": "carries to b", "ports": "ours", "cidr": "nobody else", "cni-leftovers": "none", "disk-speed": "64 synced writes", "filesystem": "ext4"} {
		if name == "filesystem" || name == "disk-speed" {
			continue // depends on the host's disk
		}
		wants(t, found[name], doctor.Pass, words)
	}
	wants(t, found["default-route"], doctor.Warn, "rivulet image push FILE.tar") // the lab has no router
	text := labtest.Output(t, ctx, a, "rivulet", "doctor")
	for _, f := range found {
		if !strings.Contains(text, f.Name) {
			t.Errorf("%s is missing in\n%s", f.Name, text)
		}
	}
	if names := labtest.Output(t, ctx, a, "rivulet", "doctor", "--list"); strings.Count(names, "\n") != len(found) {
		t.Errorf("--list:\n%s", names)
	}
}

// The two devices are kept apart, as by an access point: the doctor tells that from
// being alone, because it knows its peer.
func TestClientIsolation(t *testing.T) {
	ctx := suite.Bounded(t, 2*time.Minute)
	if err := suite.Lab.Cut("a", "b"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { healed(t) })
	await.NoError(t, ctx, 0, "as it should be", func() error { // the peer is first to be given up
		found, code := examine(t, ctx, a, "--only", "multicast,udp")
		if f := found["multicast"]; f.Status != doctor.Fail || code != 1 || !strings.Contains(f.Cure, "client isolation") || !strings.Contains(f.Text, "10.77.0.12") {
			return fmt.Errorf("exit code %d, %s: %s; %s", code, f.Status, f.Text, f.Cure)
		}
		return nil
	})
}

// A firewall on the way lets TCP through and not the tunnel.
func TestUDPIsBlocked(t *testing.T) {
	ctx := suite.Bounded(t, 2*time.Minute)
	rule := func(what string) {
		for _, program := range []string{"iptables", "ip6tables"} { // link-local addresses are paths, too
			labtest.Output(t, ctx, b, program, what, "INPUT", "-p", "udp", "--dport", "7442", "-j", "DROP")
		}
	}
	rule("-I")
	t.Cleanup(func() { rule("-D"); healed(t) })
	await.NoError(t, ctx, 0, "as it should be", func() error {
		found, code := examine(t, ctx, a, "--only", "udp,multicast")
		if f := found["udp"]; f.Status != doctor.Warn || code != 0 || !strings.Contains(f.Cure, "allow UDP 7442") || !strings.Contains(f.Text, "b (10.77.0.12:7442)") || !strings.Contains(f.Text, "TCP") {
			peers, _ := a.Run(ctx, "rivulet", "peers", "-o", "wide")
			return fmt.Errorf("exit code %d, %s: %s; %s\n%s", code, f.Status, f.Text, f.Cure, peers)
		}
		wants(t, found["multicast"], doctor.Pass)
		return nil
	})
}

// A cable that is out is a health problem, and none any more when it is in again.
func TestCableOut(t *testing.T) {
	ctx := suite.Bounded(t, 2*time.Minute)
	if err := suite.Lab.Cut("a", ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { healed(t) })
	found, code := examine(t, ctx, a, "--only", "lan,multicast")
	wants(t, found["lan"], doctor.Warn, "eth0 has no cable")
	wants(t, found["multicast"], doctor.Skip)
	if code != 0 {
		t.Errorf("exit code %d for a warning", code)
	}
	statusShows(t, ctx, a, "WARNING the device is on no network [lan]: ", true)
	if err := suite.Lab.Heal(); err != nil {
		t.Fatal(err)
	}
	found, _ = examine(t, ctx, a, "--only", "lan") // makes the supervisor look as well
	wants(t, found["lan"], doctor.Pass)
	statusShows(t, ctx, a, "[lan]", false)
}

// One list for status, health and metrics, and it goes with its cause.
func TestOneListOfProblems(t *testing.T) {
	ctx := suite.Bounded(t, 2*time.Minute)
	route := func(what string) { labtest.Output(t, ctx, a, "ip", "route", what, "10.42.200.0/24", "dev", "eth0") }
	route("add")
	found, code := examine(t, ctx, a, "--only", "cidr")
	wants(t, found["cidr"], doctor.Fail, "10.42.200.0/24 on eth0", "pods (10.42.0.0/16)")
	if code != 1 {
		t.Errorf("exit code %d", code)
	}
	statusShows(t, ctx, a, "ERROR   a network here has the addresses of the cluster [cidr]: ", true)
	const metric = `rivulet_health_problems{code="cidr",severity="error"} 1`
	if out := labtest.Output(t, ctx, a, "rivulet", "metrics"); !strings.Contains(out, metric) || !strings.Contains(out, `rivulet_peers{state="Connected"} 1`) {
		t.Errorf("%q is missing in\n%s", metric, out)
	}
	route("del")
	statusShows(t, ctx, a, "[cidr]", false) // by itself
	if out := labtest.Output(t, ctx, a, "rivulet", "metrics"); strings.Contains(out, `code="cidr"`) {
		t.Errorf("still in\n%s", out)
	}
}

// Without a supervisor: another program has a port, the TUN device is missing and
// made by --fix, the state folder is small, full, or has no inodes left.
func TestBrokenThingsWithoutASupervisor(t *testing.T) {
	ctx := suite.Bounded(t, 2*time.Minute)
	if err := b.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	labtest.CleanUp(t, func(ctx context.Context) {
		if err := b.Start(ctx); err != nil {
			t.Error(err)
		}
		if err := b.WaitPeered(ctx, 1); err != nil {
			t.Error(err)
		}
	})
	supportWithoutSupervisor(t, ctx)
	found, code := examine(t, ctx, b, "--only", "supervisor,ports,udp,tun")
	wants(t, found["supervisor"], doctor.Fail, "start it with: sudo ")
	if code != 1 {
		t.Errorf("exit code %d of a device whose supervisor has ended", code)
	}
	wants(t, found["ports"], doctor.Pass) // the tunnel goes on, and is ours
	wants(t, found["udp"], doctor.Skip, "not running")
	wants(t, found["tun"], doctor.Pass)

	cmd, err := b.Command(ctx, "busybox", "nc", "-l", "-p", "10250")
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	await.NoError(t, ctx, 0, "as it should be", func() error {
		found, code := examine(t, ctx, b, "--only", "ports")
		if f := found["ports"]; f.Status != doctor.Fail || code != 1 || !strings.Contains(f.Text, "TCP 10250 (kubelet) by busybox (pid ") {
			return fmt.Errorf("exit code %d, %s: %s", code, f.Status, f.Text)
		}
		return nil
	})
	cmd.Process.Kill()
	cmd.Wait()

	labtest.Output(t, ctx, b, "rm", "/dev/net/tun")
	found, code = examine(t, ctx, b, "--only", "tun")
	wants(t, found["tun"], doctor.Fail, "is not there", "doctor --fix")
	if _, _, still := on(t, ctx, b, "test", "-e", "/dev/net/tun"); code != 1 || still == 0 {
		t.Errorf("exit code %d; mended without being told: %v", code, still == 0)
	}
	out := labtest.Output(t, ctx, b, "rivulet", "doctor", "--fix", "--only", "tun")
	if !strings.Contains(out, "FIX   tun: makes the device file /dev/net/tun") || !strings.Contains(out, "PASS  tun") {
		t.Errorf("--fix says\n%s", out)
	}

	labtest.Output(t, ctx, b, "mkdir", "/run/small")
	for options, words := range map[string]string{"size=64m": "databases and logs need more", "size=512m,nr_inodes=3": "inodes", "size=512m": ""} {
		labtest.Output(t, ctx, b, "mount", "-t", "tmpfs", "-o", options, "tmpfs", "/run/small")
		if words == "" {
			words = "below 5 % the kubelet throws pods out"
			labtest.Output(t, ctx, b, "dd", "if=/dev/zero", "of=/run/small/big", "bs=1M", "count=500")
		} else if strings.Contains(options, "inodes") {
			labtest.Output(t, ctx, b, "touch", "/run/small/x", "/run/small/y")
		}
		found, code := examine(t, ctx, b, "--state", "/run/small", "--only", "disk-space")
		wants(t, found["disk-space"], doctor.Fail, words)
		if code != 1 {
			t.Errorf("%s: exit code %d", options, code)
		}
		labtest.Output(t, ctx, b, "umount", "/run/small")
	}
}

// healed takes every cut back and waits for the peers.
func healed(t *testing.T) {
	ctx := suite.Bounded(t, time.Minute)
	if err := suite.Lab.Heal(); err != nil {
		t.Error(err)
	}
	for _, d := range []*lab.Device{a, b} {
		if err := d.WaitPeered(ctx, 1); err != nil {
			t.Error(err)
		}
	}
}

func statusShows(t *testing.T, ctx context.Context, d *lab.Device, words string, want bool) {
	t.Helper()
	await.NoError(t, ctx, 0, "as it should be", func() error {
		out, _, _ := on(t, ctx, d, "rivulet", "status")
		if strings.Contains(out, words) != want {
			return fmt.Errorf("want %q in status: %v\n%s", words, want, out)
		}
		return nil
	})
}

// Rules of Services that another program flushes are found within 15 s and come back; a firewall
// that drops what pods send is found by packets, and the doctor's cure lets them in.
func TestWhatPodsReach(t *testing.T) {
	ctx := suite.Bounded(t, 5*time.Minute)
	labtest.Output(t, ctx, a, "rivulet", "kubectl", "run", "bridged", "--image=rivulet.dev/pause:none", "--image-pull-policy=Never") // a sandbox makes the bridge
	labtest.CleanUp(t, func(ctx context.Context) {
		labtest.Output(t, ctx, a, "rivulet", "kubectl", "delete", "--now", "pod/bridged")
	})
	passes := func() error {
		found, _ := examine(t, ctx, a, "--only", "pod-network,service-rules")
		for _, f := range found {
			if f.Status != doctor.Pass {
				return fmt.Errorf("%s: %s: %s", f.Name, f.Status, f.Text)
			}
		}
		return nil
	}
	shown := func(code string, want bool) func() error {
		return func() error {
			if out := labtest.Output(t, ctx, a, "rivulet", "status"); strings.Contains(out, "["+code+"]") != want {
				return fmt.Errorf("%s shown: %v\n%s", code, !want, out)
			}
			return nil
		}
	}
	await.NoError(t, ctx, time.Minute, "pods reach DNS and the API server", passes)

	// The engine sees a flush of everything; part of one chain is what the supervisor looks for.
	back := func(what string, table, rule string) {
		begun := time.Now()
		await.NoError(t, ctx, 15*time.Second, what, func() error {
			if out := labtest.Output(t, ctx, a, "iptables", "-t", table, "-S"); !strings.Contains(out, rule) {
				return fmt.Errorf("no %s in\n%s", rule, out)
			}
			return nil
		})
		t.Logf("%s after %s", what, time.Since(begun).Round(time.Second/10))
	}
	labtest.Output(t, ctx, a, "sh", "-c", "iptables -F; iptables -t nat -F")
	back("what is forwarded passes", "filter", "-j FLANNEL-FWD")
	back("what leaves is masqueraded", "nat", "-j FLANNEL-POSTRTG")
	back("Services are back", "nat", "-j KUBE-SERVICES")
	await.NoError(t, ctx, 15*time.Second, "and pods reach them", passes)
	labtest.Output(t, ctx, a, "sh", "-c", "iptables -F")
	back("filters are back", "filter", "-j KUBE-FORWARD")
	labtest.Output(t, ctx, a, "sh", "-c", "iptables -t nat -F KUBE-SERVICES")
	await.NoError(t, ctx, 15*time.Second, "Services that are gone are shown", shown("pod-network", true))
	await.NoError(t, ctx, 30*time.Second, "they are back", passes)
	await.NoError(t, ctx, 15*time.Second, "nothing is shown", shown("pod-network", false))

	rules := func(what string) string {
		return "iptables " + what + " INPUT -i lo -j ACCEPT; iptables " + what + " INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT; " +
			"iptables " + what + " INPUT -i eth0 -p udp -m multiport --dports 7442,5353 -j ACCEPT; iptables " + what + " INPUT -i eth0 -p tcp --dport 7442 -j ACCEPT"
	}
	labtest.Output(t, ctx, a, "sh", "-c", rules("-A")+"; iptables -P INPUT DROP")
	labtest.CleanUp(t, func(ctx context.Context) {
		labtest.Output(t, ctx, a, "sh", "-c", "iptables -P INPUT ACCEPT; "+rules("-D")+"; iptables -D INPUT -i cni0 -j ACCEPT; iptables -D INPUT -i riv0 -j ACCEPT; true")
		healed(t)
	})
	await.NoError(t, ctx, 15*time.Second, "a firewall that shuts pods out is shown", shown("pod-network", true))
	found, code := examine(t, ctx, a, "--only", "pod-network")
	wants(t, found["pod-network"], doctor.Fail, "drops what pods send")
	if code != 1 {
		t.Errorf("exit code %d", code)
	}
	cure, _, _ := strings.Cut(found["pod-network"].Cure, "; and the same")
	labtest.Output(t, ctx, a, "sh", "-c", cure)
	await.NoError(t, ctx, 15*time.Second, "with the cure pods get in", passes)
}
