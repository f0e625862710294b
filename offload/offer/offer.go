// Package offer says what this cluster lends, and defines the message in which
// a provider tells a consumer. The policy (Measure, Divide) is pure: nodes and pods
// in, offer out. Watcher reads nodes and pods, Handler streams; the package writes
// nothing and keeps nothing across restarts. While the API server is away the
// last offer stands; a consumer that gets no line for three heartbeats takes the
// stream for dead and shows its virtual node NotReady.
package offer

import (
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"

	"rivulet/fabric/peer"
)

// Heartbeat is the longest time between two lines of the stream.
const Heartbeat = 5 * time.Second

// Silence is how long a provider may say nothing, whatever happens to the connection, before
// its virtual nodes are NotReady: two heartbeats and some. Nothing else makes them so; a node's
// lease goes on meanwhile (appliance/engine/flags.go, docs/design/offload.md).
const Silence = 12 * time.Second

// OfQuery is the query parameter of GET /v1/offer that names a cluster whose prefix the
// consumer needs; it may be there MaxOf times.
const (
	OfQuery = "of"
	MaxOf   = 256
)

// Offer is what a provider lends to one consumer right now. It travels as one
// line of JSON on the stream GET /v1/offer: at once, after every change, and as
// a heartbeat at least every Heartbeat.
type Offer struct {
	// Allocatable is what the consumer may use in all: what its pods use already
	// plus its part of what is free. It has cpu, memory, pods, ephemeral-storage and
	// the provider's extended resources.
	Allocatable corev1.ResourceList `json:"allocatable"`
	// Platforms are all that the provider has nodes of, the one that lends most first. A
	// provider that does not tell them apart leaves them out.
	Platforms []PlatformOffer `json:"platforms,omitempty"`

	// Allocatable and what follows up to Labels are those of the first platform.

	// Architecture and OS are those of the provider's nodes (GOARCH, GOOS).
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
	// KubeVersion is the provider's kubelet version, KernelVersion, OSImage and
	// Runtime those of the node that lends most.
	KubeVersion   string `json:"kubeVersion"`
	KernelVersion string `json:"kernelVersion,omitempty"`
	OSImage       string `json:"osImage,omitempty"`
	Runtime       string `json:"runtime,omitempty"`
	// Labels are those that the provider's nodes agree on (see Carried), to be copied to
	// the virtual node.
	Labels map[string]string `json:"labels,omitempty"`
	// Keeps says that the provider makes another in the place of a pod that is its own
	// record (package replacement): it needs no ReplicaSet around it.
	Keeps bool `json:"keeps,omitempty"`
	// HomeAddresses says that pods which are made for it (policy.HomeAddressesAnnotation) reach
	// the Services of the consumer by the cluster IPs that these have at the consumer's.
	HomeAddresses bool `json:"homeAddresses,omitempty"`
	// HomePods says that such pods can have the addresses by which the consumer knows them, too
	// (policy.HomeAddressesOfPods).
	HomePods bool `json:"homePods,omitempty"`
	// Ready is false, with Reason, while the provider can run nothing.
	Ready  bool   `json:"ready"`
	Reason string `json:"reason,omitempty"`
	// Heard is when the provider was last heard of, while it is silent; the consumer's own.
	Heard time.Time `json:"-"`
	// Tenants are the consumer's pods here, by address: told before a pod's first process runs,
	// sooner than its status.
	Tenants []netip.Addr `json:"tenants,omitempty"`
	// Withdrawn says that nothing is lent to the consumer any more: what it has here ends.
	Withdrawn bool `json:"withdrawn,omitempty"`
	// Neighbours are the prefixes under which the provider reaches the pods of
	// other clusters: endpoints there are written with these addresses. A consumer is told
	// of those that it asks for by name (OfQuery), its own peers, and of no others.
	Neighbours map[peer.ID]netip.Prefix `json:"neighbours,omitempty"`
}

// Replace puts o in the place of what waits in the channel, which has room for one; there is one sender.
func Replace(out chan Offer, o Offer) {
	select {
	case <-out:
	default:
	}
	out <- o
}
