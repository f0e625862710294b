package cleanup

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"rivulet/appliance/machine/neighbour"
	"rivulet/appliance/state/paths"
)

// otherKubelet returns evidence that this machine is a node of another Kubernetes: one that runs, or one that is
// installed in a usual way; "" if there is none.
func otherKubelet(run string) string {
	for _, f := range neighbour.Find("/proc", run) {
		return f.String()
	}
	for _, path := range []string{"/etc/kubernetes/kubelet.conf", "/var/lib/rancher/k3s/agent/kubelet.kubeconfig", "/var/lib/rancher/rke2/agent/kubelet.kubeconfig",
		"/var/lib/k0s/kubelet.conf", "/var/lib/microshift/resources", "/var/snap/microk8s/current"} {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return ""
}

// runtimeInUse returns evidence that another containerd uses k3sRun, as those of k3s and RKE2 do: a shim of its containers
// works in that folder, or it answers there. Rivulet's own have ended.
func runtimeInUse() string {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		if cwd, err := os.Readlink(filepath.Join(dir, "cwd")); err == nil && below(cwd, k3sRun) && sameMounts(dir) {
			if comm, _ := os.ReadFile(filepath.Join(dir, "comm")); strings.HasPrefix(string(comm), "containerd-shim") {
				return "containerd-shim (pid " + filepath.Base(dir) + ")"
			}
		}
	}
	socket := filepath.Join(k3sRun, "containerd/containerd.sock")
	if conn, err := net.DialTimeout("unix", socket, time.Second); err == nil {
		conn.Close()
		return socket
	}
	return ""
}

const (
	taskDir = k3sRun + "/containerd/io.containerd.runtime.v2.task/k8s.io"
	// cniDir has the state of network plugins, podNetwork is the name of k3s's network there, and of ours.
	cniDir     = "/var/lib/cni"
	podNetwork = "cbr0"
	// runcDir is in the container runtime's run folder, shared with a docker or containerd of the host.
	runcDir = "/run/containerd/runc/k8s.io"
)

// ourContainers are the IDs of the containers with files of Rivulet's containerd.
func ourContainers() (ids []string) {
	entries, _ := os.ReadDir(taskDir)
	for _, e := range entries {
		ids = append(ids, e.Name())
	}
	return ids
}

// files removes files outside of the state folder.
func (c *cleaner) files() {
	n := 0
	remove := func(path string) {
		if _, err := os.Lstat(path); err != nil {
			return
		}
		if err := RemoveAll(path); err != nil {
			c.check(err)
			return
		}
		n++
	}
	remove(c.Run)
	if c.runtime == "" {
		remove(k3sRun)
		for _, id := range c.containers {
			remove(filepath.Join(runcDir, id))
		}
	} else {
		c.kept("%s: the containerd of another Kubernetes uses it (%s)", k3sRun, c.runtime)
	}
	if c.foreign == "" {
		remove("/run/flannel")
		remove(kubeletDir)
		remove("/var/log/pods")
		remove("/var/log/containers")
	} else {
		c.kept("%s, pods' logs and chains of the firewall: another Kubernetes is here (%s); they go with that one", kubeletDir, c.foreign)
	}
	// Leases and results of our network and of the CRI's loopback; Podman and nerdctl have theirs beside them.
	for _, pattern := range []string{"networks/" + podNetwork, "results/" + podNetwork + "-*", "results/cni-loopback-*", "flannel/*"} {
		paths, _ := filepath.Glob(filepath.Join(cniDir, pattern))
		for _, path := range paths {
			if c.foreign == "" {
				remove(path)
			}
		}
	}
	for _, pattern := range []string{"/run/containerd/s/*", "/run/nri/nri.sock"} {
		sockets, _ := filepath.Glob(pattern)
		for _, s := range sockets {
			if nobodyListens(s) {
				remove(s)
			}
		}
	}
	for link, into := range map[string]string{"/etc/rancher/node": c.State, "/etc/rancher/k3s/k3s.yaml": c.State} {
		if to, err := os.Readlink(link); err == nil && below(to, into) {
			remove(link)
		}
	}
	// Folders that others may use are removed if they are empty.
	for _, dir := range []string{cniDir + "/networks", cniDir + "/results", cniDir + "/flannel", cniDir, runcDir, filepath.Dir(runcDir), "/run/containerd/s", "/run/containerd", "/run/nri", netnsDir, "/var" + netnsDir,
		"/etc/rancher/k3s", "/etc/rancher", "/etc/cni/net.d", "/etc/cni", paths.Config, "/opt/cni/bin", "/opt/cni"} {
		if os.Remove(dir) == nil {
			n++
		}
	}
	if n > 0 {
		c.removed("files outside of %s (%d)", c.State, n)
	}
}

// nobodyListens reports whether a socket is left from an ended program.
func nobodyListens(path string) bool {
	fi, err := os.Lstat(path)
	if err != nil || fi.Mode()&fs.ModeSocket == 0 {
		return false
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		conn.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}
