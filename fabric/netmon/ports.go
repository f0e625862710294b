package netmon

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Listener names the process that holds a local port, as " by NAME (pid N)", or returns "" if it is not found. Network
// is tcp or udp.
func Listener(network string, port int) string {
	if name, pid, _ := Holder("/proc", network, port); pid != 0 {
		return fmt.Sprintf(" by %s (pid %d)", name, pid)
	}
	return ""
}

// Holder is the process that holds a local port, by the files of proc, a /proc. Used is true with pid 0 if that process
// is not visible.
func Holder(proc, network string, port int) (name string, pid int, used bool) {
	inodes := map[string]bool{}
	for _, table := range []string{network, network + "6"} {
		f, err := os.Open(proc + "/net/" + table)
		if err != nil {
			continue
		}
		suffix := fmt.Sprintf(":%04X", port)
		for s := bufio.NewScanner(f); s.Scan(); {
			// sl local_address rem_address st ... uid timeout inode; st 0A is LISTEN.
			c := strings.Fields(s.Text())
			if len(c) > 9 && strings.HasSuffix(c[1], suffix) && (network == "udp" || c[3] == "0A") {
				inodes["socket:["+c[9]+"]"] = true
			}
		}
		f.Close()
	}
	if len(inodes) == 0 {
		return "", 0, false
	}
	fds, _ := filepath.Glob(proc + "/[0-9]*/fd/*")
	for _, fd := range fds {
		if at, err := os.Readlink(fd); err == nil && inodes[at] {
			dir := filepath.Dir(filepath.Dir(fd))
			if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil {
				comm, _ := os.ReadFile(dir + "/comm")
				return strings.TrimSpace(string(comm)), pid, true
			}
		}
	}
	return "", 0, true
}
