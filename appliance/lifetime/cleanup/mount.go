package cleanup

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Folders of kubelets and container runtimes by convention.
const (
	kubeletDir = "/var/lib/kubelet"
	k3sRun     = "/run/k3s"
	netnsDir   = "/run/netns"
	netnsMark  = "cni-" // prefix of the container runtime's names for pod namespaces
)

// mounts unmounts Rivulet's mounts.
func (c *cleaner) mounts() { c.unmount(c.ourMounts) }

// unmount unmounts what points returns, the last mounted first.
func (c *cleaner) unmount(points func(mountinfo string) []string) {
	n := 0
	// Several mounts at one place take more than one round.
	for range 3 {
		found := points(mountinfo())
		if len(found) == 0 {
			break
		}
		for _, p := range found {
			err := unix.Unmount(p, unix.UMOUNT_NOFOLLOW)
			if err == unix.EBUSY {
				err = unix.Unmount(p, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
			}
			if err == nil {
				n++
			}
		}
	}
	for _, p := range points(mountinfo()) {
		c.left("%s is still mounted; unmount it by hand and run this again", p)
	}
	if n > 0 {
		c.removed("mounts (%d)", n)
	}
}

func mountinfo() string {
	raw, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return ""
	}
	return string(raw)
}

// ourMounts returns Rivulet's mount points, the last mounted first.
func (c *cleaner) ourMounts(info string) (points []string) {
	for line := range strings.Lines(info) {
		f := strings.Fields(line)
		sep := slices.Index(f, "-")
		if sep < 6 || len(f) < sep+2 {
			continue
		}
		point, fstype := unescape(f[4]), f[sep+1]
		switch {
		case strictlyBelow(point, k3sRun) && c.runtime == "", strictlyBelow(point, c.Run):
		case strictlyBelow(point, kubeletDir) && c.foreign == "":
		// A disk mounted in the state folder belongs to the operator.
		case strictlyBelow(point, c.real) && slices.Contains([]string{"overlay", "tmpfs", "nsfs", "proc"}, fstype):
		default:
			continue
		}
		points = append(points, point)
	}
	slices.Reverse(points)
	return points
}

func strictlyBelow(path, folder string) bool { return path != folder && below(path, folder) }

// unescape decodes the kernel's escapes for blanks and the like in a path.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// RemoveAll removes a folder and its content, unless something is mounted there, which would be emptied: it may be a
// disk with data.
func RemoveAll(dir string) error {
	for line := range strings.Lines(mountinfo()) {
		if f := strings.Fields(line); len(f) > 4 && strictlyBelow(unescape(f[4]), dir) {
			return fmt.Errorf("%s is left, because something is mounted at %s; unmount it and run this again", dir, unescape(f[4]))
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		// A mount point cannot be removed, but its content was.
		if left, rerr := os.ReadDir(dir); rerr == nil && len(left) == 0 {
			return nil
		}
		return fmt.Errorf("%w; remove it by hand", err)
	}
	return nil
}
