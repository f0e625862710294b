package offer

import (
	"fmt"

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

// lent are the resources of an offer.
var lent = []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, corev1.ResourcePods}

// platform is what a pod's image has to fit.
type platform struct{ os, arch string }

// room is one node and what others than the consumer have asked of it.
type room struct {
	node *corev1.Node
	free corev1.ResourceList
}

// Compute returns what the consumer may use in all: of the real nodes that are
// Ready and take pods, their allocatable less the requests of everybody else's
// pods on them. The consumer's own pods are those labelled with its ID
// (policy.OriginLabel); tenancy sees to it that the label is true. Pods not yet
// scheduled take nothing.
//
// An offer speaks of one platform. Where nodes differ it is the one with most
// CPU to lend, and the others are left out: room that an image cannot run in is
// no room.
func Compute(nodes []*corev1.Node, pods []*corev1.Pod, consumer peer.ID, share Share) Offer {
	rooms := map[string]*room{}
	real, unready := 0, 0
	for _, n := range nodes {
		if _, virtual := n.Labels[policy.VirtualNodeLabel]; virtual {
			continue
		}
		real++
		if !ready(n) {
			unready++
		} else if !n.Spec.Unschedulable && n.DeletionTimestamp == nil {
			rooms[n.Name] = &room{node: n, free: pick(n.Status.Allocatable)}
		}
	}
	if len(rooms) == 0 {
		reason := "the provider has no nodes"
		switch {
		case real > 0 && unready == real:
			reason = "no node of the provider is Ready"
		case real > 0:
			reason = fmt.Sprintf("no node of the provider takes pods: %d not Ready, %d cordoned", unready, real-unready)
		}
		return Offer{Reason: reason}
	}

	guests := map[string]corev1.ResourceList{} // by node: pods of other consumers
	for _, p := range pods {
		r, here := rooms[p.Spec.NodeName]
		if !here || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		origin, guest := p.Labels[policy.OriginLabel]
		if origin == string(consumer) {
			continue
		}
		asked := requests(p)
		sub(r.free, asked)
		if guest {
			if guests[p.Spec.NodeName] == nil {
				guests[p.Spec.NodeName] = corev1.ResourceList{}
			}
			add(guests[p.Spec.NodeName], asked)
		}
	}
	return describe(rooms, guests, share)
}

// describe sums up the rooms of the platform that lends most.
func describe(rooms map[string]*room, guests map[string]corev1.ResourceList, share Share) Offer {
	byPlatform := map[platform]corev1.ResourceList{}
	biggest := map[platform]*room{}
	for _, r := range rooms {
		clamp(r.free)
		p := platform{r.node.Status.NodeInfo.OperatingSystem, r.node.Status.NodeInfo.Architecture}
		if byPlatform[p] == nil {
			byPlatform[p] = corev1.ResourceList{}
		}
		add(byPlatform[p], r.free)
		if b := biggest[p]; b == nil || more(r.free, b.free, r.node.Name < b.node.Name) {
			biggest[p] = r
		}
	}
	var best platform
	for p := range byPlatform {
		if best == (platform{}) || more(byPlatform[p], byPlatform[best], p.os+p.arch < best.os+best.arch) {
			best = p
		}
	}

	allocatable, used := corev1.ResourceList{}, corev1.ResourceList{}
	var members []*corev1.Node
	for name, r := range rooms {
		if (platform{r.node.Status.NodeInfo.OperatingSystem, r.node.Status.NodeInfo.Architecture}) == best {
			add(allocatable, pick(r.node.Status.Allocatable))
			add(used, guests[name])
			members = append(members, r.node)
		}
	}
	free := byPlatform[best]
	bound(free, allocatable, used, share)

	info := biggest[best].node.Status.NodeInfo
	return Offer{
		Allocatable: free, Architecture: best.arch, OS: best.os,
		KubeVersion: info.KubeletVersion, KernelVersion: info.KernelVersion, OSImage: info.OSImage, Runtime: info.ContainerRuntimeVersion,
		Labels: topology(members), Ready: true,
	}
}

// bound lowers free to what share leaves after other consumers' use.
func bound(free, allocatable, used corev1.ResourceList, share Share) {
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
	for name, most := range limit {
		most.Sub(used[name])
		if have := free[name]; have.Cmp(most) > 0 {
			free[name] = most
		}
	}
	clamp(free)
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

// requests is what the scheduler counts for the pod: containers, the highest of
// the init containers, sidecars, overhead, and resizes under way.
func requests(p *corev1.Pod) corev1.ResourceList {
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
