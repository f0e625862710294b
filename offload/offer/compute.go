package offer

import (
	"maps"
	"runtime"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	helpers "k8s.io/component-helpers/resource"

	"rivulet/fabric/peer"
	"rivulet/offload/policy"
)

// Share bounds what consumers of one kind may use together. The zero value lends everything that is free.
type Share struct {
	// CPU and Memory are parts of the allocatable, 1 to 100 percent; 0 is 100, Nothing is 0.
	CPU, Memory int
	// MaxPods bounds the number of pods; 0 is no bound, Nothing is 0.
	MaxPods int64
}

// Nothing lends nothing, whereas the zero value lends all.
const Nothing = -1

// Shares are those of peers, and of the virtual clusters of this device.
type Shares struct{ Peers, Hosted Share }

// Pool represents all virtual clusters of this device where consumers are divided by their IDs: they share one part. No
// cluster has this ID.
const Pool peer.ID = "virtual-clusters"

// Member are the bounds of one virtual cluster.
type Member struct {
	// Most bounds what it may use, Least is reserved for it from the part of all of them; resources that are not listed
	// are not bounded.
	Most, Least corev1.ResourceList
	// Groups are those that it is in.
	Groups []Group
	// Ports are the only ones of the LAN that it may get; none: all that are lent.
	Ports Ports
	// Plane is the memory of its control plane in bytes: no pod requests it, and it is not lent to peers.
	Plane int64
}

// Group bounds several virtual clusters together: a course, or a department with its courses.
type Group struct {
	Name string `json:"name"`
	// Cap bounds their requests (cpu, memory, pods); resources that are not listed are not bounded.
	Cap corev1.ResourceList `json:"cap,omitempty"`
}

// None reports whether nothing is lent: a pod needs CPU, memory and a place.
func (s Share) None() bool {
	return s.CPU == Nothing || s.Memory == Nothing || s.MaxPods == Nothing
}

// lent are the resources of an offer, in addition to extended ones (GPUs and the like).
var lent = []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, corev1.ResourcePods}

// room is one node with the resources that this cluster's own pods leave.
type room struct {
	node *corev1.Node
	free corev1.ResourceList
	// closed: the node accepts no more pods. It lends what tenants use there and no more, so that admitted ones are not
	// evicted.
	closed  bool
	tenants corev1.ResourceList
}

// Room is what this cluster lends to all consumers together, and what each of them uses of it.
type Room struct {
	// Platforms are those of this cluster's nodes, the one that lends most first; none while no node can run pods.
	Platforms []Lending
	Offer     Offer
	// Members are the consumers that are virtual clusters of this device.
	Members map[peer.ID]Member
	// HostOf returns the peer whose virtual cluster a consumer is, "" for others; nil: there are none.
	HostOf func(peer.ID) peer.ID
	nodes  map[string]Platform
}

// Lending is what is lent of one platform.
type Lending struct {
	// Lent is all that consumers may use, Peers and Hosted the bound on it for those of one kind.
	Lent, Peers, Hosted corev1.ResourceList
	// Use are the requests of each consumer's pods, those without a node included, as the API server's quota counts
	// them.
	Use map[peer.ID]corev1.ResourceList
	// Offer is the offer without Allocatable.
	Offer PlatformOffer
}

