package clusterset

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"rivulet/appliance/addons/clusterset/weights"
	"rivulet/fabric/cure"
	"rivulet/fabric/peer"
)

// WeightsAnnotation, written by users on a ServiceImport, distributes its traffic over clusters: "home=90,b=10". A
// cluster is home (this one), or a peer by name or ID.
const WeightsAnnotation = "rivulet.dev/weights"

const (
	home = "home" // this cluster
	// maxWeight is that of the Gateway API.
	maxWeights, maxWeight = 64, 1_000_000
	// conditionWeighted is the type of the condition of a ServiceImport with weights.
	conditionWeighted = "rivulet.dev/Weighted"
)

// parseWeights reads the value of WeightsAnnotation.
func parseWeights(text string) (map[string]uint64, error) {
	all, sum := map[string]uint64{}, uint64(0)
	for part := range strings.SplitSeq(text, ",") {
		name, number, _ := strings.Cut(strings.TrimSpace(part), "=")
		w, err := strconv.ParseUint(number, 10, 64)
		_, twice := all[name]
		switch {
		case name == "" || len(name) > 63 || err != nil || w > maxWeight:
			return nil, cure.Errorf("%.80q is no weight; write CLUSTER=NUMBER for each cluster, numbers from 0 to %d, for example home=90,b=10", part, maxWeight)
		case twice:
			return nil, cure.Errorf("%.70s has two weights; write one", name)
		case len(all) == maxWeights:
			return nil, cure.Errorf("more than %d weights; leave out clusters that get no traffic", maxWeights)
		}
		all[name] = w
		sum += w
	}
	if sum == 0 {
		return nil, cure.Errorf("all weights are 0, so no cluster would answer; give one of them more")
	}
	return all, nil
}

// resolve replaces names by IDs. Unknown are those that no member has.
func resolve(named map[string]uint64, own peer.ID, links map[peer.ID]peer.Link) (byID map[string]uint64, unknown []string, err error) {
	byID = map[string]uint64{}
	for _, name := range slices.Sorted(maps.Keys(named)) {
		id := peer.ID(name)
		if name == home {
			id = own
		} else if _, member := links[id]; !member {
			var of []peer.ID
			for _, l := range links {
				if l.Name == name {
					of = append(of, l.ID)
				}
			}
			switch len(of) {
			case 0:
				unknown = append(unknown, name)
				continue
			case 1:
				id = of[0]
			default:
				return nil, nil, cure.Errorf("%d peers are named %.70s; write the ID of the one that you mean, see rivulet peers -o wide", len(of), name)
			}
		}
		if _, twice := byID[string(id)]; twice {
			return nil, nil, cure.Errorf("%.70s has two weights, by name and by ID; write one", name)
		}
		byID[string(id)] = named[name]
	}
	return byID, unknown, nil
}

// weigh reads the weights of an import from its annotation.
func (c *controller) weigh(m *merged) {
	obj, ok, _ := c.watches.own[mcs.ServiceImportKindName].GetStore().GetByKey(m.Namespace + "/" + m.Name)
	if !ok {
		return
	}
	text := obj.(*unstructured.Unstructured).GetAnnotations()[WeightsAnnotation]
	if text == "" {
		return
	}
	m.Weighing = fmt.Sprintf("%.512s", text)
	named, err := parseWeights(text)
	var unknown []string
	if err == nil && m.Spec.Type == mcs.Headless {
		err = cure.Errorf("a headless Service has no address whose traffic could be distributed; remove the annotation %s", WeightsAnnotation)
	}
	if err == nil {
		m.Weights, unknown, err = resolve(named, c.ID, c.links())
	}
	if err != nil {
		m.WeighingFault = err.Error()
	} else if len(unknown) > 0 {
		m.WeighingFault = "no peer that takes part is named " + strings.Join(unknown, ", ") + ", so the others get its share; write home for this cluster, or the name or ID of a peer in rivulet services"
	}
}

// weightedCondition is that of an import with weights.
func (m merged) weightedCondition() (metav1.Condition, bool) {
	out := metav1.Condition{Type: conditionWeighted, Status: metav1.ConditionTrue, Reason: "Applied", Message: "the weights are in force while their clusters have ready endpoints"}
	switch {
	case m.Weights == nil:
		out.Status, out.Reason, out.Message = metav1.ConditionFalse, "Invalid", m.WeighingFault
	case m.WeighingFault != "":
		out.Reason, out.Message = "ClusterUnknown", m.WeighingFault
	}
	return out, m.Weighing != ""
}

// splits are the ports of an import at an address whose traffic several clusters share by weight. One alone needs no
// rules but kube-proxy's.
func (m merged) splits(address string, sites map[string]site) (out []weights.Service) {
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return nil
	}
	for _, p := range m.Spec.Ports {
		shared := m.weighted(p, sites)
		if len(shared) < 2 {
			continue
		}
		s := weights.Service{Addr: netip.AddrPortFrom(ip, uint16(p.Port)), Protocol: p.Protocol, Sticky: m.Spec.SessionAffinity == corev1.ServiceAffinityClientIP}
		for _, x := range m.Contributions {
			if w := shared[x.Cluster]; w > 0 {
				part := weights.Part{Weight: w, Endpoints: x.readyAt(p)}
				slices.SortFunc(part.Endpoints, netip.AddrPort.Compare)
				s.Parts = append(s.Parts, part)
			}
		}
		out = append(out, s)
	}
	return out
}
