package cleanup

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestOurMountsTheDeepestFirst(t *testing.T) {
	info := strings.Join([]string{
		"20 1 8:1 / / rw - ext4 /dev/sda1 rw",
		"21 20 8:2 / /var/lib/rivulet rw - ext4 /dev/sdb1 rw", // a disk of its own for the state
		"22 21 8:3 / /var/lib/rivulet/storage rw - ext4 /dev/sdc1 rw",
		"23 20 0:40 / /run/k3s/containerd/x/rootfs rw shared:7 - overlay overlay rw",
		"24 20 0:41 / /var/lib/kubelet rw - ext4 /dev/sdd1 rw",
		`25 24 0:42 / /var/lib/kubelet/pods/1/volumes/a\040b rw - tmpfs tmpfs rw`,
		"26 25 0:43 / /var/lib/kubelet/pods/1/volumes/a\\040b/deeper rw - nfs server:/x rw",
		"27 20 0:44 / /run/k3sother rw - tmpfs tmpfs rw",
		"28 20 0:4 net:[4026532] /run/netns/mine rw - nsfs nsfs rw",
		"29 20 0:45 / /var/lib/rivulet/k3s/agent/tmp rw - tmpfs tmpfs rw",
	}, "\n") + "\n"
	c := newCleaner(Config{State: "/var/lib/rivulet", Run: "/run/rivulet"})
	want := []string{"/var/lib/rivulet/k3s/agent/tmp", "/var/lib/kubelet/pods/1/volumes/a b/deeper", "/var/lib/kubelet/pods/1/volumes/a b", "/run/k3s/containerd/x/rootfs"}
	if got := c.ourMounts(info); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	c.foreign = "/etc/kubernetes/kubelet.conf"
	if got := c.ourMounts(info); slices.ContainsFunc(got, func(p string) bool { return strings.HasPrefix(p, kubeletDir) }) {
		t.Errorf("another kubelet's: %q", got)
	}
}

// A disk that is mounted in a folder is never emptied with it.
func TestRemoveAllStopsAtAMount(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount")
	}
	dir := filepath.Join(t.TempDir(), "state")
	disk := filepath.Join(dir, "a", "disk")
	if err := os.MkdirAll(disk, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, ""); err != nil {
		t.Skipf("needs to mount a tmpfs: %v", err)
	}
	defer unix.Unmount(disk, unix.MNT_DETACH)
	precious := filepath.Join(disk, "thesis.tex")
	if err := os.WriteFile(precious, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := RemoveAll(dir); err == nil || !strings.Contains(err.Error(), "; unmount it") {
		t.Errorf("%v, want a refusal with a cure", err)
	}
	if _, err := os.Stat(precious); err != nil {
		t.Fatal(err)
	}
	if err := unix.Unmount(disk, 0); err != nil {
		t.Fatal(err)
	}
	if err := RemoveAll(dir); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("the folder is still there")
	}
	if err := RemoveAll(dir); err != nil {
		t.Errorf("again: %v", err)
	}
}
