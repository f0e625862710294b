package neighbour

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// process is one of a faked /proc.
type process struct {
	comm, exe, path string
	net, mnt        string // namespaces; empty is the machine's
	listens         int    // TCP port
}

func fake(t *testing.T, all map[int]process) string {
	t.Helper()
	proc := t.TempDir()
	must := func(errs ...error) {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	table := "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	add := func(dir string, p process) {
		must(os.MkdirAll(filepath.Join(dir, "ns"), 0o755), os.MkdirAll(filepath.Join(dir, "fd"), 0o755),
			os.WriteFile(filepath.Join(dir, "comm"), []byte(p.comm+"\n"), 0o644), os.WriteFile(filepath.Join(dir, "environ"), []byte("A=b\x00PATH="+p.path+"\x00"), 0o644),
			os.Symlink(p.exe, filepath.Join(dir, "exe")), os.Symlink("net:["+p.net+"]", filepath.Join(dir, "ns/net")), os.Symlink("mnt:["+p.mnt+"]", filepath.Join(dir, "ns/mnt")))
		if p.listens != 0 {
			must(os.Symlink(fmt.Sprintf("socket:[9%d]", p.listens), filepath.Join(dir, "fd", "3")))
			table += fmt.Sprintf("   0: 00000000:%04X 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 9%d 1\n", p.listens, p.listens)
		}
	}
	add(filepath.Join(proc, "self"), process{comm: "rivulet", exe: "/usr/local/bin/rivulet"})
	for pid, p := range all {
		add(filepath.Join(proc, fmt.Sprint(pid)), p)
	}
	must(os.MkdirAll(filepath.Join(proc, "net"), 0o755), os.WriteFile(filepath.Join(proc, "net/tcp"), []byte(table), 0o644))
	return proc
}

// Whose a program is, and how it is known.
func TestWhoseKubernetes(t *testing.T) {
	bundle := "/run/rivulet/bin:/usr/bin"
	for what, c := range map[string]struct {
		process
		want string // empty: no other Kubernetes
	}{
		"k3s":                            {process{comm: "k3s-server", exe: "/usr/local/bin/k3s"}, "k3s-server (pid 7)"},
		"k3s, a worker":                  {process{comm: "k3s-agent", exe: "/usr/local/bin/k3s"}, "k3s-agent (pid 7)"},
		"RKE2":                           {process{comm: "rke2", exe: "/usr/local/bin/rke2"}, "rke2 (pid 7)"},
		"RKE2's kubelet":                 {process{comm: "kubelet", exe: "/var/lib/rancher/rke2/data/v1/bin/kubelet"}, "kubelet (pid 7)"},
		"k0s":                            {process{comm: "k0s", exe: "/usr/local/bin/k0s"}, "k0s (pid 7)"},
		"MicroShift":                     {process{comm: "microshift", exe: "/usr/bin/microshift"}, "microshift (pid 7)"},
		"MicroK8s, a snap":               {process{comm: "kubelite", exe: "/snap/microk8s/1/kubelite", mnt: "2"}, "kubelite (pid 7)"},
		"kubeadm":                        {process{comm: "kubelet", exe: "/usr/bin/kubelet", listens: 10250}, "kubelet (pid 7)"},
		"a kubelet of another name":      {process{comm: "hyper", exe: "/opt/hyper", listens: 10250}, "hyper (pid 7) with port 10250/tcp"},
		"what leads to an API server":    {process{comm: "haproxy", exe: "/usr/sbin/haproxy", listens: 6443}, ""},
		"kind":                           {process{comm: "kubelet", exe: "/usr/bin/kubelet", net: "2", mnt: "2"}, ""},
		"a pod in the machine's network": {process{comm: "k3s", exe: "/bin/k3s", mnt: "2"}, ""},
		"our engine":                     {process{comm: "exe", exe: "/usr/local/bin/rivulet (deleted)", path: bundle, listens: 6443}, ""},
		"our engine, with k3s's title":   {process{comm: "k3s-server", exe: "/opt/bin/engine", path: bundle, listens: 10250}, ""},
		"a virtual cluster of ours":      {process{comm: "k3s", exe: "/var/lib/rivulet/versions/2/rivulet"}, ""},
		"somebody's program":             {process{comm: "nginx", exe: "/usr/sbin/nginx", listens: 8080}, ""},
	} {
		var got []string
		for _, f := range Find(fake(t, map[int]process{7: c.process}), "/run/rivulet") {
			got = append(got, f.String())
		}
		if strings.Join(got, ", ") != c.want {
			t.Errorf("%s: found %q, want %q", what, got, c.want)
		}
	}
	if f := Find(fake(t, nil), "/run/rivulet"); len(f) > 0 {
		t.Errorf("on an empty machine: %v", f)
	}
}