// Measure computes what can be lent: for the real nodes that may run tenants, are Ready and accept their pods, their allocatable less the
// requests of this cluster's own pods on them, within the share. Tenants are the pods labelled with a consumer's ID
// (policy.OriginLabel); tenancy ensures that the label is true. Own pods that are not scheduled yet use nothing.
//
// Platforms are computed separately: an image cannot use the capacity of another one.
func (t *Tally) Measure(nodes []*corev1.Node, shares Shares, members map[peer.ID]Member) Room {
	m := Room{nodes: map[string]Platform{}, Members: members}
	rooms := map[string]*room{}
	unready := 0
	for _, n := range nodes {
		if _, virtual := n.Labels[policy.VirtualNodeLabel]; virtual {
			continue
		}
		if n.Labels[policy.WorkerLabel] == policy.WorkerPlain {
			continue
		}
		if !ready(n) {
			unready++
		}
		rooms[n.Name] = &room{node: n, free: pick(n.Status.Allocatable), tenants: corev1.ResourceList{},
			closed: !ready(n) || n.Spec.Unschedulable || n.DeletionTimestamp != nil || tainted(n)}
		m.nodes[n.Name] = platformOf(n)
	}
	closed := 0
	for _, r := range rooms {
		if r.closed {
			closed++
		}
	}
	tenants := map[group]corev1.ResourceList{}
	t.each(func(g group, asked corev1.ResourceList) {
		r, here := rooms[g.node]
		if g.tenant {
			tenants[g] = asked
			if here {
				add(r.tenants, asked)
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
	planes := int64(0)
	for _, one := range members {
		planes += one.Plane
	}
	m.lend(rooms, shares, planes)
	for g, asked := range tenants {
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
	for _, kind := range []struct {
		share Share
		most  func(*Lending) corev1.ResourceList
		is    bool
	}{{shares.Peers, func(l *Lending) corev1.ResourceList { return l.Peers }, false}, {shares.Hosted, func(l *Lending) corev1.ResourceList { return l.Hosted }, true}} {
		m.boundPods(kind.share, kind.most, kind.is)
	}
	return m
}

// lend sums up the rooms of each platform.
func (m *Room) lend(rooms map[string]*room, shares Shares, planes int64) {
	byPlatform := map[Platform][]*room{}
	for _, r := range rooms {
		clamp(r.free)
		if r.closed {
			r.free = r.tenants
		}
		p := platformOf(r.node)
		byPlatform[p] = append(byPlatform[p], r)
	}
	for p, members := range byPlatform {
		if p.Architecture == "" && len(byPlatform) > 1 {
			continue // just registered, without a platform yet
		}
		l := lending(p, members, shares)
		if p.Architecture == runtime.GOARCH { // control planes run on this device
			left := l.Lent.DeepCopy()
			sub(left, corev1.ResourceList{corev1.ResourceMemory: *resource.NewQuantity(planes, resource.BinarySI)})
			clamp(left)
			least(l.Peers, left)
		}
		m.Platforms = append(m.Platforms, l)
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

func lending(p Platform, rooms []*room, shares Shares) Lending {
	l := Lending{Lent: corev1.ResourceList{}, Use: map[peer.ID]corev1.ResourceList{}}
	allocatable := corev1.ResourceList{}
	var biggest *room // of the open ones, if any is
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
	clamp(l.Lent)
	l.Peers, l.Hosted = bounded(l.Lent, allocatable, shares.Peers), bounded(l.Lent, allocatable, shares.Hosted)
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

// cannotRun is why none of some nodes accepts pods.
func cannotRun(whose string, all, unready int) string {
	switch {
	case all == 0:
		return whose + " has no nodes"
	case all == unready:
		return "no node of " + whose + " is Ready"
	}
	return "no node of " + whose + " takes pods"
}

// index finds the platform on which tenants run, or have to run.
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
	return m.total(func(l Lending) corev1.ResourceList { return l.Lent })
}

// Use are the requests of the consumer's pods, those without a node included.
func (m Room) Use(id peer.ID) corev1.ResourceList {
	return m.total(func(l Lending) corev1.ResourceList { return l.Use[id] })
}

func (m Room) total(of func(Lending) corev1.ResourceList) corev1.ResourceList {
	all := corev1.ResourceList{}
	for _, l := range m.Platforms {
		add(all, of(l))
	}
	return all
}

// Account is the key of a consumer where what is lent is divided: a virtual cluster of a peer uses that peer's part.
func (m Room) Account(id peer.ID) peer.ID {
	if _, hosted := m.Members[id]; hosted {
		return Pool
	}
	if m.HostOf != nil {
		if host := m.HostOf(id); host != "" {
			return host
		}
	}
	return id
}

// divided is the room of each platform, divided among the consumers with a place here: peers, and Pool for all virtual
// clusters. A consumer that uses one platform has a place on all.
func (m Room) divided(known ...peer.ID) (out []map[peer.ID]corev1.ResourceList) {
	for _, l := range m.Platforms {
		known = slices.AppendSeq(known, maps.Keys(l.Use))
	}
	for _, l := range m.Platforms {
		peers, pool := map[peer.ID]corev1.ResourceList{}, corev1.ResourceList(nil)
		for _, id := range known {
			if account := m.Account(id); account != Pool {
				peers[account] = corev1.ResourceList{}
			} else if pool == nil {
				pool = corev1.ResourceList{}
			}
		}
		for id, use := range l.Use {
			if account := m.Account(id); account != Pool {
				add(peers[account], use)
			} else {
				add(pool, use)
			}
		}
		part := l.Peers
		if pool != nil {
			part = corev1.ResourceList{}
			pool = l.parted(peers, pool, part)
		}
		parts := Divide(part, peers)
		if pool != nil {
			parts[Pool] = pool
		}
		out = append(out, parts)
	}
	return out
}

// parted divides what is lent between peers and virtual clusters, as between two consumers. But pods of virtual
// clusters are the owner's own, and are never handed back for a peer's. It writes the peers' part.
func (l Lending) parted(peers map[peer.ID]corev1.ResourceList, pool, part corev1.ResourceList) corev1.ResourceList {
	out, theirs := corev1.ResourceList{}, corev1.ResourceList{}
	for _, use := range peers {
		add(theirs, use)
	}
	for name, lent := range l.Lent {
		total, most := Amount(name, lent), [2]int64{Amount(name, l.Peers[name]), Amount(name, l.Hosted[name])}
		used := []int64{Amount(name, theirs[name]), Amount(name, pool[name])}
		if len(peers) == 0 {
			most[0] = 0
		}
		both := divideUpTo(total, used, map[int]int64{0: most[0], 1: most[1]})
		own := max(both[1], min(used[1], most[1], total))
		out[name], part[name] = Quantity(name, own), Quantity(name, min(both[0], total-own))
	}
	return out
}

// Parts divides the room among the consumers with a place here, each platform separately: a part is what the consumer
// may use of all of them. The virtual clusters of this device have one together, Pool.
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

// cap is what a virtual cluster may use at most of each platform.
func (m Room) cap(id peer.ID) (out []corev1.ResourceList) {
	left := m.Members[id].Most.DeepCopy()
	for _, l := range m.Platforms {
		most := l.Hosted.DeepCopy()
		for name, q := range left {
			if have, lent := most[name]; lent && q.Cmp(have) < 0 {
				most[name] = q.DeepCopy()
			}
		}
		clamp(most)
		sub(left, most)
		out = append(out, most)
	}
	return out
}

// Surplus chooses those of the consumer's pods that exceed its part of their platform, see Surplus; pods lists the
// unfinished ones, and is called if there may be any. For Pool it chooses the newest pods of all virtual clusters.
func (m Room) Surplus(consumer peer.ID, known []peer.ID, pods func() []*corev1.Pod) []*corev1.Pod {
	most := make([]corev1.ResourceList, len(m.Platforms))
	if consumer == Pool {
		for i, parts := range m.divided(known...) {
			most[i] = parts[Pool]
		}
	} else {
		for i, p := range m.For(consumer, known).Platforms {
			most[i] = p.Allocatable
		}
	}
	fits := true
	for i, l := range m.Platforms {
		use := l.Use[consumer]
		if _, member := m.Members[consumer]; !member {
			use = corev1.ResourceList{}
			for id, one := range l.Use {
				if m.Account(id) == consumer {
					add(use, one)
				}
			}
		}
		for name, used := range use {
			most, bounded := most[i][name]
			fits = fits && (!bounded || used.Cmp(most) <= 0)
		}
	}
	if fits {
		return nil
	}
	byPlatform := make([][]*corev1.Pod, len(m.Platforms))
	for _, p := range pods() {
		if i := m.index(groupOf(p)); i >= 0 {
			byPlatform[i] = append(byPlatform[i], p)
		}
	}
	var out []*corev1.Pod
	for i := range m.Platforms {
		out = append(out, Surplus(most[i], byPlatform[i])...)
	}
	return out
}

// For is the offer to one consumer. One without a place here yet gets what it would have with one. A virtual cluster
// gets what it may use at most; how much of that is free depends on the others.
func (m Room) For(consumer peer.ID, known []peer.ID) Offer {
	o := m.Offer
	if !o.Ready {
		return o
	}
	var most []corev1.ResourceList
	if m.Account(consumer) == Pool {
		most = m.cap(consumer)
	} else {
		for _, parts := range m.divided(append([]peer.ID{consumer}, known...)...) {
			most = append(most, parts[m.Account(consumer)])
		}
	}
	for i, l := range m.Platforms {
		p := l.Offer
		p.Allocatable = most[i]
		o.Platforms = append(o.Platforms, p)
	}
	return o.withFirst()
}

// bounded is what is lent of one platform, within the share of the allocatable; boundPods bounds pods, for all
// platforms together.
func bounded(lent, allocatable corev1.ResourceList, share Share) corev1.ResourceList {
	limit := corev1.ResourceList{}
	if share.CPU != 0 && share.CPU < 100 {
		cpu := allocatable[corev1.ResourceCPU]
		limit[corev1.ResourceCPU] = *resource.NewMilliQuantity(cpu.MilliValue()*int64(max(share.CPU, 0))/100, resource.DecimalSI)
	}
	if share.Memory != 0 && share.Memory < 100 {
		memory := allocatable[corev1.ResourceMemory]
		limit[corev1.ResourceMemory] = *resource.NewQuantity(memory.Value()*int64(max(share.Memory, 0))/100, resource.BinarySI)
	}
	nothing, out := share.None(), lent.DeepCopy()
	for name, have := range lent {
		if most, bounded := limit[name]; bounded && have.Cmp(most) > 0 {
			out[name] = most
		} else if nothing && extended(name) {
			out[name] = *resource.NewQuantity(0, resource.DecimalSI)
		}
	}
	return out
}

// tainted reports whether the owner keeps pods off the node that do not tolerate it: those of tenants tolerate no taint
// (offload/provider/tenancy, pods.yaml). Taints of Kubernetes itself follow the conditions of a node, or pass with what
// they stand for.
func tainted(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool {
		return t.Effect != corev1.TaintEffectPreferNoSchedule && !strings.HasPrefix(t.Key, "node.kubernetes.io/")
	})
}

func ready(n *corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// Requests is what the scheduler counts for the pod: containers, the highest of the init containers, sidecars,
// overhead, and resizes under way.
func Requests(p *corev1.Pod) corev1.ResourceList {
	if list, ok := summed(p); ok {
		return list
	}
	list := requested(p)
	list[corev1.ResourcePods] = *resource.NewQuantity(1, resource.DecimalSI)
	return list
}

// requested are the requests of resources of an offer, without the pod itself.
func requested(p *corev1.Pod) corev1.ResourceList {
	return pick(helpers.PodRequests(p, helpers.PodResourcesOptions{UseStatusResources: true}))
}

// summed are the requests of a pod that trim has reduced.
func summed(p *corev1.Pod) (corev1.ResourceList, bool) {
	if len(p.Spec.Containers) != 1 || p.Spec.Containers[0].Name != summedUp {
		return nil, false
	}
	list := maps.Clone(p.Spec.Containers[0].Resources.Requests)
	list[corev1.ResourcePods] = *resource.NewQuantity(1, resource.DecimalSI)
	return list, true
}

// summedUp is the name of the container that trim leaves: it is not a valid name.
const summedUp = "*"

// more orders by CPU, then memory; first decides a tie, so that the order of a map has no effect.
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

// least lowers a list to another one.
func least(list, most corev1.ResourceList) {
	for name, q := range list {
		if bound, ok := most[name]; ok && bound.Cmp(q) < 0 {
			list[name] = bound
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
