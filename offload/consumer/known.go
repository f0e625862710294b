package consumer

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"rivulet/fabric/peer"
	"rivulet/offload/consumer/homeimages"
	"rivulet/offload/consumer/pod"
	"rivulet/offload/consumer/volume"
	"rivulet/offload/nodeagent/peerrules"
	"rivulet/offload/policy"
	"rivulet/offload/target"
)

// Read-only views of a Consumer.

// VirtualNode is one node: a target, or one platform of it.
type VirtualNode struct {
	Name string `json:"name"`
	// Target is the target's name; its first node has it, too.
	Target string `json:"target"`
	// ID is the target's: a peer's is its cluster's.
	ID           string              `json:"id"`
	Kind         target.Kind         `json:"kind"`
	Ready        bool                `json:"ready"`
	Cordoned     bool                `json:"cordoned,omitempty"`
	Reason       string              `json:"reason,omitempty"` // while it is not ready
	OS           string              `json:"os,omitempty"`
	Architecture string              `json:"architecture,omitempty"`
	KubeVersion  string              `json:"kubeVersion,omitempty"`
	Allocatable  corev1.ResourceList `json:"allocatable,omitempty"`
	// Pods is the number of home's pods on it that count (pod.Counts); Refused are those that may not run away, with
	// the reason, by namespace/name.
	Pods    int               `json:"pods"`
	Refused map[string]string `json:"refused,omitempty"`
	// Heard is the time of the target's last answer, while it is silent.
	Heard time.Time `json:"heard,omitzero"`
}

// VirtualNodes are all virtual nodes, sorted by name.
func (c *Consumer) VirtualNodes() (out []VirtualNode) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, s := range c.stacks {
		for _, one := range s.branches { // none before the first offer
			offer := one.node.Offer()
			v := VirtualNode{Name: one.name, Target: s.name, ID: id, Kind: s.spec.Kind, Ready: one.node.Ready(), Cordoned: one.node.Cordoned(), Reason: offer.Reason, Heard: offer.Heard,
				OS: offer.OS, Architecture: offer.Architecture, KubeVersion: offer.KubeVersion, Allocatable: offer.Allocatable}
			if !v.Ready && v.Reason == "" {
				v.Reason = "waiting for the first offer"
			}
			v.Pods, v.Refused = s.pods.Counts(one.name)
			out = append(out, v)
		}
	}
	slices.SortFunc(out, func(a, b VirtualNode) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// Namespaces is the watcher of home's offloaded namespaces.
func (c *Consumer) Namespaces() *policy.Watcher { return c.policy }

// Reflects reports whether, by the caches, Services of the namespace follow to the target with the ID.
func (c *Consumer) Reflects(namespace, id string) bool {
	c.mu.Lock()
	var name string
	if s := c.stacks[id]; s != nil {
		if name = s.name; name == "" {
			name = s.spec.Name
		}
	}
	c.mu.Unlock()
	ns, ok := c.policy.Get(namespace)
	return ok && name != "" && ns.Reflects(name)
}

// Names are the names at home of the targets of a kind, by ID.
func (c *Consumer) Names(kind target.Kind) map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[string]string{}
	for id, s := range c.stacks {
		if s.spec.Kind == kind && s.name != "" {
			out[id] = s.name
		}
	}
	return out
}

// Busy reports whether home has pods at a target, or may have some: its nodes are not loaded yet.
func (c *Consumer) Busy(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stacks[id]
	return s == nil || len(s.branches) == 0 || s.busy()
}

// busy reports whether home has pods there. The caller holds Consumer.mu.
func (s *stack) busy() bool {
	for _, one := range s.branches {
		if pods, _ := s.pods.Counts(one.name); pods > 0 {
			return true
		}
	}
	return false
}

// InUse are the targets of a kind with pods of home, and targets of any kind with data of home; false before that is
// loaded.
func (c *Consumer) InUse(ctx context.Context, kind target.Kind) (map[string]bool, bool) {
	used := map[string]bool{}
	nodes, err := nodesOf(ctx, c.home, kind) // before the stacks: these may load one meanwhile
	if err != nil {
		return nil, false
	}
	c.mu.Lock()
	for id, s := range c.stacks {
		// One whose nodes are not loaded may have pods, unless home has no node for it: it was never reached.
		if s.spec.Kind == kind && (s.busy() || len(s.branches) == 0 && nodes[id]) {
			used[id] = true
		}
	}
	c.mu.Unlock()
	away, err := c.home.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{LabelSelector: volume.AwayLabel})
	if err != nil {
		return nil, false
	}
	for _, v := range away.Items {
		used[v.Labels[volume.AwayLabel]] = true
	}
	return used, true
}

// Existing are the IDs of targets of a kind that have a virtual node here, and those with pods or data of home.
func (c *Consumer) Existing(ctx context.Context, kind target.Kind) (nodes, used map[string]bool, err error) {
	if nodes, err = nodesOf(ctx, c.home, kind); err != nil {
		return nil, nil, err
	}
	used, known := c.InUse(ctx, kind)
	if !known {
		return nil, nil, errors.New("offload: the API server does not say what is in use")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for id := range nodes {
		if c.stacks[id] == nil { // its pods are not known
			used[id] = true
		}
	}
	return nodes, used, nil
}

// nodesOf are the IDs of the targets of a kind that have a virtual node here.
func nodesOf(ctx context.Context, home kubernetes.Interface, kind target.Kind) (map[string]bool, error) {
	list, err := home.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: policy.KindLabel + "=" + string(kind), ResourceVersion: "0"})
	if err != nil {
		return nil, err
	}
	nodes := map[string]bool{}
	for i := range list.Items {
		if id := virtualID(&list.Items[i]); id != "" {
			nodes[id] = true
		}
	}
	return nodes, nil
}

// At returns the addresses of home's pods at a peer; false before these are loaded.
func (c *Consumer) At(id peer.ID) (at peerrules.Peer, ok bool) {
	c.mu.Lock()
	var pods *pod.Controller
	var target rivulet
	if s := c.stacks[string(id)]; s != nil {
		pods, target = s.pods, s.peer
	}
	c.mu.Unlock()
	if pods == nil || target == nil {
		return at, false
	}
	var heard bool
	at.Seen, at.Pods, at.Known = pods.Addresses()
	at.Advertised, at.Neighbours, heard = target.Tenants()
	at.Known = at.Known && heard
	return at, true
}

// ImagesAt are the images of home's pods that are bound to a peer.
func (c *Consumer) ImagesAt(id peer.ID) []homeimages.Use {
	c.mu.Lock()
	var pods *pod.Controller
	if s := c.stacks[string(id)]; s != nil && s.spec.Kind == target.Peer {
		pods = s.pods
	}
	c.mu.Unlock()
	if pods == nil {
		return nil
	}
	return pod.Images(pods)
}

// runsAway reports whether a pod of home on any target has the address.
func (c *Consumer) runsAway(addr netip.Addr) bool {
	c.mu.Lock()
	var all []*pod.Controller
	for _, s := range c.stacks {
		if s.pods != nil {
			all = append(all, s.pods)
		}
	}
	c.mu.Unlock()
	return slices.ContainsFunc(all, func(pods *pod.Controller) bool { return pods.Runs(addr) })
}

// architectures are those of the virtual nodes.
func (c *Consumer) architectures() (out []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.stacks {
		for p := range s.branches {
			if p.OS == "linux" && !slices.Contains(out, p.Architecture) {
				out = append(out, p.Architecture)
			}
		}
	}
	return out
}
