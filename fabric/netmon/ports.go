package netmon

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Listener names the process that holds a local port, as " by NAME (pid N)", or
// returns "" if it cannot be found. network is tcp or udp.
func Listener(network string, port int) string {
	inodes := map[string]bool{}
	for _, table := range []string{network, network + "6"} {
		f, err := os.Open("/proc/net/" + table)
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
		return ""
	}
	fds, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, fd := range fds {
		if at, err := os.Readlink(fd); err == nil && inodes[at] {
			pid := strings.Split(fd, "/")[2]
			comm, _ := os.ReadFile("/proc/" + pid + "/comm")
			return fmt.Sprintf(" by %s (pid %s)", strings.TrimSpace(string(comm)), pid)
		}
	}
	return ""
}
