package e2e

import (
	"context"
	"fmt"
	"path"
	"strings"
	"testing"

	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
)

const bundledNetfilter = "/var/lib/rivulet/bundle/current/netfilter"

// hideIptables takes the host's iptables from a device and puts an end to the
// rules that were made with it, as after a boot. It returns the way back.
func hideIptables(t *testing.T, ctx context.Context, d *lab.Device) (show func()) {
	t.Helper()
	real := strings.Fields(labtest.Output(t, ctx, d, "sh", "-c", "for f in iptables iptables-save iptables-restore iptables-legacy; do readlink -f $(command -v $f); done | sort -u"))
	if len(real) == 0 {
		t.Fatal("this machine has no iptables, so the other half is not tested: apt-get install iptables")
	}
	wipe(t, ctx, d)
	for _, program := range real {
		labtest.Output(t, ctx, d, "mount", "--bind", "/dev/null", program)
	}
	if out, err := d.Run(ctx, "sh", "-c", "iptables --version"); err == nil {
		t.Fatalf("the device still has iptables: %s", out)
	}
	hidden := true
	show = func() {
		for i := len(real) - 1; hidden && i >= 0; i-- {
			d.Run(ctx, "umount", "--lazy", real[i])
		}
		hidden = false
	}
	t.Cleanup(show)
	return show
}

// wipe removes every rule and chain of both backends, with the bundled programs.
func wipe(t *testing.T, ctx context.Context, d *lab.Device) {
	t.Helper()
	for _, backend := range []string{"nft", "legacy"} {
		for _, table := range []string{"mangle", "nat", "filter"} {
			iptables := path.Join(bundledNetfilter, backend, "iptables") + " -t " + table
			labtest.Output(t, ctx, d, "sh", "-c", iptables+" -F && "+iptables+" -X")
		}
	}
	if n := kubeRules(t, ctx, d, "nft") + kubeRules(t, ctx, d, "legacy"); n > 0 {
		t.Fatalf("%d rules are left", n)
	}
}

// kubeRules counts the rules of kube-proxy and flannel in one backend.
func kubeRules(t *testing.T, ctx context.Context, d *lab.Device, backend string) (n int) {
	t.Helper()
	out := labtest.Output(t, ctx, d, path.Join(bundledNetfilter, backend, "iptables-save"))
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "-A KUBE-S") || strings.HasPrefix(line, "-A FLANNEL-") {
			n++
		}
	}
	return n
}

// usesIptables checks which iptables the engine was given, and that its rules
// are in that backend alone.
func usesIptables(t *testing.T, ctx context.Context, d *lab.Device, bundled bool, backend string) {
	t.Helper()
	environ := labtest.Output(t, ctx, d, "cat", fmt.Sprintf("/proc/%d/environ", pid(t, ctx, d, "engine")))
	for kv := range strings.SplitSeq(environ, "\x00") {
		dirs, ok := strings.CutPrefix(kv, "PATH=")
		if !ok {
			continue
		}
		ours, hosts := strings.Index(dirs, path.Join(bundledNetfilter, backend)), strings.Index(dirs, "/usr/sbin")
		if ours < 0 || hosts < 0 || bundled != (ours < hosts) {
			t.Errorf("bundled %v, backend %s, but PATH is %s", bundled, backend, dirs)
		}
	}
	other := map[string]string{"nft": "legacy", "legacy": "nft"}[backend]
	await.NoError(t, ctx, 0, "rules in "+backend, func() error { // kube-proxy is not waited for by Ready
		if n := kubeRules(t, ctx, d, backend); n < 10 {
			return fmt.Errorf("%d rules in %s", n, backend)
		}
		return nil
	})
	if n := kubeRules(t, ctx, d, other); n > 0 {
		t.Errorf("%d rules in %s too", n, other)
	}
}

// withoutIptables starts rivulet on a device without iptables, once for each
// backend, and calls works after each.
func withoutIptables(t *testing.T, ctx context.Context, d *lab.Device, works func(*testing.T)) {
	restart := func(t *testing.T, before func()) {
		t.Helper()
		if err := d.Stop(ctx); err != nil {
			t.Fatal(err)
		}
		before()
		if err := d.Start(ctx); err != nil {
			t.Fatal(err)
		}
		peered(t, ctx)
	}
	usesIptables(t, ctx, d, false, "nft") // Debian's default
	var show func()
	t.Run("nft", func(t *testing.T) {
		restart(t, func() { show = hideIptables(t, ctx, d) })
		usesIptables(t, ctx, d, true, "nft")
		works(t)
		show()
	})
	t.Run("legacy, as the firewall that is there", func(t *testing.T) {
		restart(t, func() {
			show = hideIptables(t, ctx, d)
			labtest.Output(t, ctx, d, path.Join(bundledNetfilter, "legacy/iptables"), "-A", "INPUT", "-j", "ACCEPT")
		})
		usesIptables(t, ctx, d, true, "legacy")
		works(t)
	})
	restart(t, func() { // the engine writes rules again as long as it runs
		wipe(t, ctx, d)
		show()
	})
	usesIptables(t, ctx, d, false, "nft")
}
