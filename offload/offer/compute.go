package offer

import (
	"maps"
	"slices"

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

// None reports whether nothing is lent: no pod runs without CPU, memory and a place.
func (s Share) None() bool {
	return s.CPU == Nothing || s.Memory == Nothing || s.MaxPods == Nothing
}

// lent are the resources of an offer, beside the extended ones (GPUs and the like).
var lent = []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, corev1.ResourcePods}

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
	// Platforms are those that this cluster has nodes of, the one that lends most first;
	// none while it can run nothing.
	Platforms []Lending
	// Offer has Ready and Reason.
	Offer Offer
	// Most bounds what single consumers get of all platforms together.
	Most  map[peer.ID]corev1.ResourceList
	nodes map[string]Platform
}

// Lending is what is lent of one platform.
type Lending struct {
	// Lent is all that consumers may use.
	Lent corev1.ResourceList
	// Use is what each consumer's pods ask for, those that have no node yet included, as
	// the API server's quota counts them.
	Use map[peer.ID]corev1.ResourceList
	// Offer is the offer but for Allocatable.
	Offer PlatformOffer
}

// Measure says what there is to lend: of the real nodes that are Ready and take
// pods, their allocatable less the requests of this cluster's own pods on them,
// within the share. Guests are the pods labelled with a consumer's ID
// (policy.OriginLabel); tenancy sees to it that the label is true. Own pods that
// are not scheduled yet take nothing.
//
// Nodes of different platforms are measured apart: room that an image cannot run in
// is no room.
func Measure(nodes []*corev1.Node, pods []*corev1.Pod, share Share) Room {
	return NewTally(pods...).Measure(nodes, share)
}

// Measure is the one above, of the pods that were summed up.
func (t *Tally) Measure(nodes []*corev1.Node, share Share) Room {
	m := Room{nodes: map[string]Platform{}}
	rooms := map[string]*room{}
	unready := 0
	for _, n := range nodes {
		if _, virtual := n.Labels[policy.VirtualNodeLabel]; virtual {
			continue
		}
		if !ready(n) {
			unready++
		}
		rooms[n.Name] = &room{node: n, free: pick(n.Status.Allocatable), guests: corev1.ResourceList{},
			closed: !ready(n) || n.Spec.Unschedulable || n.DeletionTimestamp != nil}
		m.nodes[n.Name] = platformOf(n)
	}
	closed := 0
	for _, r := range rooms {
		if r.closed {
			closed++
		}
	}
	guests := map[group]corev1.ResourceList{}
	t.each(func(g group, asked corev1.ResourceList) {
		r, here := rooms[g.node]
		if g.guest {
			guests[g] = asked
			if here {
				add(r.guests, asked)
			}
		} else if here {
			sub(r.free, asked)
		}
	})
	if closed == len(rooms) {
		m.Offer.Reason = cannotRun("the provider", len(rooms), unready)
		return m
	}
	m.Offer.Ready = true
	m.lend(rooms, share)
	for g, asked := range guests {
		i := m.index(g)
		if i < 0 {
			continue // made for a platform that is not here: they use nothing
		}
		use := m.Platforms[i].Use
		if use[g.origin] == nil {
			use[g.origin] = corev1.ResourceList{}
		}
		add(use[g.origin], asked)
	}
	boundPods(m.Platforms, share)
	return m
}

// lend sums up the rooms of each platform.
func (m *Room) lend(rooms map[string]*room, share Share) {
	byPlatform := map[Platform][]*room{}
	for _, r := range rooms {
		clamp(r.free)
		if r.closed {
			r.free = r.guests
		}
		p := platformOf(r.node)
		byPlatform[p] = append(byPlatform[p], r)
	}
	for p, members := range byPlatform {
		if p.Architecture == "" && len(byPlatform) > 1 {
			continue // they have just registered and will say
		}
		m.Platforms = append(m.Platforms, lending(p, members, share))
	}
	slices.SortFunc(m.Platforms, func(a, b Lending) int {
		switch {
		case a.Offer.Ready != b.Offer.Ready:
			if a.Offer.Ready {
				return -1
			}
			return 1
		case more(a.Lent, b.Lent, a.Offer.Platform.String() < b.Offer.Platform.String()):
			return -1
		}
		return 1
	})
}

func lending(p Platform, rooms []*room, share Share) Lending {
	l := Lending{Lent: corev1.ResourceList{}, Use: map[peer.ID]corev1.ResourceList{}}
	allocatable := corev1.ResourceList{}
	var biggest *room // of those that take pods, if any do
	var open, all []*corev1.Node
	unready := 0
	for _, r := range rooms {
		add(l.Lent, r.free)
		// Closed nodes too: a share does not shrink because a node is away for a moment.
		add(allocatable, pick(r.node.Status.Allocatable))
		all = append(all, r.node)
		if !r.closed {
			open = append(open, r.node)
		}
		if !ready(r.node) {
			unready++
		}
		if biggest == nil || biggest.closed && !r.closed || biggest.closed == r.closed && more(r.free, biggest.free, r.node.Name < biggest.node.Name) {
			biggest = r
		}
	}
	bound(l.Lent, allocatable, share)
	info := biggest.node.Status.NodeInfo
	l.Offer = PlatformOffer{Platform: p,
		KubeVersion: info.KubeletVersion, KernelVersion: info.KernelVersion, OSImage: info.OSImage, Runtime: info.ContainerRuntimeVersion,
		Ready: true}
	if len(open) > 0 {
		all = open
	} else {
		l.Offer.Ready, l.Offer.Reason = false, cannotRun("the provider's platform "+p.String(), len(rooms), unready)
	}
	l.Offer.Labels = common(all)
	return l
}

