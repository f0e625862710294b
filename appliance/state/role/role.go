// Package role names the files that decide what a device is in its cluster, as one set: a restore, an undone upgrade, a
// reset and a change of the server replace all of them. It reads what everybody has to know of them; their content is
// lifetime/nodes' and nodes/standby's, which alone write them.
package role

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"

	"rivulet/appliance/state/bolt"
	"rivulet/appliance/state/paths"
)

// Files are the files of a state folder that decide what the device is; a cluster in a file of its only server has none
// of them. Who replaces the state of a device sets aside or removes each one that the new state does not have. The
// identity that belongs to them is in paths.Store.
func Files(state string) []string {
	return []string{
		paths.Worker(state), paths.Standby(state), paths.Gateway(state), paths.SQLCluster(state),
		paths.DeviceStore(state), bolt.CopyOf(paths.DeviceStore(state)),
	}
}

// Role is what a device is.
type Role struct {
	// Worker: a node of another device's cluster, which a standby is, too. It has no datastore.
	Worker bool
	// Step is what is left of a change of the role, which the next start of rivulet does; empty is nothing.
	Step string
}

func (r Role) String() string {
	if r.Worker {
		return "a node of another device's cluster"
	}
	return "the server of its cluster"
}

// Of reads the role of a device. A file that cannot be read has no step.
func Of(state string) Role {
	var r Role
	for _, file := range []string{paths.Worker(state), paths.Gateway(state)} {
		raw, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		r.Worker = r.Worker || file == paths.Worker(state)
		var left struct{ Step string }
		if err == nil && json.Unmarshal(raw, &left) == nil && left.Step != "" {
			r.Step = left.Step
		}
	}
	return r
}

// Stuck reports whether the step that is left can never be done, because what it needs is gone: a standby that becomes the
// server (lead) needs paths.Standby; a server that becomes a worker again (follow) has it from paths.DeviceStore's change on.
func Stuck(state string) bool {
	missing := func(path string) bool {
		_, err := os.Lstat(path)
		return errors.Is(err, fs.ErrNotExist)
	}
	step := Of(state).Step
	return missing(paths.Standby(state)) && (step == "lead" || step == "follow" && missing(paths.DeviceStore(state)))
}
