// Package reflect keeps what pods need beside them equal on a target (docs/design/reflection.md): one small engine
// (space) serves one file per kind. It reads those kinds in offloaded namespaces at home and in their twins. It alone
// writes, in a twin, objects labelled policy.ReflectedLabel=<home's ID>, and events at home; an object of another
// writer in the twin is never touched. Restart: both sides are listed, and only what differs is written; what is gone
// from home is deleted in the twin only after both lists were complete. While the target cannot be reached nothing
// changes there. Twins themselves are deleted by target.Release, not here.
package reflect

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"

	"rivulet/fabric/changes"
	"rivulet/offload/policy"
	"rivulet/offload/target"
)

// Config is what Run needs; all fields but Control, APIAddress, NodeAddress, Policies, Lookup, Supply, Recorder and Log must be set.
type Config struct {
	Home       kubernetes.Interface
	Target     target.Target
	Namespaces *policy.Watcher
	// ClusterID is home's ID: the mark of what is ours in a twin.
	ClusterID string
	// Control is where home serves its API server to away pods (offload/homeapi), an
	// address in its own pod CIDR; nothing leads there if it is not valid.
	Control netip.AddrPort
	// APIAddress is the cluster IP of home's Service kubernetes; "" is not told.
	APIAddress string
	// NodeAddress is that of home's node; node ports lead nowhere away if it is not valid, or
	// of a node that is none (loopback).
	NodeAddress netip.Addr
	// Policies knows what NetworkPolicies speak of; nil keeps them at home.
	Policies World
	// Lookup is HomeLookup if nil.
	Lookup Lookup
	// Used reports whether a pod that is bound to the target refers to the object, a ConfigMap or
	// Secret; known is false while that cannot be told. When one no longer does, Supply is told.
	Used func(policy.Object) (used, known bool)
	// Supply is how pods have brought what they refer to.
	Supply *Supply
	// Recorder takes the events, of all targets together: one of its own would cost
	// each 70 kB. Nil makes one.
	Recorder record.EventRecorder
	Log      *slog.Logger
}

// Reach is implemented by targets that can tell when Away answers differently
// than before. For others EndpointSlices are compared again every reachInterval.
type Reach interface {
	// Changed returns a channel that gets a value after each change, and the
	// function that ends the subscription.
	Changed() (<-chan struct{}, func())
}

// Holder is implemented by targets that do not take objects of every kind.
type Holder interface {
	// Holds reports whether objects of the kind, one of policy.Kinds or the like, follow
	// the pods there.
	Holds(kind string) bool
}

const reachInterval = 10 * time.Second

// Run reflects to one target until ctx ends. A namespace in which something
// fails is tried again, with growing pauses, and holds up no other.
func Run(ctx context.Context, c Config) error {
	if c.Home == nil || c.Target == nil || c.Namespaces == nil || c.ClusterID == "" || c.Used == nil {
		return fmt.Errorf("reflect: Home, Target, Namespaces, ClusterID and Used must be set")
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Log = c.Log.With("target", c.Target.Name())
	if !c.Namespaces.WaitSynced(ctx) {
		return nil
	}
	recorder := c.Recorder
	if recorder == nil {
		events := record.NewBroadcaster(record.WithContext(ctx))
		defer events.Shutdown()
		events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: c.Home.CoreV1().Events("")})
		recorder = events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "rivulet"})
	}

	changed, stop := c.Namespaces.Changed()
	defer stop()
	var running sync.WaitGroup
	defer running.Wait()
	spaces := map[string]context.CancelFunc{}
	modes := map[string]string{} // of the spaces
	var takesAll atomic.Bool     // the target, by what was seen last
	for {
		namespaces := c.Namespaces.Namespaces()
		for home, end := range spaces {
			if ns, ok := namespaces[home]; !ok || !ns.Allows(c.Target.Name()) || ns.Reflect != modes[home] {
				end()
				delete(spaces, home)
			}
		}
		for home, ns := range namespaces {
			if _, ok := spaces[home]; ok || !ns.Allows(c.Target.Name()) {
				continue
			}
			within, end := context.WithCancel(ctx)
			spaces[home], modes[home] = end, ns.Reflect
			running.Go(func() { keep(within, c, recorder, home, ns, &takesAll) })
		}
		select {
		case <-ctx.Done():
			for _, end := range spaces {
				end()
			}
			return nil
		case <-changed:
		}
	}
}

// keep reflects one namespace until ctx ends, through the loss of its twin. What a target
// takes it takes in all of its twins: as long as nothing fails that is looked at once.
func keep(ctx context.Context, c Config, recorder record.EventRecorder, home string, mode policy.Namespace, takesAll *atomic.Bool) {
	log := c.Log.With("namespace", home)
	pause := changes.Backoff{First: time.Second, Longest: 10 * time.Second}
	for {
		twin, err := c.Target.Namespace(ctx, home)
		if err == nil {
			var without map[string]bool
			if !takesAll.Load() {
				without, err = lacks(ctx, c.Target, twin)
				takesAll.Store(err == nil && len(without) == 0)
			}
			started := time.Now()
			s := newSpace(c, recorder, log, home, twin, mode, without)
			if err == nil {
				leave := c.Supply.enter(s)
				err = s.run(ctx)
				leave()
			}
			if time.Since(started) > pause.Longest {
				pause.Reset()
			}
			takesAll.Store(false)
			if errors.Is(err, errRights) {
				continue
			}
		}
		if ctx.Err() != nil {
			return
		}
		wait := pause.Next()
		log.Warn("reflection waits", "err", err, "retry", wait)
		if !changes.Wait(ctx, wait) {
			return
		}
	}
}
