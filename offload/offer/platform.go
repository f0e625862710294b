package offer

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Platform is what a pod's image has to match, as GOOS and GOARCH.
type Platform struct {
	OS           string `json:"os"`
	Architecture string `json:"architecture"`
}

func (p Platform) String() string { return p.OS + "/" + p.Architecture }

func platformOf(n *corev1.Node) Platform {
	return Platform{n.Status.NodeInfo.OperatingSystem, n.Status.NodeInfo.Architecture}
}

// PlatformOffer is what is lent of one platform. The fields are those of Offer.
type PlatformOffer struct {
	Platform
	Allocatable   corev1.ResourceList `json:"allocatable"`
	KubeVersion   string              `json:"kubeVersion,omitempty"`
	KernelVersion string              `json:"kernelVersion,omitempty"`
	OSImage       string              `json:"osImage,omitempty"`
	Runtime       string              `json:"runtime,omitempty"`
	Labels        map[string]string   `json:"labels,omitempty"`
	Ready         bool                `json:"ready"`
	Reason        string              `json:"reason,omitempty"`
}

// withFirst copies the first platform to the fields for consumers that support only one.
func (o Offer) withFirst() Offer {
	if len(o.Platforms) == 0 {
		return o
	}
	p := o.Platforms[0]
	o.OS, o.Architecture, o.Allocatable, o.Labels = p.OS, p.Architecture, p.Allocatable, p.Labels
	o.KubeVersion, o.KernelVersion, o.OSImage, o.Runtime = p.KubeVersion, p.KernelVersion, p.OSImage, p.Runtime
	return o
}

// Platform is that of the offer's own fields.
func (o Offer) Platform() Platform { return Platform{o.OS, o.Architecture} }

// Split makes an offer of each platform, in order. For a target that does not distinguish platforms it is the offer
// itself, and without any platform nothing.
func (o Offer) Split() []Offer {
	if len(o.Platforms) == 0 {
		if o.Architecture == "" {
			return nil
		}
		return []Offer{o}
	}
	var out []Offer
	for _, p := range o.Platforms {
		one := o
		one.Platforms = []PlatformOffer{p}
		one = one.withFirst()
		if one.Platforms = nil; o.Ready { // otherwise none is ready
			one.Ready, one.Reason = p.Ready, p.Reason
		}
		out = append(out, one)
	}
	return out
}

// boundPods lowers the pods of consumers of one kind, on all platforms together, to their share: used ones stay, and
// the rest is divided equally.
func (m Room) boundPods(share Share, of func(*Lending) corev1.ResourceList, hosted bool) {
	if share.MaxPods == 0 {
		return
	}
	most := max(share.MaxPods, 0)
	used, free := make([]int64, len(m.Platforms)), make([]int64, len(m.Platforms))
	for i := range m.Platforms {
		l := &m.Platforms[i]
		lent := of(l)[corev1.ResourcePods]
		for id, use := range l.Use {
			if (m.Account(id) == Pool) == hosted {
				pods := use[corev1.ResourcePods]
				used[i] += pods.Value()
			}
		}
		used[i] = min(used[i], lent.Value())
		free[i] = lent.Value() - used[i]
	}
	kept := Fill(most, used)
	for _, n := range kept {
		most -= n
	}
	for i, n := range Fill(most, free) {
		of(&m.Platforms[i])[corev1.ResourcePods] = Quantity(corev1.ResourcePods, kept[i]+n)
	}
}

// mostLabels bounds the labels of an offer.
const mostLabels = 40

// common returns the labels that all nodes have with the same value: a pod that selects by one may go to any of them.
func common(nodes []*corev1.Node) map[string]string {
	labels := map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(nodes[0].Labels)) {
		if !Copied(key) || len(labels) >= mostLabels && !topology(key) {
			continue
		}
		value := nodes[0].Labels[key]
		if value == nodes[0].Name { // names of nodes are private
			continue
		}
		if !slices.ContainsFunc(nodes, func(n *corev1.Node) bool { other, has := n.Labels[key]; return !has || other != value }) {
			labels[key] = value
		}
	}
	if len(labels) == 0 {
		return nil
	}
	return labels
}

func topology(key string) bool {
	return key == corev1.LabelTopologyRegion || key == corev1.LabelTopologyZone
}

// Copied reports whether a label of a provider's nodes is copied to its virtual node: topology, and labels of users and
// device plug-ins. Those of Kubernetes, its distributions and Rivulet are about one node only.
func Copied(key string) bool {
	if topology(key) || key == corev1.LabelInstanceTypeStable {
		return true
	}
	domain, name, qualified := strings.Cut(key, "/")
	if !qualified {
		return key != "type"
	}
	for _, of := range []string{"kubernetes.io", "k8s.io", "k3s.io", "rivulet.dev", "cattle.io"} {
		if domain == of || strings.HasSuffix(domain, "."+of) {
			return domain == "feature.node.kubernetes.io" && name != ""
		}
	}
	return true
}
