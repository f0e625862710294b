package clusterset

import (
	"cmp"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// contribution is one cluster's export of a Service.
type contribution struct {
	Cluster string // its ID
	Own     bool   // this cluster's
	Export
}

// merged is the Service of the cluster set that all contributions make.
type merged struct {
	Namespace, Name     string
	Spec                mcs.ServiceImportSpec
	Labels, Annotations map[string]string
	// Contributions are those that were merged, in the order in which this cluster saw them.
	Contributions []contribution
	// Reasons are the conflicts, of mcs.ServiceExportCondition…; Message names the clusters that differ.
	Reasons []string
	Message string
	// Weights are this cluster's, by the ID of a cluster; nil is none. Weighing is their text, WeighingFault what is wrong
	// with it.
	Weights                 map[string]uint64
	Weighing, WeighingFault string
}

// merge merges the contributions, at least one, in the order in which this cluster saw them, to a Service of one name.
// The first decides whether it is headless, because that has to be the same in all clusters. All else is decided by this
// cluster's own export, or by the first if there is none: no other cluster changes a Service that this one exports. It is
// pure.
func merge(all []contribution) merged {
	first, decides := all[0], all[0]
	if i := slices.IndexFunc(all, func(c contribution) bool { return c.Own }); i >= 0 {
		decides = all[i]
	}
	m := merged{Namespace: first.Namespace, Name: first.Name, Labels: decides.Labels, Annotations: decides.Annotations, Contributions: all}
	m.Spec = mcs.ServiceImportSpec{
		Type: mcs.ClusterSetIP, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, SessionAffinity: decides.SessionAffinity,
		SessionAffinityConfig: decides.AffinityConfig, InternalTrafficPolicy: decides.InternalTrafficPolicy, TrafficDistribution: decides.TrafficDistribution,
	}
	if first.Headless {
		m.Spec.Type = mcs.Headless
	}
	for _, c := range append([]contribution{decides}, all...) {
		for _, p := range c.Ports {
			if !slices.ContainsFunc(m.Spec.Ports, func(o mcs.ServicePort) bool {
				return o.Name == p.Name || o.Name == "" || p.Name == "" || o.Port == p.Port && o.Protocol == p.Protocol // not two in one Service
			}) && len(m.Spec.Ports) < maxPorts {
				m.Spec.Ports = append(m.Spec.Ports, p)
			}
		}
	}
	var differ []string
	reasons := map[string]bool{}
	for _, c := range all {
		different := false
		for reason, same := range map[mcs.ServiceExportConditionReason]bool{
			mcs.ServiceExportReasonTypeConflict:                  c.Headless == first.Headless,
			mcs.ServiceExportReasonPortConflict:                  samePorts(c.Ports, decides.Ports),
			mcs.ServiceExportReasonSessionAffinityConflict:       affinity(c.SessionAffinity) == affinity(decides.SessionAffinity),
			mcs.ServiceExportReasonSessionAffinityConfigConflict: reflect.DeepEqual(c.AffinityConfig, decides.AffinityConfig),
			mcs.ServiceExportReasonLabelsConflict:                maps.Equal(c.Labels, decides.Labels),
			mcs.ServiceExportReasonAnnotationsConflict:           maps.Equal(c.Annotations, decides.Annotations),
			"InternalTrafficPolicyConflict":                      ptr.Deref(c.InternalTrafficPolicy, corev1.ServiceInternalTrafficPolicyCluster) == ptr.Deref(decides.InternalTrafficPolicy, corev1.ServiceInternalTrafficPolicyCluster),
			"TrafficDistributionConflict":                        ptr.Equal(c.TrafficDistribution, decides.TrafficDistribution),
		} {
			if !same {
				reasons[string(reason)], different = true, true
			}
		}
		if different {
			differ = append(differ, c.Cluster)
		}
	}
	m.Reasons = slices.Sorted(maps.Keys(reasons))
	if len(differ) > 0 {
		slices.Sort(differ)
		m.Message = "the export of cluster " + decides.Cluster + " decides"
		if first.Cluster != decides.Cluster && first.Headless != decides.Headless {
			m.Message += ", and the type is of cluster " + first.Cluster + ", which was first"
		}
		m.Message += "; clusters that differ: " + strings.Join(differ, ", ")
	}
	return m
}

func affinity(a corev1.ServiceAffinity) corev1.ServiceAffinity {
	return cmp.Or(a, corev1.ServiceAffinityNone)
}

func samePorts(a, b []mcs.ServicePort) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(p mcs.ServicePort) bool { return !has(b, p) })
}

func has(all []mcs.ServicePort, p mcs.ServicePort) bool {
	return slices.ContainsFunc(all, func(o mcs.ServicePort) bool { return reflect.DeepEqual(o, p) })
}

