package host

import (
	"os"
	"strconv"
	"strings"
)

// limits are kernel settings that a Kubernetes node outgrows. The kubelet,
// containerd and many images watch files; all of root's watchers on the machine
// share one allowance, by default 128, and what comes last does not start
// ("too many open files").
var limits = []struct {
	name string
	want int
}{
	{"fs/inotify/max_user_instances", 8192},
	{"fs/inotify/max_user_watches", 524288},
}

// RaiseLimits raises what is too low and never lowers anything. It returns the
// names of the settings that are too low and could not be changed.
func RaiseLimits() (tooLow []string) { return raiseLimits("/proc/sys") }

func raiseLimits(root string) (tooLow []string) {
	for _, l := range limits {
		path := root + "/" + l.name
		raw, err := os.ReadFile(path)
		if err != nil {
			continue // this kernel has no such setting, so no such limit
		}
		have, err := strconv.Atoi(strings.TrimSpace(string(raw)))
		if err != nil || have >= l.want {
			continue
		}
		if err := os.WriteFile(path, []byte(strconv.Itoa(l.want)), 0o644); err != nil {
			tooLow = append(tooLow, strings.ReplaceAll(l.name, "/", "."))
		}
	}
	return tooLow
}
