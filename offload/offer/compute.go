package offer

import (
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	helpers "k8s.io/component-helpers/resource"

	"rivulet/fabric/peer"
	"rivulet/offload/policy"
)

// Share bounds what all consumers together may use. The zero value lends
// everything that is free.
type Share struct {
	// CPU and Memory are parts of the allocatable, 1 to 100 percent; 0 is 100, Nothing is 0.
	CPU, Memory int
	// MaxPods bounds the number of pods; 0 is no bound, Nothing is 0.
	MaxPods int64
}

// Nothing lends nothing, where the zero value lends all.
const Nothing = -1

// lent are the resources of an offer, beside the extended ones (GPUs and the like).
var lent = []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, corev1.ResourcePods}

// platform is what a pod's image has to fit.
type platform struct{ os, arch string }

// room is one node and what is not taken there by this cluster's own pods.
type room struct {
	node *corev1.Node
	free corev1.ResourceList
	// closed says that the node takes no more pods: it lends what guests have there
	// and no more, so that who was let in is not asked to leave.
	closed bool
	guests corev1.ResourceList
}

// Room is what this cluster lends to all consumers together, and what each of
// them uses of it.
type Room struct {
	// Lent is all that consumers may use: of the platform that lends most.
	Lent corev1.ResourceList
	// Use is what each consumer's pods ask for, those of all platforms and those
	// that have no node yet included, as the API server's quota counts them.
	Use map[peer.ID]corev1.ResourceList
	// Offer is the offer but for Allocatable.
	Offer Offer
}

// Measure says what there is to lend: of the real nodes that are Ready and take
// pods, their allocatable less the requests of this cluster's own pods on them,
// within the share. Guests are the pods labelled with a consumer's ID
// (policy.OriginLabel); tenancy sees to it that the label is true. Own pods that
// are not scheduled yet take nothing.
//
// An offer speaks of one platform. Where nodes differ it is the one with most
// CPU to lend, and the others are left out: room that an image cannot run in is
// no room.
func Measure(nodes []*corev1.Node, pods []*corev1.Pod, share Share) Room {
	m := Room{Use: map[peer.ID]corev1.ResourceList{}}
	rooms := map[string]*room{}
	real, unready := 0, 0
	for _, n := range nodes {
		if _, virtual := n.Labels[policy.VirtualNodeLabel]; virtual {
			continue
		}
		real++
		if !ready(n) {
			unready++
		}
		rooms[n.Name] = &room{node: n, free: pick(n.Status.Allocatable), guests: corev1.ResourceList{},
			closed: !ready(n) || n.Spec.Unschedulable || n.DeletionTimestamp != nil}
	}
	closed := 0
	for _, r := range rooms {
		if r.closed {
			closed++
		}
	}
	for _, p := range pods {
		if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		r, here := rooms[p.Spec.NodeName]
		origin, guest := p.Labels[policy.OriginLabel]
		if !here && !guest {
			continue
		}
		asked := Requests(p)
		if !guest {
			sub(r.free, asked)
			continue
		}
		if m.Use[peer.ID(origin)] == nil {
			m.Use[peer.ID(origin)] = corev1.ResourceList{}
		}
		add(m.Use[peer.ID(origin)], asked)
		if here {
			add(r.guests, asked)
		}
	}
	if closed == len(rooms) {
		m.Offer.Reason = "the provider has no nodes"
		switch {
		case real > 0 && unready == real:
			m.Offer.Reason = "no node of the provider is Ready"
		case real > 0:
			m.Offer.Reason = fmt.Sprintf("no node of the provider takes pods: %d not Ready, %d cordoned", unready, real-unready)
		}
		return m
	}
	m.describe(rooms, share)
	return m
}

// describe sums up the rooms of the platform that lends most.
func (m *Room) describe(rooms map[string]*room, share Share) {
	byPlatform := map[platform]corev1.ResourceList{}
	biggest := map[platform]*room{}
	for _, r := range rooms {
		p := platform{r.node.Status.NodeInfo.OperatingSystem, r.node.Status.NodeInfo.Architecture}
		clamp(r.free)
		if r.closed {
			r.free = r.guests
		}
		if byPlatform[p] == nil {
			byPlatform[p] = corev1.ResourceList{}
		}
		add(byPlatform[p], r.free)
		if b := biggest[p]; !r.closed && (b == nil || more(r.free, b.free, r.node.Name < b.node.Name)) {
			biggest[p] = r
		}
	}
	var best platform
	for p := range biggest {
		if best == (platform{}) || more(byPlatform[p], byPlatform[best], p.os+p.arch < best.os+best.arch) {
			best = p
		}
	}

	allocatable := corev1.ResourceList{}
	var members []*corev1.Node
	for _, r := range rooms {
		if (platform{r.node.Status.NodeInfo.OperatingSystem, r.node.Status.NodeInfo.Architecture}) == best {
			// Closed nodes too: a share does not shrink because a node is away for a moment.
			add(allocatable, pick(r.node.Status.Allocatable))
			if !r.closed {
				members = append(members, r.node)
			}
		}
	}
	m.Lent = byPlatform[best]
	bound(m.Lent, allocatable, share)

	info := biggest[best].node.Status.NodeInfo
	m.Offer = Offer{
		Architecture: best.arch, OS: best.os,
		KubeVersion: info.KubeletVersion, KernelVersion: info.KernelVersion, OSImage: info.OSImage, Runtime: info.ContainerRuntimeVersion,
		Labels: topology(members), Ready: true,
	}
}

