package host

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// sbin is where a distribution keeps what the engine calls.
var sbin = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// CompletePath adds the usual folders to this process's PATH where they are
// missing: a shell of plain su, or a cron job, comes without those of root.
func CompletePath() { os.Setenv("PATH", completed(os.Getenv("PATH"))) }

func completed(path string) string {
	var dirs []string
	for _, d := range append(filepath.SplitList(path), sbin...) {
		// A relative or empty entry would mean another program in every folder.
		if filepath.IsAbs(d) && !slices.Contains(dirs, d) {
			dirs = append(dirs, d)
		}
	}
	return strings.Join(dirs, string(filepath.ListSeparator))
}

// MissingTools are the programs that the engine calls, that are not in PATH and
// that we do not bring along: see rivulet/appliance/engine/iptables for what we do.
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
