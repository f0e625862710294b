package host

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// sbin are the folders in which distributions install the engine's tools.
var sbin = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// CompletePath adds missing usual folders to this process's PATH: a shell of plain su, or a cron job, lacks those of
// root.
func CompletePath() { os.Setenv("PATH", completed(os.Getenv("PATH"))) }

func completed(path string) string {
	var dirs []string
	for _, d := range append(filepath.SplitList(path), sbin...) {
		// A relative or empty entry would select another program in each folder.
		if filepath.IsAbs(d) && !slices.Contains(dirs, d) {
			dirs = append(dirs, d)
		}
	}
	return strings.Join(dirs, string(filepath.ListSeparator))
}

// MissingTools are the engine's tools that are neither in PATH nor bundled: see rivulet/appliance/engine/iptables for
// the bundled ones.
func MissingTools() (missing []string) {
	for _, tool := range []string{"mount", "umount"} {
		if _, err := exec.LookPath(tool); err != nil {
			missing = append(missing, tool)
		}
	}
	return missing
}

// Opener returns a process other than this one that has the file open.
func Opener(path string) (pid int, ok bool) {
	want, err := os.Stat(path)
	if err != nil {
		return 0, false
	}
	fds, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err != nil || filepath.Base(to) != filepath.Base(path) {
			continue
		}
		has, err := os.Stat(fd)
		if err != nil || !os.SameFile(want, has) {
			continue
		}
		if n, err := strconv.Atoi(strings.Split(fd, "/")[2]); err == nil && n != os.Getpid() {
			return n, true
		}
	}
	return 0, false
}
