package prometheus

import (
	"cmp"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"rivulet/appliance/api"
	"rivulet/fabric/peer"
	"rivulet/fabric/tunnel"
	"rivulet/fabric/tunnel/paths"
	"rivulet/offload/policy"
)

// standard are the resources that every offer has. Others are exported for home only: peers choose their names.
var standard = []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, corev1.ResourcePods}

// maxExtended bounds the other resources of home.
const maxExtended = 16

// nodes are home's own and the virtual ones: the room for pods, and its use.
func (c *collection) nodes(st api.Status) {
	count := c.gauge("rivulet_pods", "Pods that are not finished: this cluster's here (home) and elsewhere (away), other clusters' here (tenants).")
	count.add(float64(st.Pods.Home), "where", "home").add(float64(st.Pods.Away), "where", "away").add(float64(st.Pods.Tenants), "where", "tenants")
	info := c.gauge("rivulet_node_info", "The node's kind (home, or that of a target), its target's name and ID, and its platform; always 1.")
	allocatable := c.gauge("rivulet_node_allocatable", "What pods can have on the node: of a virtual node, what its target lends.")
	requested := c.gauge("rivulet_node_requested", "Requests of this cluster's pods on the node, on home's also those of tenants.")
	pods := c.gauge("rivulet_node_pods", "Pods on the node that are not finished.")
	pressure := c.gauge("rivulet_node_pressure", "1 while home's kubelet accepts no pods for that reason.")
	ready := c.gauge("rivulet_virtual_node_ready", "1 while the virtual node takes pods.")
	cordoned := c.gauge("rivulet_virtual_node_cordoned", "1 while the virtual node is cordoned.")
	refused := c.gauge("rivulet_virtual_node_refused_pods", "Pods bound to the virtual node that may not run away.")
	heard := c.gauge("rivulet_virtual_node_last_heard_timestamp_seconds", "When a target that is silent was last heard, since 1970.")

	if home, ok := st.Room[st.NodeName]; ok {
		info.add(1, "node", st.NodeName, "kind", "home", "target", "", "id", string(st.ID), "os", "linux", "architecture", home.Architecture)
		allocatable.resources(home.Allocatable, all(home.Allocatable), "node", st.NodeName)
		requested.resources(home.Requested, all(home.Requested), "node", st.NodeName)
		pods.add(float64(home.Pods), "node", st.NodeName)
		for _, p := range []string{"DiskPressure", "MemoryPressure", "PIDPressure"} {
			pressure.add(truth(slices.Contains(home.Pressure, p)), "node", st.NodeName, "condition", p)
		}
	}
	up := c.gauge("rivulet_cluster_node_connected", "1 while the other device of this cluster answers through the tunnel.")
	trip := c.gauge("rivulet_cluster_node_rtt_seconds", "Round trip to the other device of this cluster through the tunnel.")
	for _, n := range st.Nodes {
		name := cmp.Or(n.Node, "server") // a worker names no server
		up.add(truth(n.State == peer.Connected), "node", name)
		if n.RTT > 0 && n.State == peer.Connected {
			trip.add(n.RTT.Seconds(), "node", name)
		}
	}
	for _, n := range st.VirtualNodes {
		info.add(1, "node", n.Name, "kind", string(n.Kind), "target", n.Target, "id", n.ID, "os", c.names.hold("os "+n.Name, n.OS, c.now), "architecture", c.names.hold("arch "+n.Name, n.Architecture, c.now))
		allocatable.resources(n.Allocatable, standard, "node", n.Name)
		requested.resources(st.Room[n.Name].Requested, standard, "node", n.Name)
		pods.add(float64(n.Pods), "node", n.Name)
		ready.add(truth(n.Ready), "node", n.Name)
		cordoned.add(truth(n.Cordoned), "node", n.Name)
		refused.add(float64(len(n.Refused)), "node", n.Name)
		heard.when(n.Heard, "node", n.Name)
	}
}

