package systemd

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// What the appliance relies on: pods outlive the supervisor, cgroups are ours to
// divide, a supervisor that hangs is noticed, no network is waited for, and an
// error that starting again cannot cure is no loop.
func TestUnitKeepsItsPromises(t *testing.T) {
	for _, line := range []string{
		"Type=notify", "NotifyAccess=main", "KillMode=process", "Delegate=yes", "Restart=always", "WatchdogSec=60",
		"RestartPreventExitStatus=78", "StartLimitIntervalSec=0", "ExecStart=" + Binary + " run", "ExecReload=" + Binary + " config reload",
		"ExecStopPost=-" + Binary + " end-pods",
		"After=network.target time-set.target", "RequiresMountsFor=/var/lib/rivulet /var/lib/kubelet /etc/rivulet", "OOMPolicy=continue",
		"LockPersonality=yes", "SystemCallFilter=~@obsolete @cpu-emulation @swap @reboot",
	} {
		if !strings.Contains(Unit, "\n"+line+"\n") {
			t.Errorf("the unit lacks %s", line)
		}
	}
	if strings.Contains(Unit, "network-online") {
		t.Error("the unit waits for a network")
	}
}

// These would end or hamper containers, each for a reason that no test of a plain
// pod shows; they stay out until somebody finds a way.
func TestUnitLeavesContainersAlone(t *testing.T) {
	for setting, why := range map[string]string{
		"NoNewPrivileges=":         "sudo and ping in containers",
		"RestrictSUIDSGID=":        "images with setuid programs cannot be unpacked",
		"MemoryDenyWriteExecute=":  "Java, Node and browsers in containers",
		"SystemCallArchitectures=": "32-bit images on a 64-bit board",
		"ProtectHostname=":         "runc names containers",
		"PrivateTmp=":              "a mount namespace: the kubelet's mounts are lost at a restart",
		"ProtectSystem=":           "a mount namespace", "ProtectHome=": "a mount namespace", "PrivateMounts=": "a mount namespace",
		"ProtectKernelTunables=": "kube-proxy and sysctls of pods", "ProtectKernelModules=": "a mount namespace, and CNI plugins",
		"ProtectControlGroups=": "the kubelet", "ProtectKernelLogs=": "the kubelet reads /dev/kmsg",
		"ProtectClock=":     "the supervisor sets a clock that is wrong at boot",
		"PrivateDevices=":   "containers' device nodes",
		"RestrictRealtime=": "real-time pods of a robotics lab",
		"RemoveIPC=":        "pods that share memory with the host",
	} {
		if regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(setting)).MatchString(Unit) {
			t.Errorf("the unit has %s: %s", setting, why)
		}
	}
	if regexp.MustCompile(`(?m)^CapabilityBoundingSet=.*CAP_(MAC_ADMIN|SYS_ADMIN|NET_ADMIN|SYS_PTRACE|SYS_TIME|SYS_MODULE|SYS_RESOURCE|BPF)\b`).MatchString(Unit) {
		t.Error("the unit drops a capability that the engine or common workloads need (AppArmor profiles, eBPF, modules, the clock)")
	}
}

func analyze(t *testing.T, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("needs systemd-analyze: make deps")
	}
	out, err := exec.Command("systemd-analyze", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("systemd-analyze %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// unitFile is the unit with a program that is there.
func unitFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), UnitName)
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(Unit, Binary, "/bin/true")), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestSystemdUnderstandsAllOfTheUnit(t *testing.T) {
	if out := analyze(t, "verify", unitFile(t)); strings.TrimSpace(out) != "" {
		t.Errorf("systemd-analyze verify: %s", out)
	}
}

// The score of a unit that may do all that a container runtime does cannot be
// low; it must not rise unnoticed.
func TestExposureHasACeiling(t *testing.T) {
	const ceiling = 9.0
	out := analyze(t, "security", "--offline=true", "--no-pager", unitFile(t))
	m := regexp.MustCompile(`Overall exposure level for \S+: ([0-9.]+)`).FindStringSubmatch(out)
	if m == nil {
		t.Fatalf("no score in: %s", out)
	}
	if score, err := strconv.ParseFloat(m[1], 64); err != nil || score > ceiling {
		t.Errorf("exposure %s, ceiling %v", m[1], ceiling)
	}
	for _, holds := range []string{"LockPersonality=", "SystemCallFilter=~@swap", "SystemCallFilter=~@reboot", "SystemCallFilter=~@obsolete",
		"SystemCallFilter=~@cpu-emulation", "RestrictAddressFamilies=~…", "CapabilityBoundingSet=~CAP_SYS_PACCT",
		"CapabilityBoundingSet=~CAP_LINUX_IMMUTABLE", "NotifyAccess="} {
		if !strings.Contains(out, "✓ "+holds) {
			t.Errorf("%s does not hold:\n%s", holds, out)
		}
	}
}

func TestDropInsAreSettingsAndCanBeToldApart(t *testing.T) {
	for _, f := range Files() {
		if f.Content == "" || !strings.HasPrefix(f.Path, "/etc/") {
			t.Errorf("%+v", f)
		}
		if f.Path != UnitPath && !strings.HasPrefix(f.Content, "# Of Rivulet") {
			t.Errorf("%s does not say whose it is", f.Path)
		}
	}
	for _, want := range []struct{ path, line string }{
		{SysctlPath, "fs.inotify.max_user_instances = 8192"}, {SysctlPath, "net.ipv4.ip_forward = 1"}, {SysctlPath, "kernel.panic = 10"},
		{JournalPath, "SystemMaxUse=128M"}, {WatchdogPath, "RuntimeWatchdogSec=15"},
	} {
		found := false
		for _, f := range Files() {
			found = found || f.Path == want.path && strings.Contains(f.Content, "\n"+want.line+"\n")
		}
		if !found {
			t.Errorf("%s lacks %s", want.path, want.line)
		}
	}
}
