// Package target defines what pods can be sent to. A peer, a namespace of a
// foreign cluster and the host of a virtual cluster are targets; one engine
// (node, reflect, stream) serves them all and knows nothing else of them.
package target

import (
	"context"
	"net/netip"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"rivulet/offload/offer"
)

// Target is one place that pods can be sent to. All methods may be called
// concurrently; those with a context block on the network.
type Target interface {
	// Name is the name of the virtual node. It is unique at home and stays.
	Name() string
	// ID identifies the target for good, whatever its name.
	ID() string
	// Client and Config reach the target's API with the rights of a consumer.
	Client() kubernetes.Interface
	Config() *rest.Config
	// Namespace makes sure that the home namespace has a twin and returns the
	// twin's name. It is idempotent.
	Namespace(ctx context.Context, home string) (twin string, err error)
	// Twins lists the twins the target holds for this home: home name to twin name.
	Twins(ctx context.Context) (map[string]string, error)
	// Release deletes the twin and everything in it, and returns when it is gone.
	Release(ctx context.Context, home string) error
	// Offers streams the offer until ctx ends; the channel is closed then. While
	// the target cannot be reached a value with Ready false and a Reason is sent.
	Offers(ctx context.Context) <-chan offer.Offer
	// Home translates an address of one of the target's pods to how home sees it.
	Home(addr netip.Addr) (netip.Addr, bool)
	// Away translates a pod address as home sees it (home's own, the target's, or
	// another target's) to how the target sees it. It reports false if the target
	// has no way there.
	Away(addr netip.Addr) (netip.Addr, bool)
}
