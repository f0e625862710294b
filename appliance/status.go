package appliance

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"rivulet/appliance/api"
	"rivulet/appliance/diagnose/places"
	"rivulet/appliance/version"
)

// statusTimeout bounds what a status may wait for others; what does not answer is left out.
const statusTimeout = 2 * time.Second

// Status gathers what `rivulet status` shows.
func (s *System) Status() api.Status {
	ctx, cancel := context.WithTimeout(context.Background(), statusTimeout)
	defer cancel()
	upgrade := s.upgrade.View() // before Health: it reports there
	st := api.Status{
		Upgrade: upgrade,
		Name:    s.name(), NodeName: s.nodeName, ID: s.id.ID(), Version: version.Version,
		NodeAddress: s.nodeIP.String(), Started: s.begun,
		Stages: s.manager.Status(), Host: s.facts, PIDs: s.pids(), Clock: s.clock.Status(),
	}
	st.Ready, st.Waiting = needed.Ready(st.Stages)
	st.ReadyAfter, st.ReadyAfterBoot = needed.Took(st.Stages)
	st.Config = s.configStatus()
	st.Addresses, st.StatusPage, st.DatastoreReady = s.page.Addresses(), s.page.URL(), s.inOrder.Load()
	made := s.made.get()
	tun, fab, off := made.tunnel, made.fabric, made.offload
	if tun != nil {
		if ts, err := tun.Status(ctx); err == nil {
			st.Tunnel = &ts
		}
	}
	if fab != nil {
		st.Peers = fab.Peers()
	}
	if off != nil {
		st.Status = off.Status()
	}
	if client := s.engine.Client(); client != nil {
		st.Pods, st.Room = places.Count(ctx, client, s.nodeName)
	}
	st.Health, st.Footprint = s.problems(), s.footprint.Report()
	return st
}

// pids reads the PID files; a process that is gone is left out.
func (s *System) pids() map[string]int {
	out := map[string]int{}
	for _, name := range []string{"supervisor", "engine", "tunnel"} {
		raw, err := os.ReadFile(filepath.Join(s.cfg.Dirs.Run, name+".pid"))
		if err != nil {
			continue
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(raw)))
		if err != nil {
			continue
		}
		if _, err := os.Stat("/proc/" + strconv.Itoa(pid)); err == nil {
			out[name] = pid
		}
	}
	return out
}
