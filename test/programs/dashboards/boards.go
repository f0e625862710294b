package main

import "github.com/grafana/grafana-foundation-sdk/go/dashboard"

// at selects the devices that are chosen.
const at = `instance=~"$instance"`

// home selects nodes that are a device's own.
const home = ` * on(instance, node) group_left() rivulet_node_info{kind="home"}`

// named joins the name of a peer.
const named = ` * on(instance, id) group_left(name) rivulet_peer_info`

func boards() map[string]*dashboard.DashboardBuilder {
	return map[string]*dashboard.DashboardBuilder{"fleet": fleet(), "device": device(), "peering": peering(), "offload": offload(), "virtual-clusters": virtualClusters()}
}

func fleet() *dashboard.DashboardBuilder {
	return board("fleet", "Fleet", "All devices: which are ready, what is wrong, where there is room.", false,
		number("Devices", "Devices that are scraped.", "none", query{`count(rivulet_ready)`, ""}, 0),
		number("Not ready", "Devices on which no pods can be scheduled.", "none", query{`count(rivulet_ready) - sum(rivulet_ready)`, ""}, 1),
		number("Errors", "Problems of severity error: docs/reference/health.md has the codes.", "none", query{`sum(rivulet_health_problems{severity="error"}) or vector(0)`, ""}, 1),
		number("Pods", "Pods that are not finished, at home and away.", "none", query{`sum(rivulet_pods{where!="tenants"})`, ""}, 0),
		rows("Devices", "Name, version and node of each device.", `rivulet_build_info`),
		rows("Problems", "Problems that hold now, by device and code.", `sum by (instance, code, severity) (rivulet_health_problems)`),
		graph("CPU requested at home", "Part of what pods can have.", "percentunit", query{`sum by (instance) (rivulet_node_requested{resource="cpu"}` + home + `) / sum by (instance) (rivulet_node_allocatable{resource="cpu"}` + home + `)`, "{{instance}}"}),
		graph("Memory requested at home", "Part of what pods can have.", "percentunit", query{`sum by (instance) (rivulet_node_requested{resource="memory"}` + home + `) / sum by (instance) (rivulet_node_allocatable{resource="memory"}` + home + `)`, "{{instance}}"}),
		graph("Pods by place", "Of this cluster at home and away, of other clusters here.", "none", query{`sum by (where) (rivulet_pods)`, "{{where}}"}),
		graph("Memory of Rivulet", "All of its processes.", "bytes", query{`sum by (instance) (rivulet_process_memory_pss_bytes)`, "{{instance}}"}),
		graph("Connected peers", "Peers that answer through the tunnel.", "none", query{`sum by (instance) (rivulet_peer_connected)`, "{{instance}}"}),
		graph("Writes of Rivulet", "To the disk of the state folder, a day.", "bytes", query{`rivulet_disk_written_bytes{by="rivulet"} / rivulet_disk_written_window_seconds * 86400`, "{{instance}}"}),
	)
}