// all are the standard resources and some others, by name.
func all(list corev1.ResourceList) []corev1.ResourceName {
	out := slices.Clone(standard)
	for _, name := range slices.Sorted(maps.Keys(list)) {
		if !slices.Contains(standard, name) && len(out) < len(standard)+maxExtended {
			out = append(out, name)
		}
	}
	return out
}

var (
	peerStates = []peer.State{peer.Discovered, peer.Waiting, peer.Denied, peer.Refused, peer.Connecting, peer.Connected, peer.Lost}
	trustKinds = []string{peer.TrustLAN, peer.TrustGroup, peer.TrustApproved, peer.TrustInvite}
)

func (c *collection) peers(st api.Status) {
	states, trust := map[peer.State]float64{}, map[string]float64{}
	info := c.gauge("rivulet_peer_info", "The peer's name and versions, as it sends them, and how it came to be trusted; always 1. A change shows within an hour.")
	connected := c.gauge("rivulet_peer_connected", "1 while the peer answers through the tunnel.")
	seen := c.gauge("rivulet_peer_last_seen_timestamp_seconds", "The peer's last answer through the tunnel, since 1970.")
	trusted := c.gauge("rivulet_peer_trusted_timestamp_seconds", "When the peer came to be trusted, since 1970.")
	enabled := c.gauge("rivulet_peer_direction_enabled", "0 if either side has switched the direction off: borrow is by this cluster, lend to it.")
	price := c.gauge("rivulet_peer_price", "The peer's price, 0 to 9, as set here.")
	trip := c.gauge("rivulet_peer_rtt_seconds", "Round trip to the peer through the tunnel.")
	for _, p := range st.Peers {
		states[p.State]++
		if p.Trust.How != "" {
			trust[p.Trust.How]++
		}
		if !p.Complete() {
			continue // discovered, not a peer
		}
		id := string(p.ID)
		info.add(1, "id", id, "name", c.names.hold("name "+id, p.Name, c.now), "version", c.names.hold("version "+id, p.Version, c.now),
			"kubernetes", c.names.hold("kubernetes "+id, p.KubeVersion, c.now), "trust", p.Trust.How)
		connected.add(truth(p.State == peer.Connected), "id", id)
		seen.when(p.LastSeen, "id", id)
		trusted.when(p.Trust.At, "id", id)
		enabled.add(truth(!p.NoBorrow()), "id", id, "direction", "borrow").add(truth(!p.NoLend()), "id", id, "direction", "lend")
		price.add(float64(p.Price), "id", id)
		if p.RTT > 0 && p.State == peer.Connected {
			trip.add(p.RTT.Seconds(), "id", id)
		}
	}
	count := c.gauge("rivulet_peers", "Clusters that are known, by state.")
	for _, s := range peerStates {
		count.add(states[s], "state", string(s))
	}
	how := c.gauge("rivulet_trusted_peers", "Clusters that are trusted, by how they came to be.")
	for _, k := range trustKinds {
		how.add(trust[k], "trust", k)
	}
}

// services are those shared with peers.
func (c *collection) services(st api.Status) {
	ready, conflicts := 0, 0
	for _, s := range st.ClusterSet.Services {
		for _, f := range s.From {
			ready += f.Ready
		}
		if len(s.Conflicts) > 0 {
			conflicts++
		}
	}
	c.gauge("rivulet_clusterset_services", "Services shared with peers, here or there.").add(float64(len(st.ClusterSet.Services)))
	c.gauge("rivulet_clusterset_endpoints_ready", "Ready endpoints of Services shared with peers.").add(float64(ready))
	c.gauge("rivulet_clusterset_services_conflicting", "Services shared with peers whose exports differ.").add(float64(conflicts))
}

// kinds are those of paths.
var kinds = []paths.Kind{paths.Direct, paths.Relay, paths.Stream}

