// Package podmemory reads the memory of this node's pods from their cgroups. It reads files of the kernel in every
// call, of either version of cgroups and either cgroup driver of the kubelet. It writes nothing and has no state. A pod
// that is not on this node, or has ended, has no cgroup: fs.ErrNotExist.
package podmemory

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// Reader reads the cgroups that are mounted at Root, and Meminfo, which is /proc/meminfo.
type Reader struct{ Root, Meminfo string }

// Here reads this machine.
var Here = Reader{"/sys/fs/cgroup", "/proc/meminfo"}

// Query is about pods of a node: what they hold, or what is charged to them, which is cheaper.
type Query struct {
	Pods []types.UID `json:"pods"`
	Held bool        `json:"held,omitempty"`
}

// Usage are amounts in bytes.
type Usage struct {
	// Pods are those that are here.
	Pods map[types.UID]int64 `json:"pods"`
	// Machine is the machine's memory, Available what is available of it; zero if the kernel does not report it.
	Machine   int64 `json:"machine,omitempty"`
	Available int64 `json:"available,omitempty"`
}

// Read answers q.
func (r Reader) Read(q Query) Usage {
	u := Usage{Pods: map[types.UID]int64{}}
	read := r.Charged
	if q.Held {
		read = r.Held
	}
	for _, uid := range q.Pods {
		if n, err := read(uid); err == nil {
			u.Pods[uid] = n
		}
	}
	machine, ok := r.meminfo("MemTotal:")
	if available, known := r.Available(); ok && known {
		u.Machine, u.Available = machine, available
	}
	return u
}

// Available is the machine's available memory in bytes, cached files included; false if the kernel does not report it.
func (r Reader) Available() (int64, bool) { return r.meminfo("MemAvailable:") }

func (r Reader) meminfo(line string) (int64, bool) {
	raw, err := os.ReadFile(r.Meminfo)
	if err != nil {
		return 0, false
	}
	_, rest, found := strings.Cut(string(raw), line)
	if f := strings.Fields(rest); found && len(f) > 0 {
		kB, err := strconv.ParseInt(f[0], 10, 64)
		return kB << 10, err == nil
	}
	return 0, false
}

// Charged is what the kernel accounts to a pod, in bytes: its memory and the files that are cached for it.
func (r Reader) Charged(pod types.UID) (int64, error) {
	charged, _, err := r.charged(pod)
	return charged, err
}

// Held is the memory in bytes that others cannot get while the pod has it: Charged without cached files, which the
// kernel drops under pressure. Files in memory (tmpfs) are included.
func (r Reader) Held(pod types.UID) (int64, error) {
	charged, dir, err := r.charged(pod)
	if err != nil {
		return 0, err
	}
	raw, err := os.ReadFile(filepath.Join(dir, "memory.stat"))
	if err != nil {
		return 0, fmt.Errorf("memory of pod %s: %w", pod, err)
	}
	stat := map[string]int64{}
	for line := range strings.Lines(string(raw)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			stat[name], _ = strconv.ParseInt(value, 10, 64)
		}
	}
	cached := stat["total_active_file"] + stat["total_inactive_file"] // of version 1, with all cgroups below
	if _, v1 := stat["total_active_file"]; !v1 {
		cached = stat["active_file"] + stat["inactive_file"] + stat["slab_reclaimable"]
	}
	return max(charged-cached, 0), nil
}

func (r Reader) charged(pod types.UID) (bytes int64, dir string, err error) {
	for _, dir := range r.folders(pod) {
		for _, file := range []string{"memory.current", "memory.usage_in_bytes"} {
			raw, err := os.ReadFile(filepath.Join(dir, file))
			if err != nil {
				continue
			}
			n, err := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
			if err != nil {
				return 0, "", fmt.Errorf("memory of pod %s: %w", pod, err)
			}
			return n, dir, nil
		}
	}
	return 0, "", fmt.Errorf("memory of pod %s: %w", pod, fs.ErrNotExist)
}

// folders are the possible locations of the pod's cgroup: by its class, the driver (plain folders, or slices of
// systemd) and the version.
func (r Reader) folders(pod types.UID) (out []string) {
	slice := strings.ReplaceAll(string(pod), "-", "_")
	for _, root := range []string{r.Root, filepath.Join(r.Root, "memory")} {
		for _, class := range []string{"burstable", "besteffort"} {
			out = append(out, filepath.Join(root, "kubepods", class, "pod"+string(pod)),
				filepath.Join(root, "kubepods.slice", "kubepods-"+class+".slice", "kubepods-"+class+"-pod"+slice+".slice"))
		}
		out = append(out, filepath.Join(root, "kubepods", "pod"+string(pod)), filepath.Join(root, "kubepods.slice", "kubepods-pod"+slice+".slice"))
	}
	return out
}
