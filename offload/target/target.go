// Package target defines where pods can be sent: a peer, a namespace of a foreign cluster, or the host of a virtual
// cluster. One engine (node, pod, reflect, stream) serves them all and uses nothing but these interfaces.
//
// A Spec announces a target to consumer.Consumer; a Target is made of it once its virtual node has a name. Nothing is
// written or kept here.
package target

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"rivulet/offload/foreign"
	"rivulet/offload/offer"
)

// ErrRefused is wrapped by errors of targets that refuse.
var ErrRefused = errors.New("the target refuses")

// ErrNotYet causes a retry shortly.
var ErrNotYet = errors.New("offload: waiting for the target")

// Kind is the kind of a target, a label of its virtual nodes (policy.KindLabel).
type Kind string

// Peer is another Rivulet cluster. Other packages name kinds of their own.
const Peer Kind = "peer"

// Patience is how long after a start a virtual node may be without a target: the source of targets may still be reading
// its records. Removing a node ends pods.
const Patience = time.Minute

// Spec is an existing target, reachable or not.
type Spec struct {
	// ID identifies the target for good, among those of all kinds. It has to be a valid value of a label.
	ID string
	// Name is the intended name of its virtual node; Short, of the ID, is added if that is taken.
	Name, Short string
	Kind        Kind
	// After: the scheduler prefers targets without it, unless the namespace accepts any.
	After bool
	// Control is home's API server for pods there, an address in home's pod CIDR. Not valid: there is no way, and pods
	// do not wait for one.
	Control netip.AddrPort
	// HomeAPI: the target itself routes pods to home's API server, by a Service homeapi.Service in each twin that only
	// it makes. Control is not needed then.
	HomeAPI bool
	// Labels are home's own for its virtual nodes. They may change without a new Key.
	Labels map[string]string
	// Withdrawn: the target lends nothing any more. Pods leave it, and then it counts as removed.
	Withdrawn bool
	// Unchosen: home does not want the target (policy.Nodes). Its virtual node takes no new pods.
	Unchosen bool
	// Key are the inputs of New: when it differs from the last one, the target is made again. It has to be comparable.
	Key any
	// New makes the target. It does not use the network, and is called again, after a pause, whenever a part of the
	// target has failed. A target with a method Close() is closed in the end.
	New func(name string, log *slog.Logger) (Target, error)
}

// bounding is implemented by targets that bound what home keeps of their objects.
type bounding interface{ Kept() *foreign.Kept }

// Kept is that of t, or a new one.
func Kept(t Target) *foreign.Kept {
	if k, ok := t.(bounding); ok {
		return k.Kept()
	}
	return &foreign.Kept{From: foreign.Origin{Name: t.Name(), Cure: "rivulet status"}}
}

// Target is one destination of pods. All methods may be called concurrently; those with a context block on the network.
type Target interface {
	// Name is the name of the virtual node. It is unique at home and stays.
	Name() string
	// ID identifies the target for good, whatever its name.
	ID() string
	// Client and Config are for the target's API with the rights of a consumer.
	Client() kubernetes.Interface
	Config() *rest.Config
	// Namespace ensures that the home namespace has a twin and returns the twin's name. It is idempotent.
	Namespace(ctx context.Context, home string) (twin string, err error)
	// Twins lists the target's twins for this home, home name to twin name, except those being deleted: the pods of a
	// missing one may still run there, see Gone.
	Twins(ctx context.Context) (map[string]string, error)
	// Gone reports whether the target has nothing of the home namespace, not even a twin being deleted. It is true only
	// if the target itself has confirmed it.
	Gone(ctx context.Context, home string) (bool, error)
	// Release deletes the twin and everything in it, and returns when it is gone.
	Release(ctx context.Context, home string) error
	// Offers streams the offer until ctx ends; the channel is closed then. While the target is unreachable a value with
	// Ready false and a Reason is sent.
	Offers(ctx context.Context) <-chan offer.Offer
	// Home translates an address of one of the target's pods to home's view.
	Home(addr netip.Addr) (netip.Addr, bool)
	// Away translates a pod address in home's view (home's own, the target's, or another target's) to the target's
	// view. It reports false if the target cannot reach it.
	Away(addr netip.Addr) (netip.Addr, bool)
}
