package cleanup

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"rivulet/appliance/state/paths"
)

// otherKubelet returns evidence that this machine is a node of another Kubernetes, installed in a usual way; "" if
// there is none.
func otherKubelet() string {
	for _, path := range []string{"/etc/kubernetes/kubelet.conf", "/var/lib/rancher/k3s/agent/kubelet.kubeconfig", "/var/snap/microk8s/current"} {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return ""
}

const (
	taskDir = k3sRun + "/containerd/io.containerd.runtime.v2.task/k8s.io"
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
	remove(k3sRun)
	remove("/run/flannel")
	if c.foreign == "" {
		remove(kubeletDir)
		remove("/var/log/pods")
		remove("/var/log/containers")
		remove("/var/lib/cni")
	} else {
		c.left("%s, pods' logs and chains of the firewall are left: another Kubernetes is installed here (%s); remove them with that one",
			kubeletDir, c.foreign)
	}
	for _, id := range c.containers {
		remove(filepath.Join(runcDir, id))
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
	for _, dir := range []string{runcDir, filepath.Dir(runcDir), "/run/containerd/s", "/run/containerd", "/run/nri", netnsDir, "/var" + netnsDir,
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