// carries reports whether the cluster's endpoints serve the merged Service's port: one of another number or protocol serves
// something else. What a cluster says of the application protocol takes no traffic from others.
func (m merged) carries(c contribution, p mcs.ServicePort) bool {
	return slices.ContainsFunc(c.Ports, func(o mcs.ServicePort) bool { return o.Name == p.Name && o.Port == p.Port && o.Protocol == p.Protocol })
}

// place sorts contributions to a Service by the order in which this cluster saw their clusters, whatever these say of their
// age: first those in seen, then this cluster's own, then the others by ID. It returns the next seen, which keeps clusters
// without a contribution until all were heard.
func place(seen []string, all []contribution, heard bool) (next []string) {
	at := func(c contribution) int {
		if i := slices.Index(seen, c.Cluster); i >= 0 {
			return i
		}
		return len(seen)
	}
	slices.SortFunc(all, func(a, b contribution) int {
		if n := cmp.Compare(at(a), at(b)); n != 0 || a.Own == b.Own {
			return cmp.Or(n, cmp.Compare(a.Cluster, b.Cluster))
		} else if a.Own {
			return -1
		}
		return 1
	})
	if !heard {
		next = slices.Clone(seen)
	}
	for _, c := range all {
		if !slices.Contains(next, c.Cluster) {
			next = append(next, c.Cluster)
		}
	}
	return next
}

// site is what is known of a cluster when traffic is distributed.
type site struct {
	Own       bool // this cluster
	Connected bool
	// Cordoned: this cluster's operator empties it, so it comes after all others.
	Cordoned bool
	Nearness int // peer.Link.Nearness
}

// used returns the clusters whose endpoints get the traffic to a port: those that have weights and ready endpoints, else
// this cluster while it has ready ones, else the nearest connected ones that have, those that are cordoned here last.
// Without any ready endpoint it is every connected cluster, so that clients are refused and do not wait. A cluster of
// weight 0 never gets any.
func (m merged) used(p mcs.ServicePort, sites map[string]site) map[string]bool {
	ready, any := map[string]bool{}, map[string]bool{}
	for cluster := range m.weighted(p, sites) {
		ready[cluster] = true
	}
	if len(ready) > 0 {
		return ready
	}
	nearest := -2
	for _, c := range m.Contributions {
		s := sites[c.Cluster]
		if w, named := m.Weights[c.Cluster]; named && w == 0 || !s.Own && !s.Connected || !m.carries(c, p) {
			continue
		}
		any[c.Cluster] = true
		if !c.ready() {
			continue
		}
		if s.Own {
			return map[string]bool{c.Cluster: true}
		}
		if s.Cordoned {
			s.Nearness = -1
		}
		if s.Nearness > nearest {
			nearest = s.Nearness
			clear(ready)
		}
		if s.Nearness == nearest {
			ready[c.Cluster] = true
		}
	}
	if len(ready) == 0 {
		return any
	}
	return ready
}

// weighted returns the weights of the clusters that share the traffic to a port: those that have ready endpoints of it,
// and of these the cordoned ones only if there is no other.
func (m merged) weighted(p mcs.ServicePort, sites map[string]site) map[string]uint64 {
	open, cordoned := map[string]uint64{}, map[string]uint64{}
	for _, c := range m.Contributions {
		switch s, w := sites[c.Cluster], m.Weights[c.Cluster]; {
		case w == 0 || !s.Own && !s.Connected || !m.carries(c, p) || len(c.readyAt(p)) == 0:
		case s.Cordoned:
			cordoned[c.Cluster] = w
		default:
			open[c.Cluster] = w
		}
	}
	if len(open) == 0 {
		return cordoned
	}
	return open
}

// shares are the parts of the traffic to a port that clusters get, of 1 together; none without a ready endpoint.
func (m merged) shares(p mcs.ServicePort, sites map[string]site) map[string]float64 {
	parts, all := m.weighted(p, sites), uint64(0)
	if len(parts) == 0 { // kube-proxy, evenly
		used := m.used(p, sites)
		for _, c := range m.Contributions {
			if n := len(c.readyAt(p)); used[c.Cluster] && n > 0 {
				parts[c.Cluster] = uint64(n)
			}
		}
	}
	out := map[string]float64{}
	for _, n := range parts {
		all += n
	}
	for cluster, n := range parts {
		out[cluster] = float64(n) / float64(all)
	}
	return out
}

// readyAt are the ready endpoints of a port.
func (c contribution) readyAt(p mcs.ServicePort) (out []netip.AddrPort) {
	for _, s := range c.Slices {
		for _, port := range s.Ports {
			if *port.Name != p.Name || *port.Protocol != p.Protocol {
				continue
			}
			for _, e := range s.Endpoints {
				if e.Ready {
					out = append(out, netip.AddrPortFrom(e.Address, uint16(*port.Port)))
				}
			}
		}
	}
	return out
}

func (c contribution) ready() bool {
	return slices.ContainsFunc(c.Slices, func(s Slice) bool { return slices.ContainsFunc(s.Endpoints, func(e Endpoint) bool { return e.Ready }) })
}
