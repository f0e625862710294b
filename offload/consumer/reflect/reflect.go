// Package reflect copies the objects that pods need to a target and keeps them equal (docs/design/reflection.md): one
// engine (space) serves one file per kind. It reads those kinds in offloaded namespaces at home and in their twins. It
// alone writes, in a twin, objects labelled policy.ReflectedLabel=<home's ID>, and events at home; it never touches
// another writer's object. Restart: both sides are listed, and only differences are written; an object that is gone
// from home is deleted in the twin only after both lists are complete. Nothing changes on an unreachable target. Twins
// themselves are deleted by target.Release.
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
	"rivulet/fabric/panics"
	"rivulet/offload/consumer/homecache"
	"rivulet/offload/policy"
	"rivulet/offload/target"
)

// Config are the parameters of Run; all fields but Cache, Control, APIAddress, NodeAddress, Policies, Lookup, Supply,
// Recorder and Log must be set.
type Config struct {
	Home       kubernetes.Interface
	Target     target.Target
	Namespaces *policy.Watcher
	// Cache shares informers of home with other targets; nil makes one.
	Cache *homecache.Cache
	// ClusterID is home's ID, the label value of this cluster's objects in a twin.
	ClusterID string
	// Control is where home serves its API server to away pods (offload/homeapi), an address in its own pod CIDR;
	// invalid: no way there.
	Control netip.AddrPort
	// APIAddress is the cluster IP of home's Service kubernetes; "" if unknown.
	APIAddress string
	// NodeAddress is that of home's node. Node ports are not reflected if it is not valid, or loopback: then there is
	// no node.
	NodeAddress netip.Addr
	// Policies has what NetworkPolicies select; nil does not reflect them.
	Policies World
	// Lookup is HomeLookup if nil.
	Lookup Lookup
	// Used reports whether a pod that is bound to the target refers to the object, a ConfigMap or Secret; known is
	// false before that is loaded. After the last reference is gone Supply.Check is called.
	Used func(policy.Object) (used, known bool)
	// Supply is how pods request what they refer to.
	Supply *Supply
	// Recorder records events, shared by all targets: each of its own would take 70 kB. Nil makes one.
	Recorder record.EventRecorder
	Log      *slog.Logger
}

// Reach is implemented by targets that report changes of Away. For others EndpointSlices are compared every
// reachInterval.
type Reach interface {
	// Changed returns a channel that gets a value after each change, and the
	// function that ends the subscription.
	Changed() (<-chan struct{}, func())
}

// Holder is implemented by targets that do not accept objects of every kind.
type Holder interface {
	// Holds reports whether objects of the kind, one of policy.Kinds or the like, are reflected there.
	Holds(kind string) bool
}

// kindsOf differs where the kinds that follow do.
func kindsOf(ns policy.Namespace) string {
	if !ns.Sends() {
		return string(ns.When) + " " + ns.Reflect
	}
	return ns.Reflect
}

const reachInterval = 10 * time.Second

// Run reflects to one target until ctx ends. A namespace that fails is retried with growing pauses, and does not delay
// others.
func Run(ctx context.Context, c Config) error {
	if c.Home == nil || c.Target == nil || c.Namespaces == nil || c.ClusterID == "" || c.Used == nil {
		return fmt.Errorf("reflect: Home, Target, Namespaces, ClusterID and Used must be set")
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Cache == nil {
		c.Cache = homecache.New(c.Log)
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
	outer := ctx
	ctx, stopAll := context.WithCancelCause(outer)
	var running sync.WaitGroup
	defer running.Wait()
	defer stopAll(nil)
	spaces := map[string]context.CancelFunc{}
	modes := map[string]string{} // of the spaces
	var takesAll atomic.Bool     // kinds, by the last check
	for {
		namespaces := c.Namespaces.Namespaces()
		for home, end := range spaces {
			if ns, ok := namespaces[home]; !ok || !ns.Reflects(c.Target.Name()) || kindsOf(ns) != modes[home] {
				end()
				delete(spaces, home)
			}
		}
		for home, ns := range namespaces {
			if _, ok := spaces[home]; ok || !ns.Reflects(c.Target.Name()) {
				continue
			}
			within, end := context.WithCancel(ctx)
			spaces[home], modes[home] = end, kindsOf(ns)
			running.Go(func() {
				defer panics.To(stopAll)
				keep(within, c, recorder, home, ns, &takesAll)
			})
		}
		select {
		case <-ctx.Done():
			for _, end := range spaces {
				end()
			}
			if outer.Err() != nil {
				return nil
			}
			return context.Cause(ctx)
		case <-changed:
		}
	}
}

// keep reflects one namespace until ctx ends, and requests its twin again if that is lost. A kind that the target
// accepts it accepts in all twins, so the check for kinds is skipped while nothing fails.
func keep(ctx context.Context, c Config, recorder record.EventRecorder, home string, mode policy.Namespace, takesAll *atomic.Bool) {
	log := c.Log.With("namespace", home)
	pause := changes.Backoff{First: time.Second, Longest: 10 * time.Second}
	reported, leftSince := map[key]string{}, map[key]time.Time{} // one space after the other has them
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
			s.reported, s.leftSince = reported, leftSince
			if err == nil {
				leave := c.Supply.enter(s)
				err = panics.Call(func() error { return s.run(ctx) })
				leave()
			}
			if time.Since(started) > pause.Longest {
				pause.Reset()
			}
			takesAll.Store(false)
			if errors.Is(err, errRights) || errors.Is(err, errRenew) {
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
