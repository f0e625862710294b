package problems

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"rivulet/appliance/health"
	"rivulet/appliance/state/bolt"
	"rivulet/appliance/state/paths"
	"rivulet/appliance/state/quarantine"
)

// Recovered logs and reports what was recovered at this start; nil is nothing.
func Recovered(t *health.Tracker, r *bolt.Recovered, log *slog.Logger) {
	if r != nil {
		text := fmt.Sprintf("%v: its copy of %s with %d peers is used now", r.Cause, r.Written.UTC().Format(time.RFC3339), r.Peers)
		log.Error("state.db was recovered from its copy", "cause", r.Cause, "written", r.Written, "peers", r.Peers, "set_aside", r.Aside)
		t.Set(health.StateRecovered, text, "look at the disk's health")
	}
}

// SetAside reports files set aside in a state folder for an operator to inspect, from this start or an earlier one.
func SetAside(t *health.Tracker, state string) {
	found := quarantine.List(state, filepath.Dir(paths.Server(state)), paths.Agent(state), paths.Server(state, "db"))
	t.SetIf(len(found) > 0, health.SetAside, strings.Join(found, ", "), "look at the disk's health; delete these when nobody needs them any more")
}
