// Package cross tries the binaries that were built for other architectures, with
// the user-mode emulator of QEMU. `make test-arch` builds them and names them in
// RIVULET_ARCHES; without that there is nothing to try and the tests skip.
//
// A binary runs in namespaces of its own, where the kernel is told (binfmt_misc
// belongs to the user namespace) to start programs of the architecture through
// the emulator: what it starts itself, such as helpers of its bundle, runs too.
// The machine's own settings stay as they are.
package cross

import (
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"rivulet/test/harness/tree"
)

// target is how an architecture is known to others.
type target struct {
	goarch, qemu string
	machine      elf.Machine
	// magic and mask of ELF headers, as binfmt_misc takes them.
	magic, mask string
}

const (
	mask64 = `\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff`
	mask32 = mask64
)

var targets = map[string]target{
	"amd64": {"amd64", "qemu-x86_64-static", elf.EM_X86_64, `\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x3e\x00`, mask64},
	"arm64": {"arm64", "qemu-aarch64-static", elf.EM_AARCH64, `\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00`, mask64},
	"armv7": {"arm", "qemu-arm-static", elf.EM_ARM, `\x7fELF\x01\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x28\x00`, mask32},
}

// each runs a test for every architecture that was built.
func each(t *testing.T, f func(t *testing.T, m *machine)) {
	t.Helper()
	arches := strings.Fields(os.Getenv("RIVULET_ARCHES"))
	if len(arches) == 0 {
		t.Skip("needs binaries of other architectures: make test-arch")
	}
	for _, arch := range arches {
		t.Run(arch, func(t *testing.T) { f(t, newMachine(t, arch)) })
	}
}

// machine is a place where programs of an architecture run.
type machine struct {
	target
	binary, helpers, dir string
}

func newMachine(t *testing.T, arch string) *machine {
	t.Helper()
	tg, ok := targets[arch]
	if !ok {
		t.Fatalf("architecture %q is not known", arch)
	}
	built := func(elem ...string) string {
		p := tree.Path(elem...)
		if _, err := os.Stat(p); err != nil {
			t.Fatalf("%v; make build ARCH=%s", err, arch)
		}
		return p
	}
	m := &machine{target: tg, binary: built("bin", arch, "rivulet"), helpers: built("_build", "bundle", "linux_"+tg.goarch), dir: t.TempDir()}
	if tg.goarch != runtime.GOARCH {
		if _, err := exec.LookPath(tg.qemu); err != nil {
			t.Fatalf("%v: apt-get install qemu-user-static", err)
		}
	}
	return m
}

// ownFolders hides those of the host that rivulet writes to.
const ownFolders = `ip link set lo up
mount -t tmpfs none /run; mount -t tmpfs none /etc
printf '127.0.0.1 localhost\n' >/etc/hosts; printf 'root:x:0:0::/:/bin/sh\n' >/etc/passwd
`

