// Package offer says what this cluster lends, and defines the message in which
// a provider tells a consumer. The policy is pure: capacity and usage in, offer out.
package offer

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"rivulet/fabric/peer"
)

// Offer is what a provider lends to one consumer right now. It travels as one
// line of JSON on the stream GET /v1/offer: at once, after every change, and as
// a heartbeat at least every Heartbeat.
type Offer struct {
	// Allocatable is what the consumer may use in all: what its pods use already
	// plus what is free. It has cpu, memory, pods and ephemeral-storage.
	Allocatable corev1.ResourceList `json:"allocatable"`
	// Architecture and OS are those of the provider's nodes (GOARCH, GOOS).
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
	// KubeVersion is the provider's kubelet version, KernelVersion, OSImage and
	// Runtime those of the node that lends most.
	KubeVersion   string `json:"kubeVersion"`
	KernelVersion string `json:"kernelVersion,omitempty"`
	OSImage       string `json:"osImage,omitempty"`
	Runtime       string `json:"runtime,omitempty"`
	// Labels are the provider's topology labels, to be copied to the virtual node.
	Labels map[string]string `json:"labels,omitempty"`
	// Ready is false, with Reason, while the provider can run nothing.
	Ready  bool   `json:"ready"`
	Reason string `json:"reason,omitempty"`
	// Neighbours are the prefixes under which the provider reaches the pods of
	// other clusters: endpoints there are written with these addresses.
	Neighbours map[peer.ID]netip.Prefix `json:"neighbours,omitempty"`
}