// Parts divides the room among the consumers that have a place here.
func (m Room) Parts(known []peer.ID) map[peer.ID]corev1.ResourceList {
	use := maps.Clone(m.Use)
	for _, id := range known {
		if use[id] == nil {
			use[id] = corev1.ResourceList{}
		}
	}
	return Divide(m.Lent, use)
}

// For is the offer to one consumer. One that has no place here yet hears what it
// would get if it came.
func (m Room) For(consumer peer.ID, known []peer.ID) Offer {
	o := m.Offer
	if o.Ready {
		o.Allocatable = m.Parts(append([]peer.ID{consumer}, known...))[consumer]
	}
	return o
}

// Compute returns what the consumer may use in all, beside the other known ones.
func Compute(nodes []*corev1.Node, pods []*corev1.Pod, consumer peer.ID, known []peer.ID, share Share) Offer {
	return Measure(nodes, pods, share).For(consumer, known)
}

// bound lowers what is lent to the share of the allocatable.
func bound(lent, allocatable corev1.ResourceList, share Share) {
	limit := corev1.ResourceList{}
	if share.CPU != 0 && share.CPU < 100 {
		cpu := allocatable[corev1.ResourceCPU]
		limit[corev1.ResourceCPU] = *resource.NewMilliQuantity(cpu.MilliValue()*int64(max(share.CPU, 0))/100, resource.DecimalSI)
	}
	if share.Memory != 0 && share.Memory < 100 {
		memory := allocatable[corev1.ResourceMemory]
		limit[corev1.ResourceMemory] = *resource.NewQuantity(memory.Value()*int64(max(share.Memory, 0))/100, resource.BinarySI)
	}
	if share.MaxPods != 0 {
		limit[corev1.ResourcePods] = *resource.NewQuantity(max(share.MaxPods, 0), resource.DecimalSI)
	}
	// Who lends neither CPU nor memory nor pods lends nothing else.
	nothing := share.CPU == Nothing || share.Memory == Nothing || share.MaxPods == Nothing
	for name, have := range lent {
		if most, bounded := limit[name]; bounded && have.Cmp(most) > 0 {
			lent[name] = most
		} else if nothing && extended(name) {
			lent[name] = *resource.NewQuantity(0, resource.DecimalSI)
		}
	}
	clamp(lent)
}

// topology returns the topology labels that all nodes agree on.
func topology(nodes []*corev1.Node) map[string]string {
	labels := map[string]string{}
	for _, key := range []string{corev1.LabelTopologyRegion, corev1.LabelTopologyZone} {
		value := nodes[0].Labels[key]
		for _, n := range nodes {
			if n.Labels[key] != value {
				value = ""
			}
		}
		if value != "" {
			labels[key] = value
		}
	}
	if len(labels) == 0 {
		return nil
	}
	return labels
}

func ready(n *corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// Requests is what the scheduler counts for the pod: containers, the highest of
// the init containers, sidecars, overhead, and resizes under way.
func Requests(p *corev1.Pod) corev1.ResourceList {
	asked := pick(helpers.PodRequests(p, helpers.PodResourcesOptions{UseStatusResources: true}))
	asked[corev1.ResourcePods] = *resource.NewQuantity(1, resource.DecimalSI)
	return asked
}

// more orders by CPU, then memory; first decides a tie, so that the order of a
// map never shows.
func more(a, b corev1.ResourceList, first bool) bool {
	if c := a.Cpu().Cmp(*b.Cpu()); c != 0 {
		return c > 0
	}
	if c := a.Memory().Cmp(*b.Memory()); c != 0 {
		return c > 0
	}
	return first
}

func pick(from corev1.ResourceList) corev1.ResourceList {
	list := corev1.ResourceList{}
	for _, name := range lent {
		if q, ok := from[name]; ok {
			list[name] = q.DeepCopy()
		}
	}
	for name, q := range from {
		if extended(name) {
			list[name] = q.DeepCopy()
		}
	}
	return list
}

func add(list, more corev1.ResourceList) {
	for name, q := range more {
		sum := list[name].DeepCopy()
		sum.Add(q)
		list[name] = sum
	}
}

func sub(list, less corev1.ResourceList) {
	for name, q := range less {
		if rest, ok := list[name]; ok {
			rest.Sub(q)
			list[name] = rest
		}
	}
}

func clamp(list corev1.ResourceList) {
	for name, q := range list {
		if q.Sign() < 0 {
			list[name] = *resource.NewQuantity(0, q.Format)
		}
	}
}