func (c *collection) tunnel(st api.Status) {
	c.gauge("rivulet_tunnel_up", "1 while the tunnel's process answers.").add(truth(st.Tunnel != nil))
	received := c.counter("rivulet_tunnel_received_bytes_total", "From the peer since the tunnel's process started.")
	sent := c.counter("rivulet_tunnel_sent_bytes_total", "To the peer since the tunnel's process started.")
	shook := c.gauge("rivulet_tunnel_last_handshake_timestamp_seconds", "The tunnel's last handshake with the peer, since 1970; nothing passes when it is 180 s ago.")
	mtu := c.gauge("rivulet_tunnel_mtu_bytes", "What fits through the path to the peer in one packet, inside the tunnel.")
	used := c.gauge("rivulet_tunnel_path_used", "1 for the kind of path that the peer's packets take.")
	alive := c.gauge("rivulet_tunnel_paths_alive", "Paths of the kind that answer.")
	trip := c.gauge("rivulet_tunnel_path_rtt_seconds", "Shortest round trip by a path of the kind.")
	unserved := c.gauge("rivulet_tunnel_peer_unserved", "1 while the tunnel does not serve the peer as configured.")
	dropped := c.counter("rivulet_tunnel_dropped_packets_total", "Packets refused by translation since the tunnel's process started.")
	relayed := c.counter("rivulet_tunnel_relayed_packets_total", "Packets between two peers relayed by this device since the tunnel's process started.")
	stream := c.gauge("rivulet_tunnel_stream_port_open", "0 while a port of tunnel.streamPort cannot be opened.")
	if st.Tunnel == nil {
		return
	}
	dropped.add(float64(st.Tunnel.Dropped))
	relayed.add(float64(st.Tunnel.Carried))
	stream.add(truth(st.Tunnel.StreamPort == ""))
	for _, p := range st.Tunnel.Peers {
		received.add(float64(p.Received), "id", p.ID)
		sent.add(float64(p.Sent), "id", p.ID)
		shook.when(p.LastHandshake, "id", p.ID)
		if p.MTU > 0 {
			mtu.add(float64(p.MTU), "id", p.ID)
		}
		unserved.add(truth(p.Problem != nil), "id", p.ID)
		for _, kind := range kinds {
			best := bestPath(p, kind)
			used.add(truth(best.used), "id", p.ID, "path", string(kind))
			alive.add(best.alive, "id", p.ID, "path", string(kind))
			if best.rtt > 0 {
				trip.add(best.rtt.Seconds(), "id", p.ID, "path", string(kind))
			}
		}
	}
}

type pathSum struct {
	used  bool
	alive float64
	rtt   time.Duration
}

func bestPath(p tunnel.PeerStatus, kind paths.Kind) (s pathSum) {
	for _, way := range p.Paths {
		if way.Kind != kind {
			continue
		}
		s.used = s.used || way.Used
		if way.Alive {
			s.alive++
			if way.RTT > 0 {
				s.rtt = min(cmp.Or(s.rtt, way.RTT), way.RTT)
			}
		}
	}
	return s
}

