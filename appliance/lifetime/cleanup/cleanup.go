// Package cleanup removes what a running Rivulet leaves on the machine: processes, mounts, network namespaces, links,
// addresses, rules, cgroups and files outside of the state folder (docs/design/install.md).
//
// It reads /proc, the kernel's network configuration and the state folder; it writes nothing and removes only what it
// identifies as Rivulet's. It may be run on any machine, and again after an interruption. Failure: what cannot be
// removed is reported with a cure, the rest is removed. Processes end before the things that they create are removed,
// and no file is removed while something is mounted below it.
package cleanup

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"

	"rivulet/appliance/config/fixed"
)

// Config is the input of Run.
type Config struct {
	State, Run string // Rivulet's folders
	// EngineName is argv[0] of the engine.
	EngineName string
}

// Report is the result of Run.
type Report struct {
	Removed []string `json:"removed"`
	// Left could not be removed; each ends in "; cure".
	Left []string `json:"left,omitempty"`
	// Kept belongs, or may belong, to another program of this machine; that is no failure.
	Kept []string `json:"kept,omitempty"`
	// Running is the PID of a supervisor that something started during the cleanup, which then ended there: it uses
	// the state. 0 without one.
	Running int `json:"running,omitempty"`
}

func (r *Report) removed(format string, args ...any) {
	r.Removed = append(r.Removed, fmt.Sprintf(format, args...))
}

func (r *Report) left(format string, args ...any) {
	r.Left = append(r.Left, fmt.Sprintf(format, args...))
}

func (r *Report) kept(format string, args ...any) {
	r.Kept = append(r.Kept, fmt.Sprintf(format, args...))
}

// check adds err, if there is one, to Left.
func (r *Report) check(err error) {
	if err != nil {
		r.Left = append(r.Left, err.Error())
	}
}

// Run removes everything but the state folder.
func Run(ctx context.Context, cfg Config) Report {
	c := newCleaner(cfg)
	own, there, err := fixed.Of(cfg.State)
	if err == nil {
		fixed.Use(own)
	}
	if !there {
		c.forgotten = fixed.Before.Nodes
	}
	c.containers = ourContainers()
	c.processes(ctx)
	c.foreign = otherKubelet(cfg.Run) // what of ours was about to end has ended
	if c.startedAgain() {
		return c.Report
	}
	c.runtime = runtimeInUse()
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
	// real is State without links, as the kernel tells paths of programs and mounts.
	real string
	// foreign is the evidence of another kubelet here, whose shared objects are then left; empty if there is none.
	foreign string
	// runtime is the evidence that another containerd uses k3sRun, after Rivulet's has ended; empty if none does.
	runtime string
	// containers are the IDs of Rivulet's containers, while their files exist.
	containers []string
	// forgotten is a range of node addresses that the cluster may have had, where no file tells; invalid if one does.
	forgotten netip.Prefix
}

func newCleaner(cfg Config) *cleaner {
	c := &cleaner{Config: cfg, real: cfg.State}
	if real, err := filepath.EvalSymlinks(cfg.State); err == nil {
		c.real = real
	}
	return c
}
