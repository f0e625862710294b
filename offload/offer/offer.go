// Package offer computes what this cluster lends, and defines the message in which a provider sends it to a consumer.
// The policy (Measure, Divide) is pure: nodes and pods in, offer out. Watcher reads nodes and pods, Handler streams;
// the package writes nothing. Restart: it has no state. Failure: while the API server is away the last offer is
// repeated; a consumer without a line for Silence takes the stream for dead and shows its virtual node NotReady.
package offer

import (
	"context"
	"errors"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"

	"rivulet/fabric/panics"
	"rivulet/fabric/peer"
)

// Heartbeat is the longest time between two lines of the stream. A consumer that knows from elsewhere that the provider
// is lost requests Calm (BeatQuery, whole seconds).
const (
	Heartbeat = 5 * time.Second
	Calm      = 60 * time.Second
	BeatQuery = "beat"
)

// Silence is how long a provider may send nothing, whatever happens to the connection, before its virtual nodes are
// NotReady: somewhat more than two heartbeats. Nothing else makes them so; a node's lease is renewed meanwhile
// (appliance/engine/flags.go, docs/design/offload.md).
const Silence = 12 * time.Second

// CalmSilence is Silence where Calm is requested.
const CalmSilence = 150 * time.Second

// OfQuery is the query parameter of GET /v1/offer with a cluster whose prefix the consumer needs, at most MaxOf times.
const (
	OfQuery = "of"
	MaxOf   = 256
)

// Offer is what a provider lends to one consumer now. It is one line of JSON in the stream GET /v1/offer: sent at once,
// after every change, and as a heartbeat at least every Heartbeat.
type Offer struct {
	// Allocatable is what the consumer may use in total: what its pods use already plus its part of what is free. It
	// has cpu, memory, pods, ephemeral-storage and the provider's extended resources.
	Allocatable corev1.ResourceList `json:"allocatable"`
	// Platforms are those of the provider's nodes, the one that lends most first. A provider that does not distinguish
	// them leaves them out.
	Platforms []PlatformOffer `json:"platforms,omitempty"`

	// Allocatable and what follows up to Labels are those of the first platform.

	// Architecture and OS are those of the provider's nodes (GOARCH, GOOS).
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
	// KubeVersion is the provider's kubelet version, KernelVersion, OSImage and Runtime those of the node that lends
	// most.
	KubeVersion   string `json:"kubeVersion"`
	KernelVersion string `json:"kernelVersion,omitempty"`
	OSImage       string `json:"osImage,omitempty"`
	Runtime       string `json:"runtime,omitempty"`
	// Labels are the common ones of the provider's nodes (see Copied), for the virtual node.
	Labels map[string]string `json:"labels,omitempty"`
	// Keeps: the provider replaces pods that are their own record (package replacement), so they need no ReplicaSet.
	Keeps bool `json:"keeps,omitempty"`
	// HomeAddresses: pods that are made for it (policy.HomeAddressesAnnotation) reach the consumer's Services by their
	// cluster IPs at the consumer.
	HomeAddresses bool `json:"homeAddresses,omitempty"`
	// HomePods: such pods can also have the consumer's own addresses of them (policy.HomeAddressesOfPods).
	HomePods bool `json:"homePods,omitempty"`
	// Ready is false, with Reason, while the provider can run nothing.
	Ready  bool   `json:"ready"`
	Reason string `json:"reason,omitempty"`
	// Heard is the time of the provider's last line, while it is silent; set by the consumer.
	Heard time.Time `json:"-"`
	// Tenants are the addresses of the consumer's pods here: sent before a pod's first process runs, sooner than its
	// status.
	Tenants []netip.Addr `json:"tenants,omitempty"`
	// Withdrawn: nothing is lent to the consumer any more, and its pods and twins here end.
	Withdrawn bool `json:"withdrawn,omitempty"`
	// Neighbours are the provider's prefixes for the pods of other clusters, in which endpoints there are written. A
	// consumer gets only those that it requests by ID (OfQuery): its own peers.
	Neighbours map[peer.ID]netip.Prefix `json:"neighbours,omitempty"`
}

// Replace replaces the waiting value of the channel, which has room for one; there is one sender.
func Replace(out chan Offer, o Offer) {
	select {
	case <-out:
	default:
	}
	out <- o
}

// End closes a stream of offers. If a panic has ended its context, that is the reason of a last offer, which is not ready.
func End(ctx context.Context, out chan Offer) {
	if why := new(panics.Error); errors.As(context.Cause(ctx), &why) {
		Replace(out, Offer{Reason: why.Error()})
	}
	close(out)
}
