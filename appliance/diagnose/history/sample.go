package history

import (
	"cmp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"rivulet/appliance/api"
	"rivulet/appliance/health"
	"rivulet/fabric/peer"
)

// Machine is the use of the device by all programs, by counters since its boot.
type Machine struct {
	CPU    time.Duration // of all processors, without idle
	Memory uint64        // bytes that are not available to programs
}

// input is what one sample is made of.
type input struct {
	at        time.Time
	status    api.Status
	vclusters []api.VCluster
	machine   Machine
}

// value is one series of a sample.
type value struct {
	name string // with its label
	v    float64
}

// key is a series' name with its label: peer_rtt_seconds{id=…}.
func key(name, label, text string) string { return name + "{" + label + "=" + text }

// sample computes the series of a minute, those of the device first, then those of peers: at most maxSeries. before is
// the input of the last minute, for rates; nil if there is none.
func sample(now input, before *input) (out []value) {
	add := func(name string, v float64) { out = append(out, value{name, v}) }
	st := now.status
	home := st.Room[st.NodeName]
	if before != nil && now.machine.CPU >= before.machine.CPU && now.at.After(before.at) {
		add("home_cpu_used_cores", (now.machine.CPU-before.machine.CPU).Seconds()/now.at.Sub(before.at).Seconds())
	}
	if now.machine.Memory > 0 {
		add("home_memory_used_bytes", float64(now.machine.Memory))
	}
	resources := func(prefix, suffix string, list corev1.ResourceList) {
		if len(list) > 0 {
			add(prefix+"_cpu_"+suffix+"_cores", list.Cpu().AsApproximateFloat64())
			add(prefix+"_memory_"+suffix+"_bytes", list.Memory().AsApproximateFloat64())
		}
	}
	resources("home", "allocatable", home.Allocatable)
	resources("home", "requested", home.Requested)
	borrowed, used := corev1.ResourceList{}, corev1.ResourceList{}
	for _, n := range st.VirtualNodes {
		sum(borrowed, n.Allocatable)
		sum(used, st.Room[n.Name].Requested)
	}
	resources("borrowed", "allocatable", borrowed)
	resources("borrowed", "requested", used)
	tenants := corev1.ResourceList{}
	for _, c := range st.Consumers {
		sum(tenants, c.Use)
	}
	resources("lent", "allocatable", st.Lent)
	resources("lent", "requested", tenants)
	add(key("pods", "where", "home"), float64(st.Pods.Home))
	add(key("pods", "where", "away"), float64(st.Pods.Away))
	add(key("pods", "where", "tenants"), float64(st.Pods.Tenants))
	problems := map[health.Severity]float64{}
	for _, p := range st.Health {
		problems[p.Severity]++
	}
	for _, s := range []health.Severity{health.Error, health.Warning, health.Info} {
		add(key("health_problems", "severity", string(s)), problems[s])
	}
	awake := 0.0
	memory := 0.0
	for _, v := range now.vclusters {
		if v.State == "Awake" {
			awake++
		}
		memory += float64(v.Memory)
	}
	add("vclusters", float64(len(now.vclusters)))
	add("vclusters_awake", awake)
	add("vclusters_memory_bytes", memory)
	add("rivulet_memory_bytes", float64(st.Footprint.PSS()))
	return append(out, peers(now, before, maxSeries-len(out)-1)...)
}

func sum(to, more corev1.ResourceList) {
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		if q, ok := more[name]; ok {
			s := to[name]
			s.Add(q)
			to[name] = s
		}
	}
}

// peers are connected and total, and the series of each peer, connected ones first, as far as there is room.
func peers(now input, before *input, room int) (out []value) {
	known := slices.DeleteFunc(slices.Clone(now.status.Peers), func(p peer.View) bool { return !p.Complete() })
	up := func(p peer.View) int {
		if p.State == peer.Connected {
			return 0
		}
		return 1
	}
	slices.SortFunc(known, func(a, b peer.View) int { return cmp.Or(up(a)-up(b), strings.Compare(string(a.ID), string(b.ID))) })
	connected := 0
	received, sent := rates(now, before)
	for _, p := range known {
		connected += 1 - up(p)
		if len(out)+3 > room {
			continue
		}
		id := string(p.ID)
		for name, of := range map[string]map[string]float64{"peer_received_bytes_per_second": received, "peer_sent_bytes_per_second": sent} {
			if v, ok := of[id]; ok {
				out = append(out, value{key(name, "id", id), v})
			}
		}
		if p.State == peer.Connected && p.RTT > 0 {
			out = append(out, value{key("peer_rtt_seconds", "id", id), p.RTT.Seconds()})
		}
	}
	return append(out, value{"peers_connected", float64(connected)})
}

// rates are those of the tunnel, bytes a second by peer; without those whose counters began again.
func rates(now input, before *input) (received, sent map[string]float64) {
	received, sent = map[string]float64{}, map[string]float64{}
	if before == nil || before.status.Tunnel == nil || now.status.Tunnel == nil || before.status.Tunnel.PID != now.status.Tunnel.PID || !now.at.After(before.at) {
		return received, sent
	}
	last := map[string][2]uint64{}
	for _, p := range before.status.Tunnel.Peers {
		last[p.ID] = [2]uint64{p.Received, p.Sent}
	}
	over := now.at.Sub(before.at).Seconds()
	for _, p := range now.status.Tunnel.Peers {
		if l, ok := last[p.ID]; ok && p.Received >= l[0] && p.Sent >= l[1] {
			received[p.ID], sent[p.ID] = float64(p.Received-l[0])/over, float64(p.Sent-l[1])/over
		}
	}
	return received, sent
}

// add puts a sample into a chunk as one more minute, with new series at the end.
func (c *chunk) add(values []value) {
	place := map[string]int{}
	for i, n := range c.names {
		place[n] = i
	}
	row := slices.Repeat([]uint16{absent}, len(c.names))
	for _, v := range values {
		if len(v.name) > maxName {
			continue
		}
		i, ok := place[v.name]
		if !ok {
			if len(c.names) >= maxSeries {
				continue
			}
			i = len(c.names)
			place[v.name] = i
			c.names, row = append(c.names, v.name), append(row, absent)
			for m := range c.rows {
				c.rows[m] = append(c.rows[m], absent)
			}
		}
		row[i] = encodeValue(v.v)
	}
	c.rows = append(c.rows, row)
}
