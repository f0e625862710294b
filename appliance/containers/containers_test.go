package containers

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestOnlyPodsAndTheirShims(t *testing.T) {
	proc := t.TempDir()
	for pid, p := range map[string]struct{ cmdline, cgroup string }{
		"10": {"/x/containerd-shim-runc-v2\x00-namespace\x00k8s.io\x00-address\x00/run/k3s/containerd/containerd.sock\x00", "0::/system.slice/rivulet.service\n"},
		"11": {"/x/containerd-shim-runc-v2\x00-address\x00/run/containerd/containerd.sock\x00", "0::/system.slice/docker.service\n"},
		"12": {"sleep\x001000\x00", "0::/kubepods.slice/kubepods-burstable.slice/x.scope\n"},
		"13": {"sleep\x00", "11:memory:/kubepods/burstable/podx/y\n1:name=systemd:/\n"},
		"14": {"vim\x00/run/k3s/containerd/containerd.sock\x00", "0::/user.slice/my-kubepods\n"},
		"15": {"", "0::/\n"}, "self": {"", "0::/kubepods\n"},
	} {
		dir := filepath.Join(proc, pid)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, content := range map[string]string{"cmdline": p.cmdline, "cgroup": p.cgroup} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	got := processes(proc)
	slices.Sort(got)
	if !slices.Equal(got, []int{10, 12, 13}) {
		t.Errorf("%v", got)
	}
}

func TestMountPointsAreUnescaped(t *testing.T) {
	if got := unescape(`/run/a\040b\134c`); got != `/run/a b\c` {
		t.Errorf("%q", got)
	}
}
