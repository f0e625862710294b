package cleanup

import (
	"context"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"rivulet/fabric/changes"
)

const cgroupRoot = "/sys/fs/cgroup"

// podCgroups are the kubelet's names for the group of all pods, with either driver, and that of virtual clusters.
var podCgroups = []string{"kubepods", "kubepods.slice", "rivulet-vclusters"}

// podProcess returns a process in the kubelet's cgroups below root that is in none of Rivulet's containers: it is of
// another Kubernetes. "" without one.
func (c *cleaner) podProcess(root string) (who string) {
	ours := c.containers
	if c.runtime != "" {
		ours = nil // these may be the other's
	}
	for _, name := range podCgroups[:2] {
		v1, _ := filepath.Glob(filepath.Join(root, "*", name))
		for _, top := range append(v1, filepath.Join(root, name)) {
			_ = filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
				if err != nil || d.Name() != "cgroup.procs" || slices.ContainsFunc(ours, func(id string) bool { return strings.Contains(path, id) }) {
					return nil // cgroups disappear
				}
				raw, _ := os.ReadFile(path)
				for pid := range strings.FieldsSeq(string(raw)) {
					if n, err := strconv.Atoi(pid); err == nil {
						if _, alive := parentOf(filepath.Join("/proc", strconv.Itoa(n))); alive {
							who = "pid " + pid
							return filepath.SkipAll
						}
					}
				}
				return nil
			})
		}
	}
	return who
}

// slices removes systemd's slices and scopes of pods.
func (c *cleaner) slices(ctx context.Context) {
	if c.foreign != "" {
		return
	}
	if who := c.podProcess(cgroupRoot); who != "" {
		c.kept("kubepods.slice: there are processes of another Kubernetes in it (%s)", who)
		return
	}
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		return
	}
	if exec.CommandContext(ctx, "systemctl", "is-active", "--quiet", "kubepods.slice").Run() != nil {
		return
	}
	if err := exec.CommandContext(ctx, "systemctl", "stop", "kubepods.slice").Run(); err != nil {
		c.left("kubepods.slice: %v; systemctl stop kubepods.slice", err)
		return
	}
	c.removed("kubepods.slice")
}

// cgroups removes the cgroups of pods in every hierarchy.
func (c *cleaner) cgroups(ctx context.Context) {
	if c.foreign != "" || c.podProcess(cgroupRoot) != "" {
		return
	}
	n := 0
	for _, name := range podCgroups {
		v2 := filepath.Join(cgroupRoot, name)
		v1, _ := filepath.Glob(filepath.Join(cgroupRoot, "*", name))
		for _, dir := range append(v1, v2) {
			if _, err := os.Stat(dir); err != nil {
				continue
			}
			if !removeCgroup(ctx, dir) {
				c.left("cgroup %s has processes; end those in its cgroup.procs and run this again", dir)
				continue
			}
			n++
		}
	}
	if n > 0 {
		c.removed("cgroups of pods (%d)", n)
	}
}

// removeCgroup removes a cgroup and its children; it retries, because ended processes may still be counted for a
// moment.
func removeCgroup(ctx context.Context, dir string) bool {
	ctx, cancel := context.WithTimeout(ctx, killGrace)
	defer cancel()
	for {
		var dirs []string
		_ = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, p)
			}
			return nil
		})
		slices.Reverse(dirs)
		for _, d := range dirs {
			_ = os.Remove(d) // checked below
		}
		if _, err := os.Stat(dir); err != nil {
			return true
		}
		if !changes.Wait(ctx, 50*time.Millisecond) {
			return false
		}
	}
}