func device() *dashboard.DashboardBuilder {
	return board("device", "Device", "One device: room, processes, clock, configuration.", true,
		number("Ready", "1 when pods can be scheduled at home and resolve names.", "none", query{`min(rivulet_ready{` + at + `})`, ""}, 0),
		number("Problems", "All that hold now.", "none", query{`sum(rivulet_health_problems{` + at + `}) or vector(0)`, ""}, 1),
		number("Running for", "Since the supervisor's start.", "s", query{`time() - min(rivulet_start_time_seconds{` + at + `})`, ""}, 0),
		number("Clock offset", "How far the clock is from its reference.", "s", query{`max(abs(rivulet_clock_offset_seconds{` + at + `}))`, ""}, 60),
		graph("CPU of pods at home", "What pods can have, and what they request.", "none",
			query{`rivulet_node_allocatable{resource="cpu",` + at + `}` + home, "{{node}} allocatable"}, query{`rivulet_node_requested{resource="cpu",` + at + `}` + home, "{{node}} requested"}),
		graph("Memory of pods at home", "What pods can have, and what they request.", "bytes",
			query{`rivulet_node_allocatable{resource="memory",` + at + `}` + home, "{{node}} allocatable"}, query{`rivulet_node_requested{resource="memory",` + at + `}` + home, "{{node}} requested"}),
		graph("Pods by place", "Of this cluster at home and away, of other clusters here.", "none", query{`rivulet_pods{` + at + `}`, "{{instance}} {{where}}"}),
		graph("Components ready", "Of the supervisor: rivulet status names those that are not.", "none", query{`sum by (instance) (rivulet_stage_ready{` + at + `})`, "{{instance}}"}),
		graph("Memory by process", "Shared pages divided among processes.", "bytes", query{`rivulet_process_memory_pss_bytes{` + at + `}`, "{{instance}} {{process}}"}),
		graph("CPU by process", "Cores.", "none", query{`rate(rivulet_process_cpu_seconds_total{` + at + `}[$__rate_interval])`, "{{instance}} {{process}}"}),
		graph("Writes a day", "By Rivulet, and by all programs.", "bytes", query{`rivulet_disk_written_bytes{` + at + `} / rivulet_disk_written_window_seconds * 86400`, "{{instance}} {{by}}"}),
		graph("Configuration", "1 while the file is used.", "none", query{`rivulet_config_last_reload_successful{` + at + `}`, "{{instance}}"}),
		rows("Problems", "By code.", `rivulet_health_problems{`+at+`}`),
		rows("Upgrade", "The phase that holds.", `rivulet_upgrade_phase{`+at+`} == 1`),
	)
}

func peering() *dashboard.DashboardBuilder {
	return board("peering", "Peering", "Peers of a device: trust, tunnel, paths.", true,
		graph("Clusters by state", "Clusters that the device knows.", "none", query{`sum by (state) (rivulet_peers{` + at + `})`, "{{state}}"}),
		rows("Peers", "Names, versions and trust.", `rivulet_peer_info{`+at+`}`),
		graph("Connected", "1 while the peer answers through the tunnel.", "none", query{`rivulet_peer_connected{` + at + `}` + named, "{{instance}} {{name}}"}),
		graph("Round trip", "Through the tunnel.", "s", query{`rivulet_peer_rtt_seconds{` + at + `}` + named, "{{instance}} {{name}}"}),
		graph("Received", "From the peer.", "Bps", query{`rate(rivulet_tunnel_received_bytes_total{` + at + `}[$__rate_interval])` + named, "{{instance}} {{name}}"}),
		graph("Sent", "To the peer.", "Bps", query{`rate(rivulet_tunnel_sent_bytes_total{` + at + `}[$__rate_interval])` + named, "{{instance}} {{name}}"}),
		graph("Paths in use", "Peers by the kind of path that their packets take.", "none", query{`sum by (instance, path) (rivulet_tunnel_path_used{` + at + `})`, "{{instance}} {{path}}"}),
		graph("Round trip by path", "The shortest of each kind.", "s", query{`rivulet_tunnel_path_rtt_seconds{` + at + `}` + named, "{{instance}} {{name}} {{path}}"}),
		graph("Since the last handshake", "Nothing passes when it is 180 s.", "s", query{`time() - rivulet_tunnel_last_handshake_timestamp_seconds{` + at + `}` + ` + on(instance, id) group_left(name) 0 * rivulet_peer_info`, "{{instance}} {{name}}"}),
		graph("Packets", "Refused by translation, and relayed for two peers.", "pps",
			query{`rate(rivulet_tunnel_dropped_packets_total{` + at + `}[$__rate_interval])`, "{{instance}} dropped"}, query{`rate(rivulet_tunnel_relayed_packets_total{` + at + `}[$__rate_interval])`, "{{instance}} relayed"}),
	)
}

