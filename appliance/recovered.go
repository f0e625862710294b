package appliance

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"rivulet/appliance/health"
	"rivulet/appliance/setaside"
	"rivulet/appliance/store"
)

// tellRecovered logs what was recovered at this start and shows what lies set
// aside, from this start or an earlier one.
func (s *System) tellRecovered(r *store.Recovered) {
	if r != nil {
		text := fmt.Sprintf("%v: its copy of %s with %d peers is used now", r.Cause, r.Written.UTC().Format(time.RFC3339), r.Peers)
		s.cfg.Log.Error("state.db was recovered from its copy", "cause", r.Cause, "written", r.Written, "peers", r.Peers, "set_aside", r.Aside)
		s.health.Set(health.StateRecovered, text, "look at the disk's health")
	}
	s.tellSetAside()
}

// tellSetAside shows what lies set aside for a person to look at.
func (s *System) tellSetAside() {
	state := s.cfg.Dirs.State
	found := setaside.List(state, filepath.Join(state, "k3s", "agent"), filepath.Join(state, "k3s", "server", "db"))
	if len(found) == 0 {
		s.health.Clear(health.SetAside)
		return
	}
	s.health.Set(health.SetAside, strings.Join(found, ", "), "look at the disk's health; delete these when nobody needs them any more")
}
