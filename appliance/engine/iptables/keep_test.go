package iptables

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"rivulet/appliance/machine/host"
)

// inNamespace calls f in a network namespace of its own, on one thread.
func inNamespace(t *testing.T, f func() error) {
	t.Helper()
	needRoot(t)
	if err := host.OnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		return f()
	}); err != nil {
		t.Fatal(err)
	}
}

func sh(script string) error {
	out, err := exec.Command("sh", "-ec", script).CombinedOutput()
	if err != nil {
		return &exec.Error{Name: script + ": " + string(out), Err: err}
	}
	return nil
}

func newRules(t *testing.T) *PodRules {
	r := &PodRules{Pods: netip.MustParsePrefix("10.42.0.0/16"), Own: netip.MustParsePrefix("10.42.3.0/24"), Tunnel: "riv0", Log: slog.New(slog.DiscardHandler)}
	r.begin(t.Context())
	return r
}

// ours are the places of our rule in FORWARD, from 0.
func ours(filter Table) (at []int) {
	for i, rule := range filter.chain("FORWARD") {
		if strings.HasSuffix(rule, "-j "+forward) {
			at = append(at, i)
		}
	}
	return at
}

// What firewalls of hosts do to FORWARD, and where the rule of pods has to be then.
func TestForwardedPacketsOfPodsPass(t *testing.T) {
	for _, tc := range []struct {
		name, before string
		at           int // of our rule, from 0
	}{
		{"nothing", "true", 0},
		{"Docker's policy", "iptables -P FORWARD DROP; iptables -N DOCKER-USER; iptables -A FORWARD -j DOCKER-USER; iptables -A DOCKER-USER -j RETURN", 1},
		{"a last rule that refuses", "iptables -A FORWARD -m state --state RELATED -j ACCEPT; iptables -A FORWARD -j REJECT --reject-with icmp-host-prohibited", 1},
		{"the owner's own, and a last rule", "iptables -A FORWARD -s 10.42.0.0/16 -d 192.168.1.0/24 -j DROP; iptables -A FORWARD -j DROP; iptables -A FORWARD -s 10.9.9.9 -j DROP", 1},
		{"ours behind it", `iptables -N FLANNEL-FWD; iptables -A FORWARD -j REJECT; iptables -A FORWARD -m comment --comment "flanneld forward" -j FLANNEL-FWD`, 0},
		{"ours behind a chain that refuses all", `iptables -N FLANNEL-FWD; iptables -N ufw-reject-forward; iptables -A ufw-reject-forward -j REJECT; iptables -A FORWARD -j ufw-reject-forward; iptables -A FORWARD -j FLANNEL-FWD`, 0},
		{"ours behind what refuses some", `iptables -N FLANNEL-FWD; iptables -A FORWARD -s 10.42.0.9 -j DROP; iptables -A FORWARD -j FLANNEL-FWD`, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inNamespace(t, func() error {
				if err := sh(tc.before); err != nil {
					return err
				}
				r := newRules(t)
				for range 2 { // the second time nothing is to be done
					if again, err := r.ensure(t.Context()); err != nil || again != "" {
						return fmt.Errorf("%q %v", again, err)
					}
				}
				saved, err := r.read(t.Context())
				if err != nil {
					return err
				}
				if at := ours(saved["filter"]); !slices.Equal(at, []int{tc.at}) {
					t.Errorf("ours is at %v, want %d, of\n%s", at, tc.at, saved["filter"])
				}
				if got := saved["filter"].chain(forward); len(got) != 3 || got[2] != "-i riv0 -o riv0 -j ACCEPT" {
					t.Errorf("%q", got)
				}
				if got := saved["nat"].chain(masquerade); len(got) != 6 || !slices.Contains(saved["nat"].chain("POSTROUTING"), `-m comment --comment "pods of rivulet" -j FLANNEL-POSTRTG`) {
					t.Errorf("%q", got)
				}
				return nil
			})
		})
	}
}

// What other programs remove comes back at the next poll; what they put in front stays.
func TestFlushedRulesComeBack(t *testing.T) {
	for _, backend := range []string{NFT, Legacy} {
		t.Run(backend, func(t *testing.T) { flushed(t, backend) })
	}
}