func offload() *dashboard.DashboardBuilder {
	const virtual = ` * on(instance, node) group_left() (rivulet_node_info{kind!="home"})`
	return board("offload", "Offload", "What is borrowed and lent.", true,
		graph("Virtual nodes", "1 while the node takes pods.", "none", query{`rivulet_virtual_node_ready{` + at + `}`, "{{instance}} {{node}}"}),
		graph("Pods by node", "Of this cluster, on virtual nodes.", "none", query{`rivulet_node_pods{` + at + `}` + virtual, "{{instance}} {{node}}"}),
		graph("CPU borrowed", "What targets lend, and what pods there request.", "none",
			query{`rivulet_node_allocatable{resource="cpu",` + at + `}` + virtual, "{{instance}} {{node}} offered"}, query{`rivulet_node_requested{resource="cpu",` + at + `}` + virtual, "{{instance}} {{node}} requested"}),
		graph("Memory borrowed", "What targets lend, and what pods there request.", "bytes",
			query{`rivulet_node_allocatable{resource="memory",` + at + `}` + virtual, "{{instance}} {{node}} offered"}, query{`rivulet_node_requested{resource="memory",` + at + `}` + virtual, "{{instance}} {{node}} requested"}),
		graph("CPU lent", "What all consumers may use, and what each requests.", "none",
			query{`rivulet_lent{resource="cpu",` + at + `}`, "{{instance}} lent"}, query{`rivulet_consumer_requested{resource="cpu",` + at + `} * on(instance, id) group_left(name) rivulet_consumer_info`, "{{instance}} {{name}}"}),
		graph("Memory lent", "What all consumers may use, and what each requests.", "bytes",
			query{`rivulet_lent{resource="memory",` + at + `}`, "{{instance}} lent"}, query{`rivulet_consumer_requested{resource="memory",` + at + `} * on(instance, id) group_left(name) rivulet_consumer_info`, "{{instance}} {{name}}"}),
		graph("Pods of consumers", "Unfinished pods of other clusters here.", "none", query{`rivulet_consumer_pods{` + at + `} * on(instance, id) group_left(name) rivulet_consumer_info`, "{{instance}} {{name}}"}),
		graph("Namespaces whose pods or Services may leave", "By mode.", "none", query{`rivulet_offload_namespaces{` + at + `}`, "{{instance}} {{mode}}"}),
		graph("Refused pods", "Bound to a virtual node, and not allowed to run away.", "none", query{`rivulet_virtual_node_refused_pods{` + at + `}`, "{{instance}} {{node}}"}),
		rows("Consumers", "Clusters that borrow from the device.", `rivulet_consumer_info{`+at+`}`),
	)
}

func virtualClusters() *dashboard.DashboardBuilder {
	return board("virtual-clusters", "Virtual clusters", "Control planes of virtual clusters, and their pods.", true,
		graph("By state", "Virtual clusters of the device.", "none", query{`rivulet_vclusters{` + at + `}`, "{{instance}} {{state}}"}),
		graph("Awake", "1 while the control plane runs.", "none", query{`rivulet_vcluster_awake{` + at + `}`, "{{instance}} {{vcluster}}"}),
		graph("Memory", "Of the control plane, part of its bound.", "percentunit", query{`rivulet_vcluster_memory_bytes{` + at + `} / rivulet_vcluster_memory_limit_bytes`, "{{instance}} {{vcluster}}"}),
		graph("Datastore", "Part of its bound; what is full refuses new objects.", "percentunit", query{`rivulet_vcluster_datastore_bytes{` + at + `} / rivulet_vcluster_datastore_limit_bytes`, "{{instance}} {{vcluster}}"}),
		graph("Pods", "Unfinished pods.", "none", query{`rivulet_vcluster_pods{` + at + `}`, "{{instance}} {{vcluster}}"}),
		graph("CPU requested", "By pods.", "none", query{`rivulet_vcluster_requested{resource="cpu",` + at + `}`, "{{instance}} {{vcluster}}"}),
		graph("Memory requested", "By pods.", "bytes", query{`rivulet_vcluster_requested{resource="memory",` + at + `}`, "{{instance}} {{vcluster}}"}),
		graph("Time to start", "The last start of the control plane.", "s", query{`rivulet_vcluster_startup_seconds{` + at + `}`, "{{instance}} {{vcluster}}"}),
		graph("Disk", "Files of the virtual cluster.", "bytes", query{`rivulet_vcluster_disk_bytes{` + at + `}`, "{{instance}} {{vcluster}}"}),
	)
}
