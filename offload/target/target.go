// Package target defines what pods can be sent to. A peer, a namespace of a
// foreign cluster and the host of a virtual cluster are targets; one engine
// (node, pod, reflect, stream) serves them all and knows nothing else of them.
//
// A Spec tells consumer.Consumer of a target that there is; a Target is made of it
// once its virtual node has a name. Nothing is written or kept here.
package target

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"rivulet/offload/offer"
)

// ErrRefused is wrapped by errors of targets that have answered that they will not.
var ErrRefused = errors.New("the target refuses")

// ErrNotYet asks for another try a little later.
var ErrNotYet = errors.New("offload: waiting for the target")

// Kind says what a target is. It is a label of its virtual nodes
// (policy.KindLabel).
type Kind string

// Peer is another Rivulet cluster. Other packages name kinds of their own.
const Peer Kind = "peer"

// Patience is how long after a start a virtual node may be without a target: who tells
// of targets may still be reading his records. Removing a node ends pods.
const Patience = time.Minute

// Spec is a target that there is, whether it answers or not.
type Spec struct {
	// ID identifies the target for good, among those of all kinds. It has to be a valid
	// value of a label.
	ID string
	// Name is what its virtual node is to be called; Short, of the ID, is added where
	// that is taken.
	Name, Short string
	Kind        Kind
	// After has the scheduler prefer targets without it, where a namespace does not say
	// that it does not matter.
	After bool
	// Control is where pods there find home's API server, an address in home's pod CIDR.
	// If it is not valid they have no way there, and do not wait for one.
	Control netip.AddrPort
	// HomeAPI says that the target leads pods to home's API server by itself: there is a
	// Service homeapi.Service in each twin that nobody else makes. Control is not needed then.
	HomeAPI bool
	// Withdrawn says that the target lends nothing any more: pods leave it, and then it is
	// as if there were none.
	Withdrawn bool
	// Key is what New goes by: when it is not equal to the last, the target is made anew.
	// It has to be comparable.
	Key any
	// New makes the target. It does not use the network, and is called again, after a
	// while, whenever something that belongs to the target has failed. A target that has
	// a method Close() is closed in the end.
	New func(name string, log *slog.Logger) (Target, error)
}

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
	// Twins lists the twins the target holds for this home, home name to twin name, but for
	// those on their way out: what is missing may still run there, see Gone.
	Twins(ctx context.Context) (map[string]string, error)
	// Gone reports whether the target has nothing of the home namespace any more, not even
	// a twin on its way out. It is true on the target's own word only.
	Gone(ctx context.Context, home string) (bool, error)
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