func flushed(t *testing.T, backend string) {
	dir := t.TempDir()
	for _, name := range programs {
		program, err := exec.LookPath(strings.Replace(name, "iptables", "iptables-"+backend, 1))
		if err == nil {
			err = os.Symlink(program, filepath.Join(dir, name))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	inNamespace(t, func() error {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		// kube-proxy's, as it leaves them.
		const kube = "iptables -N KUBE-FORWARD; iptables -A FORWARD -j KUBE-FORWARD; iptables -t nat -N KUBE-SERVICES; iptables -t nat -A PREROUTING -j KUBE-SERVICES;" +
			" for t in mangle nat filter; do iptables -t $t -N KUBE-PROXY-CANARY; done"
		if err := sh(kube); err != nil {
			return err
		}
		r := newRules(t)
		if r.legacy != (backend == Legacy) {
			return fmt.Errorf("it takes %s for legacy: %v", backend, r.legacy)
		}
		tick := func() { r.poll(ctx) }
		tick()
		if err := sh("iptables -I FORWARD -s 10.42.3.7 -d 192.168.1.5 -j DROP"); err != nil {
			return err
		}
		tick()
		saved, err := r.read(ctx)
		if err != nil {
			return err
		}
		if at := ours(saved["filter"]); !slices.Equal(at, []int{2}) {
			t.Errorf("a rule that somebody put in front does not stay there: %v\n%s", at, saved["filter"])
		}
		for _, flush := range []string{"iptables -F", "iptables -t nat -F", "iptables -F; iptables -X FLANNEL-FWD", "iptables -D FLANNEL-FWD 2", "iptables -t nat -D FLANNEL-POSTRTG 1"} {
			if err := sh(flush); err != nil {
				return err
			}
			tick()
			if saved, err = r.read(ctx); err != nil {
				return err
			}
			for _, c := range r.chains() {
				if !c.stands(saved[c.table]) || len(saved[c.table].chain(c.name)) != len(c.rules) {
					t.Errorf("after %s: %s\n%s", flush, c.name, saved[c.table])
				}
			}
			if strings.Contains(flush, " -F") {
				if saved["nat"].has(canary) || saved["filter"].has(canary) {
					t.Errorf("after %s kube-proxy is not told", flush)
				}
				if err := sh("iptables -F FORWARD; iptables -t nat -F PREROUTING; iptables -X KUBE-FORWARD 2>/dev/null; iptables -t nat -X KUBE-SERVICES 2>/dev/null; " + kube); err != nil {
					return err
				}
				tick()
			}
		}
		return nil
	})
}

// Nothing is read while the kernel's rules stay as they are.
func TestRulesThatStayAreNotRead(t *testing.T) {
	inNamespace(t, func() error {
		r := newRules(t)
		r.poll(t.Context())
		r.poll(t.Context()) // after the own write
		seen := r.seen
		t.Setenv("PATH", t.TempDir()) // whoever reads now fails
		r.poll(t.Context())
		if r.failed != "" || r.seen != seen {
			t.Errorf("read without a change: %q", r.failed)
		}
		return nil
	})
}

// What is flushed while the rules are being read comes back, too.
func TestAFlushBesideTheReading(t *testing.T) {
	inNamespace(t, func() error {
		r := newRules(t)
		r.poll(t.Context())
		r.poll(t.Context())
		dir := t.TempDir()
		save, err := exec.LookPath("iptables-save")
		if err != nil {
			return err
		}
		// The flush comes after nat, the last table, was read.
		script := fmt.Sprintf("#!/bin/sh\n%s \"$@\"\nif [ \"$2\" = nat ] && rm %s/once 2>/dev/null; then iptables -F; fi\n", save, dir)
		if err := os.WriteFile(filepath.Join(dir, "iptables-save"), []byte(script), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, "once"), nil, 0o600); err != nil {
			return err
		}
		t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
		if err := sh("iptables -A INPUT -s 192.0.2.1 -j ACCEPT"); err != nil { // a change, so that it reads
			return err
		}
		r.poll(t.Context())
		if _, err := os.Stat(filepath.Join(dir, "once")); err == nil {
			return errors.New("the test itself does not work: nothing was flushed")
		}
		r.poll(t.Context())
		saved, err := r.read(t.Context())
		if err == nil && !r.chains()[0].stands(saved["filter"]) {
			t.Errorf("what was flushed does not come back:\n%s", saved["filter"])
		}
		return err
	})
}
