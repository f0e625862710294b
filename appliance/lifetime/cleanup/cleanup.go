// Package cleanup takes away what a running Rivulet leaves in the machine: processes, mounts, network namespaces,
// links, addresses, rules, cgroups and files outside of the state folder (docs/design/install.md).
//
// It reads /proc, the kernel's network configuration and the state folder; it writes nothing and removes only what
// it can tell to be ours. It may be run on anything, and again after it was cut short. Failure: what cannot be
// removed is reported with a cure, the rest is removed all the same. What makes things ends before the things are
// removed, and no file is removed while something is mounted below it.
package cleanup

import (
	"context"
	"fmt"

	"rivulet/appliance/config/fixed"
)

// Config says what to look for.
type Config struct {
	State, Run string // Rivulet's folders
	// EngineName is argv[0] of the engine.
	EngineName string
}

// Report is what came of it.
type Report struct {
	Removed []string `json:"removed"`
	// Left could not be removed; each ends in "; cure".
	Left []string `json:"left,omitempty"`
}

func (r *Report) removed(format string, args ...any) {
	r.Removed = append(r.Removed, fmt.Sprintf(format, args...))
}

func (r *Report) left(format string, args ...any) {
	r.Left = append(r.Left, fmt.Sprintf(format, args...))
}

// check reports err, if there is one, as something that is left.
func (r *Report) check(err error) {
	if err != nil {
		r.Left = append(r.Left, err.Error())
	}
}

// Run removes everything but the state folder.
func Run(ctx context.Context, cfg Config) Report {
	c := &cleaner{Config: cfg}
	if own, _, err := fixed.Of(cfg.State); err == nil {
		fixed.Use(own)
	}
	c.foreign = otherKubelet()
	c.containers = ourContainers()
	c.processes(ctx)
	c.slices(ctx)
	c.mounts()
	c.namespaces()
	c.links()
	c.rules(ctx)
	c.tables()
	c.cgroups(ctx)
	c.files()
	return c.Report
}

// cleaner is one run.
type cleaner struct {
	Config
	Report
	// foreign is what says that another kubelet is at home here; then what
	// kubelets share is left alone. Empty if there is none.
	foreign string
	// containers are the IDs of our containers, as long as their files are there.
	containers []string
}