// command runs a shell script in new namespaces: no network but its own loopback,
// its own processes, programs of the architecture as if they were of this machine.
func (m *machine) command(ctx context.Context, script string, args ...string) *exec.Cmd {
	register := ""
	if m.goarch != runtime.GOARCH {
		qemu, _ := exec.LookPath(m.qemu)
		register = fmt.Sprintf("mount -t binfmt_misc none /proc/sys/fs/binfmt_misc\nprintf '%%s' ':cross:M::%s:%s:%s:FP' >/proc/sys/fs/binfmt_misc/register\n", m.magic, m.mask, qemu)
	}
	cmd := exec.CommandContext(ctx, "unshare", append([]string{"--user", "--map-root-user", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc",
		"sh", "-ec", register + ownFolders + script, "sh"}, args...)...)
	cmd.Env = append(os.Environ(), "BIN="+m.binary, "HELPERS="+m.helpers, "DIR="+m.dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// run returns what the script printed, both ways, and its exit code.
func (m *machine) run(t *testing.T, script string) (out string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	raw, err := m.command(ctx, script).CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || ctx.Err() != nil {
		t.Fatalf("%s: %v: %s", script, err, raw)
	}
	if exit != nil {
		code = exit.ExitCode()
	}
	return string(raw), code
}

func (m *machine) must(t *testing.T, script string, wants ...string) string {
	t.Helper()
	out, code := m.run(t, script)
	if code != 0 {
		t.Fatalf("%s: exit code %d: %s", script, code, out)
	}
	for _, w := range wants {
		if !strings.Contains(out, w) {
			t.Errorf("%s: %q is missing in %s", script, w, out)
		}
	}
	return out
}

func TestStaticAndOfItsArchitecture(t *testing.T) {
	each(t, func(t *testing.T, m *machine) {
		files := []string{m.binary}
		for _, h := range []string{"runc", "containerd-shim-runc-v2", "cni", "rivulet-tunnel", "pause", "xtables"} {
			files = append(files, filepath.Join(m.helpers, h))
		}
		for _, path := range files {
			f, err := elf.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if f.Machine != m.machine {
				t.Errorf("%s is for %v, want %v", path, f.Machine, m.machine)
			}
			for _, p := range f.Progs {
				if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
					t.Errorf("%s is not static: it has a %v segment", path, p.Type)
				}
				if m.machine == elf.EM_AARCH64 && p.Type == elf.PT_LOAD && p.Align%(64<<10) != 0 {
					t.Errorf("%s does not load with pages of 64 kB: a segment is aligned to %#x", path, p.Align)
				}
			}
		}
	})
}

func TestVersionAndTools(t *testing.T) {
	each(t, func(t *testing.T, m *machine) {
		m.must(t, `"$BIN" version`, "rivulet", "Kubernetes", "containerd", "runc", "iptables")
		m.must(t, `"$BIN" kubectl version --client`, "Client Version: v1.")
		m.must(t, `"$BIN" ctr --version`, "containerd")
	})
}

// The doctor looks at the machine underneath and may well find something: what
// counts is that every probe ends and the report is whole.
func TestDoctor(t *testing.T) {
	each(t, func(t *testing.T, m *machine) {
		out, code := m.run(t, `"$BIN" doctor -o json 2>/dev/null`)
		var report struct {
			Probes []struct{ Name, Status string }
		}
		if err := json.Unmarshal([]byte(out), &report); err != nil || code > 1 || len(report.Probes) < 10 {
			t.Fatalf("exit code %d, %v: %s", code, err, out)
		}
		for _, p := range report.Probes {
			if p.Name == "" || p.Status == "" {
				t.Errorf("a probe said nothing: %+v", p)
			}
		}
	})
}

// rivulet run unpacks its bundle, and the helpers run from where they are put.
func TestBundle(t *testing.T) {
	each(t, func(t *testing.T, m *machine) {
		m.must(t, `
"$BIN" run --state "$DIR/state" --runtime /run/rivulet >"$DIR/log" 2>&1 & pid=$!
until "$BIN" status --runtime /run/rivulet -o json 2>/dev/null | tr -d ' \n' | grep -q '"name":"bundle","state":"Ready"'; do
	kill -0 $pid || { cat "$DIR/log"; exit 1; }
	sleep 0.5
done
kill -TERM $pid; wait $pid || true
bin="$DIR/state/bundle/current/bin"
"$bin/runc" --version
"$bin/containerd-shim-runc-v2" -v
"$bin/bridge" --version 2>&1
"$bin/rivulet-tunnel" --help 2>&1
`, "runc version 1.", "spec:", "go1.", "CNI bridge plugin", "-memory-limit")
		// The emulator has no netfilter sockets: how far the nft backend gets shows that
		// loader, libraries and program fit together.
		out := m.must(t, `cd "$DIR/state/bundle/current/netfilter"; legacy/iptables --version; legacy/ip6tables-save -V; nft/iptables --version 2>&1 || true`,
			"iptables v1.8.9 (legacy)", "ip6tables-save v1.8.9 (legacy)")
		if !strings.Contains(out, "(nf_tables)") && !strings.Contains(out, "iptables: Failed to initialize nft: Protocol not supported") {
			t.Errorf("nft: %s", out)
		}
	})
}

// Kernels for arm64 have pages of 4, 16 (Raspberry Pi 5) or 64 kB. Loaders check each library against the size that the
// emulator tells them.
func TestExtensionsLoadWithAnyPage(t *testing.T) {
	each(t, func(t *testing.T, m *machine) {
		if m.goarch != "arm64" || runtime.GOARCH == "arm64" {
			t.Skip("needs arm64 in the emulator")
		}
		for _, size := range []string{"16384", "65536"} {
			m.must(t, `cp -r "$HELPERS/netfilter" "$DIR/pages"; cp "$HELPERS/libm.so.6" "$DIR/pages/lib"; mkdir "$DIR/pages/legacy"; cp "$HELPERS/xtables" "$DIR/pages/legacy/iptables"
QEMU_PAGESIZE=`+size+` "$DIR/pages/legacy/iptables" -m statistic --help; rm -r "$DIR/pages"`, "statistic match options:")
		}
	})
}

func TestTunnelStartsAndEnds(t *testing.T) {
	each(t, func(t *testing.T, m *machine) {
		m.must(t, `"$HELPERS/rivulet-tunnel" -socket "$DIR/tunnel.sock" & pid=$!
until [ -S "$DIR/tunnel.sock" ]; do kill -0 $pid; sleep 0.1; done
kill -TERM $pid; wait $pid; echo ended well`, "ended well")
	})
}

func TestPauseLeavesWhenTold(t *testing.T) {
	each(t, func(t *testing.T, m *machine) {
		m.must(t, `"$HELPERS/pause" & pid=$!
until grep -q sigtimedwait /proc/$pid/wchan; do kill -0 $pid; sleep 0.1; done
kill -TERM $pid; wait $pid; echo ended well`, "ended well")
	})
}

// The control plane comes up: API server, datastore and controllers are where 32
// bits and other memory rules would show first. (A node needs a kernel of the
// architecture.) Emulated, it takes minutes.
func TestControlPlane(t *testing.T) {
	each(t, func(t *testing.T, m *machine) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		out, err := m.command(ctx, `
ip link add eth0 type veth peer name eth1; ip addr add 10.99.0.1/24 dev eth0; ip link set eth0 up; ip link set eth1 up; ip route add default via 10.99.0.2
ln -s "$BIN" "$DIR/rivulet-engine"; ln -s "$HELPERS/cni" "$DIR/host-local"; PATH=$DIR:$PATH # k3s looks for it even without an agent
"$DIR/rivulet-engine" server --disable-agent --data-dir "$DIR/k3s" --write-kubeconfig "$DIR/kubeconfig" --egress-selector-mode disabled \
	--disable traefik,servicelb,coredns,local-storage,metrics-server --disable-helm-controller --disable-cloud-controller --disable-network-policy >"$DIR/log" 2>&1 & pid=$!
k() { "$BIN" kubectl --kubeconfig "$DIR/kubeconfig" "$@"; }
until [ -s "$DIR/kubeconfig" ] && k get --raw /readyz 2>/dev/null; do kill -0 $pid || { tail -n 30 "$DIR/log"; exit 1; }; sleep 1; done
k create namespace trial
until k -n trial get serviceaccount default 2>/dev/null; do kill -0 $pid; sleep 1; done # made by a controller
k -n trial create configmap big --from-literal=number=9223372036854775807
k -n trial get configmap big -o jsonpath='{.data.number} {.metadata.uid}'
kill -TERM $pid; wait $pid || true
! grep -e '^panic' -e '^fatal error' -e 'unaligned' "$DIR/log"
`).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "9223372036854775807 ") {
			t.Fatalf("%v: %s", err, out)
		}
	})
}
