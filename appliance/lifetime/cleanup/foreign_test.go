package cleanup

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/vishvananda/netns"
)

// What another Kubernetes of the machine may have in common with Rivulet stays: whose it is, what it is, and by what it
// is known. Chains of the firewall are in TestPublishedPortsOfOthersStay, programs in package neighbour.
func TestWhatIsOfAnotherKubernetesStays(t *testing.T) {
	const info = "23 20 0:40 / /run/k3s/containerd/x/rootfs rw - overlay overlay rw\n25 20 0:42 / /var/lib/kubelet/pods/1/volumes/a rw - tmpfs tmpfs rw\n" +
		"26 20 0:43 / /var/lib/rivulet/k3s/agent/tmp rw - tmpfs tmpfs rw\n"
	rootfs, volume, own := "/run/k3s/containerd/x/rootfs", "/var/lib/kubelet/pods/1/volumes/a", "/var/lib/rivulet/k3s/agent/tmp"
	id := strings.Repeat("5e", 32)
	alive := strconv.Itoa(os.Getpid())
	for _, c := range []struct {
		whose            string
		foreign, runtime string // the evidence
		cgroup           string // of a process that lives
		mounts           []string
		pods             bool // kubepods.slice stays
	}{
		{whose: "nobody else's", mounts: []string{own, volume, rootfs}},
		{whose: "k3s, RKE2: a containerd in /run/k3s", foreign: "k3s-server (pid 7)", runtime: "/run/k3s/containerd/containerd.sock", mounts: []string{own}, cgroup: "kubepods.slice/cri-containerd-" + id + ".scope", pods: true},
		{whose: "k0s, kubeadm: a kubelet", foreign: "kubelet (pid 7)", mounts: []string{own, rootfs}, cgroup: "kubepods/burstable/pod1/7f", pods: true},
		{whose: "one that nobody knows: a process in kubepods", cgroup: "kubepods.slice/kubepods-besteffort.slice/crio-7f.scope", mounts: []string{own, volume, rootfs}, pods: true},
		{whose: "ours that does not end", cgroup: "kubepods.slice/cri-containerd-" + id + ".scope", mounts: []string{own, volume, rootfs}},
		{whose: "of another group", cgroup: "system.slice/docker-7f.scope", mounts: []string{own, volume, rootfs}},
	} {
		root := t.TempDir()
		if c.cgroup != "" {
			dir := filepath.Join(root, c.cgroup)
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("4194303\n"+alive+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		cl := &cleaner{Config: Config{State: "/var/lib/rivulet", Run: "/run/rivulet"}, real: "/var/lib/rivulet", foreign: c.foreign, runtime: c.runtime, containers: []string{id}}
		if got := cl.ourMounts(info); !slices.Equal(got, c.mounts) {
			t.Errorf("%s: %q would be unmounted, want %q", c.whose, got, c.mounts)
		}
		if got := cl.podProcess(root) != ""; got != c.pods {
			t.Errorf("%s: kubepods stays: %v, want %v", c.whose, got, c.pods)
		}
	}
}

// The bridge of a k3s has our name and our addresses: while it has pods and another Kubernetes is here, it stays.
func TestABridgeWithPodsOfAnotherKubernetesStays(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root for a network namespace")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("needs ip: make deps")
	}
	runtime.LockOSThread()
	ns, err := netns.New()
	if err != nil {
		t.Skipf("needs a network namespace: %v", err)
	}
	defer ns.Close()
	sh(t, "ip link add cni0 type bridge; ip addr add 10.42.0.1/24 dev cni0; ip link add veth1 type veth peer name veth1p; ip link set veth1 master cni0")
	c := &cleaner{foreign: "k3s-server (pid 7)"}
	c.links()
	if out := sh(t, "ip -o link"); !strings.Contains(out, "cni0") || !strings.Contains(out, "veth1") || len(c.Removed) > 0 || len(c.Left) > 0 || len(c.Kept) != 1 {
		t.Errorf("%+v; there are:\n%s", c.Report, out)
	}
	sh(t, "ip link delete veth1")
	if c.links(); !slices.Contains(c.Removed, "interface cni0") {
		t.Errorf("without pods: %+v", c.Report)
	}
}