// cannotRun says why none of some nodes takes pods.
func cannotRun(whose string, all, unready int) string {
	switch {
	case all == 0:
		return whose + " has no nodes"
	case all == unready:
		return "no node of " + whose + " is Ready"
	}
	return "no node of " + whose + " takes pods"
}

// index finds the platform on which guests run, or have to.
func (m Room) index(g group) int {
	return slices.IndexFunc(m.Platforms, func(l Lending) bool {
		if own, here := m.nodes[g.node]; here {
			return l.Offer.Platform == own
		}
		return (g.os == "" || g.os == l.Offer.OS) && (g.architecture == "" || g.architecture == l.Offer.Architecture)
	})
}

// Lent is what consumers may use of all platforms together.
func (m Room) Lent() corev1.ResourceList {
	all := corev1.ResourceList{}
	for _, l := range m.Platforms {
		add(all, l.Lent)
	}
	return all
}

// divided is the room of each platform, divided among the consumers that have a place here. Who
// uses one platform has a place on all.
func (m Room) divided(known ...peer.ID) (out []map[peer.ID]corev1.ResourceList) {
	most := map[peer.ID]corev1.ResourceList{}
	for id, limit := range m.Most {
		most[id] = limit.DeepCopy()
	}
	for _, l := range m.Platforms {
		known = slices.AppendSeq(known, maps.Keys(l.Use))
	}
	for _, l := range m.Platforms {
		use := maps.Clone(l.Use)
		for _, id := range known {
			if use[id] == nil {
				use[id] = corev1.ResourceList{}
			}
		}
		parts := Divide(l.Lent, use, most)
		for id, left := range most {
			sub(left, parts[id])
		}
		out = append(out, parts)
	}
	return out
}

// Parts divides the room among the consumers that have a place here, each platform
// by itself: a part is what the consumer may use of all of them.
func (m Room) Parts(known []peer.ID) map[peer.ID]corev1.ResourceList {
	parts := map[peer.ID]corev1.ResourceList{}
	for _, platform := range m.divided(slices.Clone(known)...) {
		for id, part := range platform {
			if parts[id] == nil {
				parts[id] = corev1.ResourceList{}
			}
			add(parts[id], part)
		}
	}
	return parts
}

// Fits reports that none of the consumer's pods are too many, so that nobody has to look
// at each: Surplus would pick none.
func (m Room) Fits(consumer peer.ID, known []peer.ID) bool {
	offer := m.For(consumer, known)
	for i, p := range offer.Platforms {
		for name, used := range m.Platforms[i].Use[consumer] {
			if most, bounded := p.Allocatable[name]; bounded && used.Cmp(most) > 0 {
				return false
			}
		}
	}
	return true
}

// Surplus picks those of the consumer's pods that are too many for its part of the
// platform they are on, see Surplus. The pods are those that have not finished.
func (m Room) Surplus(consumer peer.ID, known []peer.ID, pods []*corev1.Pod) []*corev1.Pod {
	byPlatform := make([][]*corev1.Pod, len(m.Platforms))
	for _, p := range pods {
		if i := m.index(groupOf(p)); i >= 0 {
			byPlatform[i] = append(byPlatform[i], p)
		}
	}
	var out []*corev1.Pod
	offer := m.For(consumer, known)
	for i := range offer.Platforms {
		out = append(out, Surplus(offer.Platforms[i].Allocatable, byPlatform[i])...)
	}
	return out
}

// For is the offer to one consumer. One that has no place here yet hears what it
// would get if it came.
func (m Room) For(consumer peer.ID, known []peer.ID) Offer {
	o := m.Offer
	if !o.Ready {
		return o
	}
	parts := m.divided(append([]peer.ID{consumer}, known...)...)
	for i, l := range m.Platforms {
		p := l.Offer
		p.Allocatable = parts[i][consumer]
		o.Platforms = append(o.Platforms, p)
	}
	return o.withFirst()
}

// Compute returns what the consumer may use in all, beside the other known ones.
func Compute(nodes []*corev1.Node, pods []*corev1.Pod, consumer peer.ID, known []peer.ID, share Share) Offer {
	return Measure(nodes, pods, share).For(consumer, known)
}

// bound lowers what is lent of one platform to the share of the allocatable; pods
// are bounded for all platforms together, by boundPods.
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
	nothing := share.None()
	for name, have := range lent {
		if most, bounded := limit[name]; bounded && have.Cmp(most) > 0 {
			lent[name] = most
		} else if nothing && extended(name) {
			lent[name] = *resource.NewQuantity(0, resource.DecimalSI)
		}
	}
	clamp(lent)
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
	if list, ok := summed(p); ok {
		return list
	}
	list := asked(p)
	list[corev1.ResourcePods] = *resource.NewQuantity(1, resource.DecimalSI)
	return list
}

// asked are the requests of what an offer has, but for the pod as such.
func asked(p *corev1.Pod) corev1.ResourceList {
	return pick(helpers.PodRequests(p, helpers.PodResourcesOptions{UseStatusResources: true}))
}

// summed is what asked has found of a pod that trim has been at.
func summed(p *corev1.Pod) (corev1.ResourceList, bool) {
	if len(p.Spec.Containers) != 1 || p.Spec.Containers[0].Name != summedUp {
		return nil, false
	}
	list := maps.Clone(p.Spec.Containers[0].Resources.Requests)
	list[corev1.ResourcePods] = *resource.NewQuantity(1, resource.DecimalSI)
	return list, true
}

// summedUp is the name of the container that trim leaves: no pod has one of this name.
const summedUp = "*"

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
