package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// inotifyPerDevice is what k3s, containerd and a few pods were seen to take (22), and some more.
const inotifyPerDevice = 26

// inotifyShortage is a word about the limit that several devices on one kernel meet first, or "". All processes of one user share
// fs.inotify.max_user_instances, 128 on many machines; where it is used up, containerd's CRI plugin does not load, the engine says
// "too many open files", and the node never gets ready. The setting is the host's, so the lab leaves it to the host's owner.
func inotifyShortage(devices int) string {
	raw, err := os.ReadFile("/proc/sys/fs/inotify/max_user_instances")
	if err != nil {
		return ""
	}
	limit, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil {
		return ""
	}
	used, want := inotifyInstances(), devices*inotifyPerDevice
	if used+want <= limit {
		return ""
	}
	return fmt.Sprintf("warning: %d devices may need %d inotify instances, and %d of the %d are taken: if a device does not get ready, `sysctl -w fs.inotify.max_user_instances=%d`",
		devices, want, used, limit, max(1024, 2*(used+want)))
}

// inotifyInstances counts those of root's processes, as far as they can be seen.
func inotifyInstances() int {
	n := 0
	dirs, _ := filepath.Glob("/proc/[0-9]*/fd")
	for _, dir := range dirs {
		fds, _ := os.ReadDir(dir)
		for _, fd := range fds {
			if to, err := os.Readlink(filepath.Join(dir, fd.Name())); err == nil && to == "anon_inode:inotify" {
				n++
			}
		}
	}
	return n
}