// lending is what this cluster lends, and which namespaces may leave.
func (c *collection) lending(st api.Status) {
	c.gauge("rivulet_lent", "What this cluster lends to all others together, their present use included.").resources(st.Lent, standard)
	info := c.gauge("rivulet_consumer_info", "A cluster that borrows from this one, its name and kind; always 1.")
	use := c.gauge("rivulet_consumer_requested", "Requests of the consumer's pods here.")
	pods := c.gauge("rivulet_consumer_pods", "Unfinished pods of the consumer here.")
	twins := c.gauge("rivulet_consumer_namespaces", "Twin namespaces of the consumer here.")
	silent := c.gauge("rivulet_consumer_silent_seconds", "Time since the consumer's last request.")
	left := c.gauge("rivulet_consumer_deletion_seconds", "Further silence after which the consumer's twins are deleted.")
	for _, one := range st.Consumers {
		id, kind := string(one.ID), "other"
		if one.Peer {
			kind = "peer"
		}
		info.add(1, "id", id, "name", c.names.hold("consumer "+id, one.Name, c.now), "kind", kind)
		use.resources(one.Use, standard, "id", id)
		pods.add(float64(one.Pods), "id", id)
		twins.add(float64(len(one.Twins)), "id", id)
		silent.add(one.Silent.Seconds(), "id", id)
		if one.Silent > 0 {
			left.add(one.Left.Seconds(), "id", id)
		}
	}
	when := map[policy.When]float64{}
	for _, ns := range st.Namespaces {
		when[ns.When]++
	}
	offloaded := c.gauge("rivulet_offload_namespaces", "Namespaces whose pods or Services may leave, by mode.")
	for _, w := range []policy.When{policy.Burst, policy.Remote, policy.Any, policy.Services} {
		offloaded.add(when[w], "mode", string(w))
	}
	c.gauge("rivulet_open_services", "Namespaces and Services that are open to other clusters.").add(float64(len(st.Open)))
	c.gauge("rivulet_peers_unchosen", "Peers that get no new pods, by virtualNodes.").add(float64(len(st.Unchosen)))
	c.gauge("rivulet_targets_without_offer", "Targets that lend this cluster nothing.").add(float64(len(st.LendNothing)))
}

// vclusterStates are those of package vcluster.
var vclusterStates = []string{"Starting", "Awake", "Asleep", "Paused", "Failed", "Deleting"}

func (c *collection) vclusters(list []api.VCluster) {
	count := map[string]float64{}
	state := c.gauge("rivulet_vcluster_awake", "1 while the virtual cluster's control plane runs.")
	memory := c.gauge("rivulet_vcluster_memory_bytes", "Memory of the control plane's process alone.")
	memoryLimit := c.gauge("rivulet_vcluster_memory_limit_bytes", "Bound of the control plane's memory.")
	disk := c.gauge("rivulet_vcluster_disk_bytes", "Size of the virtual cluster's files.")
	datastore := c.gauge("rivulet_vcluster_datastore_bytes", "Objects and their history in the datastore.")
	datastoreLimit := c.gauge("rivulet_vcluster_datastore_limit_bytes", "Bound of the datastore; what is full refuses new objects.")
	pods := c.gauge("rivulet_vcluster_pods", "Unfinished pods of the virtual cluster.")
	use := c.gauge("rivulet_vcluster_requested", "Requests of its pods, and its claims.")
	quota := c.gauge("rivulet_vcluster_quota", "Bound of the requests of its pods, and of its claims.")
	took := c.gauge("rivulet_vcluster_startup_seconds", "How long the last start took until the virtual cluster was usable.")
	created := c.gauge("rivulet_vcluster_created_timestamp_seconds", "When it was created, since 1970.")
	resources := append(slices.Clone(standard), corev1.ResourceStorage)
	for _, v := range list {
		name := []string{"vcluster", v.Name}
		count[v.State]++
		state.add(truth(v.State == "Awake"), name...)
		memory.add(float64(v.Memory), name...)
		memoryLimit.add(float64(v.MemoryLimit), name...)
		disk.add(float64(v.Disk), name...)
		datastore.add(float64(v.Datastore), name...)
		datastoreLimit.add(float64(v.DatastoreLimit), name...)
		pods.add(float64(v.Pods), name...)
		use.resources(v.Use, resources, name...)
		quota.resources(v.Quota, resources, name...)
		if v.Started > 0 {
			took.add(v.Started.Seconds(), name...)
		}
		created.when(v.Created, name...)
	}
	states := c.gauge("rivulet_vclusters", "Virtual clusters of this device, by state.")
	for _, s := range vclusterStates {
		states.add(count[s], "state", s)
	}
}
