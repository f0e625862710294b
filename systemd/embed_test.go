package systemd

import (
	"strings"
	"testing"
)

// What the appliance relies on: pods outlive the supervisor, cgroups are ours to
// divide, and an error that starting again cannot cure is no loop.
func TestUnitKeepsItsPromises(t *testing.T) {
	for _, line := range []string{"KillMode=process", "Delegate=yes", "Restart=always", "RestartPreventExitStatus=2 78", "ExecStart=/usr/local/bin/rivulet run"} {
		if !strings.Contains(Unit, "\n"+line+"\n") {
			t.Errorf("the unit lacks %s", line)
		}
	}
}
