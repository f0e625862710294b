package host

import (
	"os"
	"strconv"
	"strings"

	"rivulet/appliance/health"
)

// limits are kernel settings that are too low for a Kubernetes node. The kubelet, containerd and many images watch
// files; all watchers of root share one limit, 128 by default, and the last program does not start ("too many open
// files").
var limits = []struct {
	name string
	want int
}{
	{"fs/inotify/max_user_instances", 8192},
	{"fs/inotify/max_user_watches", 524288},
}

// Limit is a kernel setting that is too low.
type Limit struct {
	Name       string // in the form of sysctl
	Have, Want int
}

// LowLimits returns what is too low below root, /proc/sys.
func LowLimits(root string) (low []Limit) {
	for _, l := range limits {
		raw, err := os.ReadFile(root + "/" + l.name)
		if err != nil {
			continue // this kernel has no such limit
		}
		if have, err := strconv.Atoi(strings.TrimSpace(string(raw))); err == nil && have < l.want {
			low = append(low, Limit{strings.ReplaceAll(l.name, "/", "."), have, l.want})
		}
	}
	return low
}

// RaiseLimits raises settings that are too low, and never lowers any. A failure is a health problem.
func RaiseLimits(t *health.Tracker) {
	tooLow := RaiseLimitsAt("/proc/sys")
	t.SetIf(len(tooLow) > 0, health.Limits, strings.Join(tooLow, ", ")+" cannot be raised from here; containers may fail with \"too many open files\"",
		"sysctl -w fs.inotify.max_user_instances=8192 fs.inotify.max_user_watches=524288")
}

// RaiseLimitsAt raises settings below root. It returns the names of those that are too low and could not be changed.
func RaiseLimitsAt(root string) (tooLow []string) {
	for _, l := range LowLimits(root) {
		path := root + "/" + strings.ReplaceAll(l.Name, ".", "/")
		if err := os.WriteFile(path, []byte(strconv.Itoa(l.Want)), 0o644); err != nil {
			tooLow = append(tooLow, l.Name)
		}
	}
	return tooLow
}
