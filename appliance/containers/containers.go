// Package containers ends what the engine's containerd runs on this machine when
// containerd itself cannot: its database is damaged, or it is to be removed. It
// reads /proc and the mounts and writes nothing of its own. It may be called when
// there is nothing to end, and again.
package containers

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Where containerd and the CNI plugins keep what a pod needs while it runs.
const (
	runtimeDir = "/run/k3s/containerd"
	netnsDir   = "/run/netns"
	leasesDir  = "/var/lib/cni/networks"
	shimName   = "containerd-shim-runc-v2"
)

// patience is how long killed processes may take to go.
const patience = 10 * time.Second

// End kills every process of every pod and its shim, and removes their mounts,
// network namespaces and addresses. No containerd may run.
func End(ctx context.Context) error {
	if err := kill(ctx); err != nil {
		return err
	}
	var errs []error
	namespaces, _ := filepath.Glob(filepath.Join(netnsDir, "cni-*"))
	for _, ns := range namespaces {
		// With the namespace go its interfaces, and so the other ends of its cables.
		if err := unix.Unmount(ns, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			errs = append(errs, fmt.Errorf("containers: %s: %w", ns, err))
		}
		errs = append(errs, os.Remove(ns))
	}
	errs = append(errs, unmountBelow(runtimeDir), os.RemoveAll(runtimeDir), os.RemoveAll(leasesDir))
	return errors.Join(errs...)
}

// kill ends the processes and waits until they are gone.
func kill(ctx context.Context) error {
	deadline := time.Now().Add(patience)
	for {
		left := processes("/proc")
		if len(left) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("containers: processes %v of pods do not end; restart the machine", left)
		}
		for _, pid := range left {
			unix.Kill(pid, unix.SIGKILL)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// processes returns the PIDs of pods' processes and of shims.
func processes(proc string) (pids []int) {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		dir := filepath.Join(proc, e.Name())
		if isShim(dir) || inPod(dir) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func isShim(dir string) bool {
	raw, err := os.ReadFile(filepath.Join(dir, "cmdline"))
	if err != nil {
		return false
	}
	args := strings.Split(string(raw), "\x00")
	// Of this containerd, not of another one on the machine.
	return filepath.Base(args[0]) == shimName && slices.Contains(args, runtimeDir+"/containerd.sock")
}

// inPod reports whether a process is in a pod's cgroup: kubepods with the kubelet's
// own driver, kubepods.slice with systemd's.
func inPod(dir string) bool {
	raw, err := os.ReadFile(filepath.Join(dir, "cgroup"))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(raw)) {
		for part := range strings.SplitSeq(strings.TrimSpace(line), "/") {
			if part == "kubepods" || part == "kubepods.slice" {
				return true
			}
		}
	}
	return false
}

// unmountBelow unmounts everything below a folder, the last mounted first.
func unmountBelow(dir string) error {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("containers: %w", err)
	}
	defer f.Close()
	var points []string
	for s := bufio.NewScanner(f); s.Scan(); {
		if fields := strings.Fields(s.Text()); len(fields) > 4 && strings.HasPrefix(fields[4], dir+"/") {
			points = append(points, unescape(fields[4]))
		}
	}
	var errs []error
	for _, p := range slices.Backward(points) {
		if err := unix.Unmount(p, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			errs = append(errs, fmt.Errorf("containers: unmount %s: %w", p, err))
		}
	}
	return errors.Join(errs...)
}

// unescape undoes the kernel's octal escapes in mountinfo.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}
