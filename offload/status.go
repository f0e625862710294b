package offload

import (
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"rivulet/offload/policy"
	"rivulet/offload/target"
	"rivulet/offload/tenancy"
)

// Status is what `rivulet status` shows of offloading.
type Status struct {
	// VirtualNodes are what this cluster may borrow, by name.
	VirtualNodes []VirtualNode `json:"virtualNodes"`
	// Namespaces are those that are offloaded.
	Namespaces map[string]policy.Namespace `json:"namespaces,omitempty"`
	// Consumers are the clusters that borrow from this one.
	Consumers []Consumer `json:"consumers,omitempty"`
}

// Consumer is one cluster that borrows from this one, or did.
type Consumer struct {
	tenancy.Consumer
	// Peer is false for what a cluster left here that is no peer.
	Peer bool `json:"peer"`
	// Silent is for how long it has not been heard; Left, after how much more silence
	// its twins are deleted. Both are zero while it is heard.
	Silent time.Duration `json:"silent,omitempty"`
	Left   time.Duration `json:"left,omitempty"`
}

// VirtualNode is one node that stands for a target: for one platform of it.
type VirtualNode struct {
	Name string `json:"name"`
	// Target is the target's name; its first node has it, too.
	Target string `json:"target"`
	// ID is the target's: a peer's is its cluster's.
	ID           string              `json:"id"`
	Kind         target.Kind         `json:"kind"`
	Ready        bool                `json:"ready"`
	Reason       string              `json:"reason,omitempty"` // while it is not ready
	OS           string              `json:"os,omitempty"`
	Architecture string              `json:"architecture,omitempty"`
	KubeVersion  string              `json:"kubeVersion,omitempty"`
	Allocatable  corev1.ResourceList `json:"allocatable,omitempty"`
	// Pods are the pods of home bound to it, Refused those of them that may not run
	// away, with the reason, by namespace/name.
	Pods    int               `json:"pods"`
	Refused map[string]string `json:"refused,omitempty"`
}

// Problems say which parts do not run, and why. They are tried again.
func (o *Offload) Problems() map[string]string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.problems)
}

// Status may be called at any time.
func (o *Offload) Status() Status {
	st := Status{VirtualNodes: []VirtualNode{}, Namespaces: o.policy.Namespaces()}
	for _, c := range o.tenancy.Status() {
		silence := o.guests.Silence(c.ID)
		st.Consumers = append(st.Consumers, Consumer{Consumer: c, Peer: o.isPeer(c.ID), Silent: silence.For, Left: silence.Left})
	}
	slices.SortFunc(st.Consumers, func(a, b Consumer) int { return strings.Compare(string(a.ID), string(b.ID)) })

	st.VirtualNodes = append(st.VirtualNodes, o.virtualNodes()...)
	return st
}

// virtualNodes are sorted by name.
func (o *Offload) virtualNodes() (out []VirtualNode) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for id, s := range o.stacks {
		for _, one := range s.branches { // none while its name is not known yet
			offer := one.node.Offer()
			v := VirtualNode{Name: one.name, Target: s.name, ID: id, Kind: s.spec.Kind, Ready: one.node.Ready(), Reason: offer.Reason,
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
