package problems

import (
	"fmt"
	"log/slog"
	"time"

	"rivulet/appliance/health"
	"rivulet/appliance/state/bolt"
)

// Recovered logs and reports what was recovered at this start; nil is nothing.
func Recovered(t *health.Tracker, r *bolt.Recovered, log *slog.Logger) {
	if r != nil {
		text := fmt.Sprintf("%v: its copy of %s with %d peers is used now", r.Cause, r.Written.UTC().Format(time.RFC3339), r.Peers)
		log.Error("state.db was recovered from its copy", "cause", r.Cause, "written", r.Written, "peers", r.Peers, "set_aside", r.Aside)
		t.Set(health.StateRecovered, text, "look at the disk's health")
	}
}
