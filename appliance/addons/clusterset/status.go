package clusterset

import (
	"cmp"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"rivulet/fabric/peer"
)

// Status is what `rivulet services` shows.
type Status struct {
	Services []Service `json:"services,omitempty"`
	Members  []Member  `json:"members,omitempty"`
	// Invalid are exports of this cluster that do not count, by namespace/name, with the reason.
	Invalid map[string]string `json:"invalid,omitempty"`
}

// Service is one Service of the cluster set.
type Service struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Type      string `json:"type"` // ClusterSetIP or Headless
	// Exported: by this cluster. Imported: it can be used here, since the namespace exists and takes part.
	Exported bool `json:"exported"`
	Imported bool `json:"imported"`
	// From are the clusters that export it, in the order in which this cluster saw them.
	From []Source `json:"from"`
	// Conflicts are the fields that differ, and Why which clusters do.
	Conflicts []string `json:"conflicts,omitempty"`
	Why       string   `json:"why,omitempty"`
	// Weights is the import's annotation, WeightsFault what is wrong with it; it ends in a cure.
	Weights      string `json:"weights,omitempty"`
	WeightsFault string `json:"weightsFault,omitempty"`
}

// Source is one cluster's part of a Service.
type Source struct {
	ID peer.ID `json:"id"`
	// Name is empty for this cluster.
	Name      string `json:"name,omitempty"`
	Endpoints int    `json:"endpoints"`
	Ready     int    `json:"ready"`
	// Used: traffic to at least one port goes there now.
	Used bool `json:"used"`
	// Share is the part of the traffic to the first port that goes there now, 0 to 1, of a Service with Weights.
	Share float64 `json:"share,omitempty"`
}

// Member is a peer that takes part.
type Member struct {
	ID      peer.ID    `json:"id"`
	Name    string     `json:"name,omitempty"`
	State   peer.State `json:"state"`
	Exports int        `json:"exports"`
	Fault   string     `json:"fault,omitempty"`
}

// Status may be called at any time.
func (s *Set) Status() Status {
	if st := s.status.Load(); st != nil {
		return *st
	}
	return Status{}
}

func (c *controller) statusOf(services map[string]merged, valid map[string]metav1.Condition, sites map[string]site, faults map[peer.ID]string) *Status {
	st := &Status{Members: c.membersNow(faults), Invalid: map[string]string{}}
	names := map[peer.ID]string{}
	for _, l := range c.Fabric().Links() {
		names[l.ID] = cmp.Or(l.Name, l.ID.Short())
	}
	for name, condition := range valid {
		if condition.Status != metav1.ConditionTrue {
			st.Invalid[name] = condition.Message
		}
	}
	for _, name := range slices.Sorted(maps.Keys(services)) {
		m := services[name]
		one := Service{Namespace: m.Namespace, Name: m.Name, Type: string(m.Spec.Type), Imported: c.hosts(m.Namespace), Conflicts: m.Reasons, Why: m.Message, Weights: m.Weighing, WeightsFault: m.WeighingFault}
		var shares map[string]float64
		if m.Weighing != "" && m.Spec.Type == mcs.ClusterSetIP {
			shares = m.shares(m.Spec.Ports[0], sites)
		}
		for _, x := range m.Contributions {
			id := peer.ID(x.Cluster)
			from := Source{ID: id, Name: names[id], Share: shares[x.Cluster]}
			one.Exported = one.Exported || id == c.ID
			connected := sites[x.Cluster].Own || sites[x.Cluster].Connected
			for _, s := range x.Slices {
				from.Endpoints += len(s.Endpoints)
				for _, e := range s.Endpoints {
					if e.Ready && connected {
						from.Ready++
					}
				}
			}
			for _, p := range m.Spec.Ports {
				from.Used = from.Used || m.used(p, sites)[x.Cluster] && from.Ready > 0
			}
			one.From = append(one.From, from)
		}
		st.Services = append(st.Services, one)
	}
	return st
}

// membersNow are the peers that take part, by name.
func (c *controller) membersNow(faults map[peer.ID]string) (out []Member) {
	links := c.links()
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, l := range links {
		m := Member{ID: id, Name: cmp.Or(l.Name, id.Short()), State: l.State, Fault: faults[id]}
		if p := c.peers[id]; p != nil {
			m.Exports = len(p.exports)
		}
		out = append(out, m)
	}
	slices.SortFunc(out, func(a, b Member) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID)) })
	return out
}
