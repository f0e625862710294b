package prometheus

import (
	"rivulet/appliance/api"
	"rivulet/appliance/config"
	"rivulet/appliance/lifecycle"
	"rivulet/appliance/machine/usage"
)

// phases are those of an upgrade.
var phases = []string{"idle", "staged", "trying", "returning"}

func (c *collection) device(st api.Status) {
	c.gauge("rivulet_build_info", "The version that runs, the cluster's name, its ID and its node; always 1.").
		add(1, "version", st.Version, "node", st.NodeName, "name", st.Name, "id", string(st.ID))
	c.gauge("rivulet_ready", "1 when pods can be scheduled at home and resolve names.").add(truth(st.Ready))
	c.gauge("rivulet_start_time_seconds", "When the supervisor started, since 1970.").when(st.Started)
	took := c.gauge("rivulet_time_to_ready_seconds", "Time until the device was first ready, from the start of the supervisor (process) or of the kernel (boot).")
	if st.ReadyAfter > 0 {
		took.add(st.ReadyAfter.Seconds(), "from", "process")
	}
	if st.ReadyAfterBoot > 0 {
		took.add(st.ReadyAfterBoot.Seconds(), "from", "boot")
	}
	c.problems(st)
	c.stages(st)
	c.config(st.Config)
	c.upgrade(st.Upgrade)
	c.gauge("rivulet_datastore_ready", "1 once the engine's datastore was checked and is sound.").add(truth(st.DatastoreReady))
	c.gauge("rivulet_status_page_enabled", "1 while the status page is served.").add(truth(st.StatusPage != ""))
	c.gauge("rivulet_console_enabled", "1 while the web console is served.").add(truth(st.Console != ""))
	c.gauge("rivulet_lan_addresses", "Addresses of the device on its LANs.").add(float64(len(st.Addresses)))
	c.gauge("rivulet_loadbalancer_services", "Services of type LoadBalancer that have their addresses.").add(float64(len(st.Services)))
}

// problems counts by code: subjects and texts have names of other clusters.
func (c *collection) problems(st api.Status) {
	type key struct{ code, severity string }
	count := map[key]float64{}
	var keys []key
	for _, p := range st.Health {
		k := key{p.Code, string(p.Severity)}
		if count[k]++; count[k] == 1 {
			keys = append(keys, k)
		}
	}
	f := c.gauge("rivulet_health_problems", "Problems that hold now, by code (rivulet docs reference/health).")
	for _, k := range keys {
		f.add(count[k], "code", k.code, "severity", k.severity)
	}
}

func (c *collection) stages(st api.Status) {
	up := c.gauge("rivulet_stage_ready", "1 while the stage is ready.")
	took := c.gauge("rivulet_stage_startup_seconds", "From the supervisor's start until the stage was first ready.")
	starts := c.counter("rivulet_stage_starts_total", "Starts of the stage.")
	for _, s := range st.Stages {
		up.add(truth(s.State == lifecycle.Ready), "stage", s.Name)
		starts.add(float64(s.Starts), "stage", s.Name)
		if s.Took > 0 {
			took.add(s.Took.Seconds(), "stage", s.Name)
		}
	}
}

func (c *collection) config(cfg api.Config) {
	c.gauge("rivulet_config_last_reload_successful", "1 unless the configuration file has a mistake and is not used.").add(truth(!cfg.Broken))
	c.gauge("rivulet_config_last_reload_success_timestamp_seconds", "When the configuration in force was read, since 1970.").when(cfg.Loaded)
	c.gauge("rivulet_config_source", "1 for where the configuration in force comes from.").
		states(string(cfg.From), []string{string(config.FromFile), string(config.FromLastGood), string(config.FromDefaults)}, "source")
	c.gauge("rivulet_config_pending_changes", "Changes of the configuration in progress.").add(float64(len(cfg.Pending)))
}

func (c *collection) upgrade(u *api.Upgrade) {
	if u == nil {
		u = &api.Upgrade{Phase: phases[0]}
	}
	c.gauge("rivulet_upgrade_phase", "1 for the phase of the upgrade.").states(u.Phase, phases, "phase")
	c.gauge("rivulet_upgrade_held_pods", "Pods that delay a staged upgrade.").add(float64(len(u.HeldBy)))
	c.gauge("rivulet_upgrade_trial_end_timestamp_seconds", "End of the trial of a version, since 1970.").when(u.Until)
}

func (c *collection) machine(st api.Status) {
	c.gauge("rivulet_host_memory_bytes", "RAM of the device.").add(float64(st.Host.MemoryBytes))
	c.gauge("rivulet_host_missing_tools", "Programs of the engine that were missing at its start.").add(float64(len(st.Host.MissingTools)))
	running := c.gauge("rivulet_process_running", "1 while the process runs.")
	for _, name := range []string{"supervisor", "engine", "tunnel"} {
		running.add(truth(st.PIDs[name] != 0), "process", name)
	}
	pss := c.gauge("rivulet_process_memory_pss_bytes", "Memory of Rivulet's processes, shared pages divided among them.")
	private := c.gauge("rivulet_process_memory_private_bytes", "Memory that the end of the process would free.")
	cpu := c.counter("rivulet_process_cpu_seconds_total", "CPU time of Rivulet's processes since their start.")
	for _, p := range st.Footprint.Processes {
		pss.add(float64(p.PSS), "process", p.Name)
		private.add(float64(p.Private), "process", p.Name)
		cpu.add(p.CPU.Seconds(), "process", p.Name)
	}
	written := c.gauge("rivulet_disk_written_bytes", "Written to the disk of the state folder by Rivulet, or by all programs, within rivulet_disk_written_window_seconds.")
	window := c.gauge("rivulet_disk_written_window_seconds", "The last day, or less after a start.")
	for _, w := range []struct {
		by string
		of usage.Writes
	}{{"rivulet", st.Footprint.Written}, {"all", st.Footprint.Disk}} {
		written.add(float64(w.of.Bytes), "by", w.by)
		window.add(w.of.Over.Seconds(), "by", w.by)
	}
	c.clock(st)
}

func (c *collection) clock(st api.Status) {
	c.gauge("rivulet_clock_time_seconds", "The device's time, since 1970.").when(st.Clock.Now)
	c.gauge("rivulet_clock_synchronized", "1 while a time service synchronizes the clock.").add(truth(st.Clock.Synchronized))
	c.gauge("rivulet_clock_plausible", "0 while the time cannot be right.").add(truth(st.Clock.Plausible))
	offset := c.gauge("rivulet_clock_offset_seconds", "How far the clock is ahead of its reference.")
	if st.Clock.Reference != "" {
		offset.add(st.Clock.Offset.Seconds())
	}
	at := c.gauge("rivulet_clock_last_jump_timestamp_seconds", "The last jump of the clock since the supervisor's start, since 1970.")
	by := c.gauge("rivulet_clock_last_jump_seconds", "Size of the last jump of the clock; negative: back.")
	if j := st.Clock.Jump; j != nil {
		at.when(j.At)
		by.add(j.By.Seconds())
	}
}
