package iptables

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// fake makes a folder of shell scripts: the host's iptables of some version and temper.
func fake(t *testing.T, version string, scripts map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	all := map[string]string{
		"iptables":         `[ "$1" = --version ] && { echo "` + version + `"; exit 0; }; exit 0`,
		"iptables-save":    "exit 0",
		"iptables-restore": "cat >/dev/null",
	}
	for name, text := range scripts {
		all[name] = text
	}
	for name, text := range all {
		if text == "" {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// bundled is a stand-in for the bundle's folder netfilter.
func bundled(t *testing.T, nft, legacy map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for backend, scripts := range map[string]map[string]string{NFT: nft, Legacy: legacy} {
		if err := os.Rename(fake(t, "iptables v1.8.9 ("+backend+")", scripts), filepath.Join(dir, backend)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const broken = `echo "Could not fetch rule set generation id" >&2; echo more >&2; exit 4`

func TestChoice(t *testing.T) {
	needRoot(t)
	good := fake(t, "iptables v1.8.11 (nf_tables)", nil)
	noNFT := map[string]string{"iptables-restore": broken}
	kube := map[string]string{"iptables-save": `printf ':KUBE-SERVICES - [0:0]\n-A INPUT -j ACCEPT\n'`}
	firewall := map[string]string{"iptables-save": `printf -- '-A INPUT -j ACCEPT\n-A INPUT -j DROP\n'`}
	for _, tc := range []struct {
		name        string
		path        string
		nft, legacy map[string]string
		want        string // host or bundled, backend
		why         string
	}{
		{"the host's is used", good, nil, nil, "host nft", ""},
		{"whatever rules there are", good, nil, kube, "host nft", ""},
		{"an old one has one backend", fake(t, "iptables v1.6.2", nil), nil, nil, "host legacy", ""},
		{"a library complains first", fake(t, "ERROR: ld.so: object cannot be preloaded\niptables v1.8.9 (legacy)", nil), nil, nil, "host legacy", ""},
		{"none", t.TempDir(), nil, nil, "bundled nft", "no iptables, iptables-save, iptables-restore"},
		{"half of it", fake(t, "", map[string]string{"iptables-save": ""}), nil, nil, "bundled nft", "the host has no iptables-save"},
		{"one that loads nothing", fake(t, "iptables v1.8.9 (nf_tables)", noNFT), nil, nil, "bundled nft", "generation id"},
		{"one that does not find its rules", fake(t, "iptables v1.8.2 (nf_tables)", map[string]string{"iptables": `[ "$1" = --version ] && { echo "iptables v1.8.2 (nf_tables)"; exit 0; }; exit 1`}),
			nil, nil, "bundled nft", "does not find a rule that is there"},
		{"one that says no version", fake(t, "hello", nil), nil, nil, "bundled nft", "hello"},
		{"a kernel without nft", "", noNFT, nil, "bundled legacy", ""},
		{"legacy rules of Kubernetes", "", firewall, kube, "bundled legacy", ""},
		{"nft rules of Kubernetes", "", kube, firewall, "bundled nft", ""},
		{"a legacy firewall", "", nil, firewall, "bundled legacy", ""},
		{"a relative folder is not looked into", "bin::.", nil, nil, "bundled nft", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			netfilter := bundled(t, tc.nft, tc.legacy)
			c, err := choose(t.Context(), tc.path, netfilter)
			if err != nil {
				t.Fatal(err)
			}
			from, path := "host", tc.path+":"+filepath.Join(netfilter, c.Backend)
			if c.Bundled {
				from, path = "bundled", filepath.Join(netfilter, c.Backend)+":"+tc.path
			}
			if got := from + " " + c.Backend; got != tc.want {
				t.Errorf("chose %s, want %s: %v", got, tc.want, c)
			}
			if !strings.Contains(c.Why, tc.why) || (c.Why == "") == c.Bundled {
				t.Errorf("because %q, want %q", c.Why, tc.why)
			}
			if got := c.PATH(tc.path); got != path {
				t.Errorf("PATH is %q, want %q", got, path)
			}
		})
	}
}

func TestNoneWorksSaysWhatEachSaid(t *testing.T) {
	needRoot(t)
	not := map[string]string{"iptables-restore": broken}
	_, err := choose(t.Context(), fake(t, "iptables v1.8.9 (legacy)", not), bundled(t, not, not))
	for _, want := range []string{"the host's 1.8.9 (legacy) does not work", "bundled nft: ", "bundled legacy: ", "generation id", "modprobe"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in %v", want, err)
		}
	}
}

// A program whose libraries do not load is no matter of kernel modules: the loader's own words come first, and a cure that helps.
func TestOursDoesNotLoad(t *testing.T) {
	needRoot(t)
	for _, said := range []string{
		"netfilter/lib/libxt_statistic.so: libm.so.6: ELF load command address/offset not page-aligned",
		"xtables-nft-multi: error while loading shared libraries: libmnl.so.0: cannot open shared object file: No such file or directory",
	} {
		not := map[string]string{"iptables-restore": "cat <<'END' >&2\n" + said + "\n\nError occurred at line: 16\nEND\nexit 2"}
		_, err := choose(t.Context(), t.TempDir(), bundled(t, not, not))
		if err == nil {
			t.Fatal("it was chosen")
		}
		text := err.Error()
		if !strings.HasPrefix(text, "iptables: ours does not load (bundled nft: iptables-restore: exit status 2 "+said) ||
			!strings.HasSuffix(text, ": apt-get install iptables") || strings.Contains(text, "modprobe") {
			t.Errorf("%v", err)
		}
	}
}

// The real programs, out of the bundle that the Makefile packed, from a folder
// that they were not built for, without the host's loader or libraries.
func TestBundledProgramsWorkAnywhere(t *testing.T) {
	needRoot(t)
	packed, err := filepath.Abs("../../../image/bundle/bundle_linux_" + runtime.GOARCH + ".tar.zst")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(packed); err != nil {
		t.Skip("needs the bundle: make bundle")
	}
	dir := t.TempDir()
	unpack := exec.Command("tar", "-x", "--zstd", "-f", packed, "-C", dir, "netfilter")
	if out, err := unpack.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	netfilter := filepath.Join(dir, "netfilter")
	if _, err := choose(t.Context(), "", netfilter); err != nil {
		t.Fatal(err)
	}
	for _, backend := range []string{NFT, Legacy} {
		if err := works(t.Context(), filepath.Join(netfilter, backend, "iptables"), filepath.Join(netfilter, backend, "iptables-restore")); err != nil {
			t.Logf("the kernel of this machine has no %s: %v", backend, err)
			continue
		}
		// Nothing but the folder: an empty root with it inside, and the calls by
		// PATH, by link and with an environment that wants to lead astray.
		script := fmt.Sprintf(`set -e
mkdir -p %[1]s/proc %[1]s/run && mount -t proc proc %[1]s/proc
cd %[1]s
XTABLES_LIBDIR=/nowhere chroot . /netfilter/%[2]s/ip6tables --version
chroot . /netfilter/%[2]s/iptables -t nat -A POSTROUTING -m comment --comment 'with space' -m statistic --mode random --probability 0.33333 -j MASQUERADE --random-fully
chroot . /netfilter/%[2]s/iptables-save -t nat
umount %[1]s/proc`, dir, backend)
		out, err := exec.Command("unshare", "--net", "--mount", "sh", "-c", script).CombinedOutput()
		for _, want := range []string{"ip6tables v1.8", `--comment "with space"`, "--probability 0.3333", "--random-fully"} {
			if err != nil || !strings.Contains(string(out), want) {
				t.Errorf("%s: %v: %q is missing in:\n%s", backend, err, want, out)
			}
		}
	}
}

func needRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root for network namespaces")
	}
}
