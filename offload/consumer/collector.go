package consumer

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"

	"rivulet/fabric/changes"
	"rivulet/fabric/panics"
	"rivulet/fabric/rpc"
	"rivulet/offload/consumer/pod"
	"rivulet/offload/consumer/volume"
	"rivulet/offload/parts"
	"rivulet/offload/policy"
	"rivulet/offload/target"
)

// releaseTimeout bounds one attempt to release a twin, releases those at a time: each waits until its twin is gone, and a
// target may hold only so many.
const (
	releaseTimeout = 2 * time.Minute
	releases       = 32
)

// collector releases twins at one target: those of namespaces that are not offloaded there now, of this run and earlier
// ones. Offloaded pods leave first, at their own pace.
type collector struct {
	home       kubernetes.Interface
	target     target.Target
	namespaces *policy.Watcher
	pods       *pod.Controller
	recorder   record.EventRecorder
	log        *slog.Logger
	kick       chan struct{}

	mu       sync.Mutex
	reported map[string]string // last report about twins that hold data, by namespace
}

func newRetirement(home kubernetes.Interface, t target.Target, namespaces *policy.Watcher, recorder record.EventRecorder, log *slog.Logger) *collector {
	return &collector{home: home, target: t, namespaces: namespaces, recorder: recorder, log: log, kick: make(chan struct{}, 1), reported: map[string]string{}}
}

// poke makes the collector check the twins again.
func (r *collector) poke() {
	changes.Poke(r.kick)
}

func (r *collector) run(ctx context.Context) error {
	departed, stop := r.pods.Departed.Changed() // perhaps the last pod of a namespace
	defer stop()
	r.poke()
	var again <-chan time.Time
	pause := changes.Backoff{First: parts.FirstWait, Longest: parts.LongestWait}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.kick:
		case <-departed:
		case <-again:
		}
		again = nil
		if err := r.sweep(ctx); err != nil {
			wait := pause.Next()
			r.log.Debug("twins not given back yet", "err", err, "retry", wait)
			again = time.After(wait)
			continue
		}
		pause.Reset()
	}
}

// errBusy: pods are still leaving. The last one pokes the collector; a timer covers a poke that came too early.
var errBusy = errors.New("offload: pods are still leaving")

func (r *collector) sweep(ctx context.Context) error {
	held, err := r.target.Twins(ctx)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var errs []error
	room := make(chan struct{}, releases)
	var busy sync.WaitGroup
	for home, twin := range held {
		if ns, ok := r.namespaces.Get(home); ok && ns.Reflects(r.target.Name()) {
			continue
		}
		room <- struct{}{}
		busy.Go(func() {
			defer func() { <-room }()
			err := panics.Call(func() error { return r.release(ctx, home, twin) })
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
		})
	}
	busy.Wait()
	return errors.Join(errs...)
}

// known reports whether home has sent anything to the twin of a namespace that is not offloaded now: it was watched in
// this run, or home has a volume there. What is in any other twin is the target's word alone, and is not asked for: the
// target itself refuses to delete one with data.
func (r *collector) known(ctx context.Context, home string) (bool, error) {
	if pod.Watches(r.pods, home) {
		return true, nil
	}
	away, err := r.home.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{LabelSelector: volume.AwayLabel + "=" + r.target.ID()})
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(away.Items, func(v corev1.PersistentVolume) bool {
		return v.Spec.ClaimRef != nil && v.Spec.ClaimRef.Namespace == home
	}), nil
}

func (r *collector) release(ctx context.Context, home, twin string) error {
	// Deleting a twin ends its pods, so the label is read from home's API and not from a cache.
	ns, err := r.home.CoreV1().Namespaces().Get(ctx, home, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		ns = nil
	case err != nil:
		return err
	default:
		// An invalid label counts as off; the watcher reports it.
		if p, _ := r.namespaces.Parse(ns); p.Reflects(r.target.Name()) {
			return errBusy // the watcher lags
		}
	}
	if r.pods.Busy(home) {
		return errBusy
	}
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	known, err := r.known(ctx, home)
	if err != nil {
		return err
	}
	if known {
		err = holding(ctx, r.target, home, twin)
	}
	if err == nil {
		err = r.target.Release(ctx, home)
	}
	if said := new(rpc.Error); errors.As(err, &said) && said.Code == "holds-data" {
		err = &heldTwin{namespace: home, target: r.target.Name()}
	}
	if err != nil {
		if h := new(heldTwin); errors.As(err, &h) {
			r.reportHeld(ns, h)
		}
		return err
	}
	r.mu.Lock()
	delete(r.reported, home)
	r.mu.Unlock()
	r.pods.Forget(home)
	r.log.Info("twin given back", "namespace", home)
	return nil
}
