// Package bounds maintains the objects that restrict consumers in this cluster's API server: admission policies, their
// bindings, a priority level and a priority class (docs/design/tenancy.md). It reports whether they are in force:
// written, confirmed by a refusal of rivulet-observed, and watched since. Nothing is granted while they are not. It
// reads the metadata of these kinds. It alone writes the given objects, a spare of each validating policy and of its
// binding, and rivulet-observed. Restart: not in force until all are written and confirmed again. Failure: not in
// force, with the object and the reason, and retries.
package bounds

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"rivulet/fabric/changes"
)

// cure is that of every reported problem.
const cure = "it is tried again by itself; leave objects named rivulet-* out of what prunes, changes or refuses them"

// Config are the dependencies of Bounds. All of it must be set.
type Config struct {
	// Local is a configuration with all rights on this cluster's API server.
	Local *rest.Config
	// Manifests returns the objects, as streams of YAML documents. Call Poke after a change.
	Manifests func() [][]byte
	// Grant is called each time that all of them have come into force, before InForce is true.
	Grant func(context.Context) error
	Log   *slog.Logger
}

// Bounds is the state of all objects together. All methods may be called concurrently.
type Bounds struct {
	cfg     Config
	objects dynamic.Interface
	metas   metadata.Interface
	client  kubernetes.Interface
	kick    chan struct{}
	seen    changes.Signal // stored may have changed
	opened  changes.Signal // open may have changed

	mu     sync.Mutex
	stored map[schema.GroupVersionResource]map[string]version // of the kinds whose watch is up to date
	wanted map[key]version                                    // as written last; nil while they are written
	open   bool
	why    error // why open is false, once known

	written map[key]written // used by Run only
}

// written is an object as written, and as the API server returned it.
type written struct {
	text string
	version
}

// key identifies an object.
type key struct {
	schema.GroupVersionResource
	name string
}

func (k key) String() string { return k.Resource + "/" + k.name }

// New returns Bounds that are not in force; Run brings them into force.
func New(c Config) (*Bounds, error) {
	local := rest.CopyConfig(c.Local)
	local.QPS, local.WarningHandler = -1, rest.NoWarnings{}
	b := &Bounds{cfg: c, kick: make(chan struct{}, 1), stored: map[schema.GroupVersionResource]map[string]version{}, written: map[key]written{}}
	var errs [3]error
	b.objects, errs[0] = dynamic.NewForConfig(local)
	b.metas, errs[1] = metadata.NewForConfig(local)
	b.client, errs[2] = kubernetes.NewForConfig(local)
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("bounds: %w", err)
	}
	return b, nil
}

// Poke writes changed Manifests at once.
func (b *Bounds) Poke() {
	changes.Poke(b.kick)
}

// InForce reports whether every object is in force.
func (b *Bounds) InForce() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open
}

// Problem is why not every object is in force; nil while they are, and before it is known.
func (b *Bounds) Problem() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.why == nil {
		return nil
	}
	return fmt.Errorf("consumers have no rights until what bounds them is in force: %w; %s", b.why, cure)
}

// Wait waits until InForce, or until ctx ends, and returns InForce.
func (b *Bounds) Wait(ctx context.Context) bool {
	changed, stop := b.opened.Changed()
	defer stop()
	for !b.InForce() {
		select {
		case <-ctx.Done():
			return b.InForce()
		case <-changed:
		}
	}
	return true
}

// firstWait and longestWait bound the pauses between retries.
const firstWait, longestWait = time.Second, 5 * time.Second

// Run keeps the objects in force until ctx ends; it may be called once.
func (b *Bounds) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	for _, kind := range kinds {
		wg.Go(func() { b.follow(ctx, kind) })
	}
	for pause := (changes.Backoff{First: firstWait, Longest: longestWait}); ; {
		err := b.settle(ctx)
		if ctx.Err() != nil {
			b.close(nil)
			return ctx.Err()
		}
		var again <-chan time.Time
		if err == nil {
			pause.Reset()
		} else {
			b.close(err)
			again = time.After(pause.Next())
		}
		select {
		case <-ctx.Done():
		case <-b.kick:
		case <-again:
		}
	}
}

// settle writes all objects, and returns when they are in force.
func (b *Bounds) settle(ctx context.Context) error {
	b.close(nil)
	select { // these signals are served below
	case <-b.kick:
	default:
	}
	objects, err := parse(b.cfg.Manifests()...)
	if err != nil {
		return err
	}
	wanted, err := b.write(ctx, objects)
	if err != nil {
		return err
	}
	if err := b.observe(ctx, wanted); err != nil {
		return err
	}
	// A deleted object stays in force through its finalizer, but cannot be kept: it is replaced, while its spare is in
	// force. The spares are next.
	for _, spares := range []bool{false, true} {
		var going []*unstructured.Unstructured
		for _, o := range objects {
			if isSpare(o) == spares && wanted[keyOf(o)].going {
				going = append(going, o)
			}
		}
		if len(going) == 0 {
			continue
		}
		made, err := b.replace(ctx, going)
		if err != nil {
			return err
		}
		maps.Copy(wanted, made)
		if err := b.observe(ctx, wanted); err != nil {
			return err
		}
	}
	if err := b.cfg.Grant(ctx); err != nil {
		return err
	}
	return b.opens(ctx, wanted)
}

// opens grants access when the watches show exactly what was written.
func (b *Bounds) opens(ctx context.Context, wanted map[key]version) error {
	changed, stop := b.seen.Changed()
	defer stop()
	for deadline := time.After(seenDeadline); ; {
		b.mu.Lock()
		b.wanted = wanted
		err := b.deviation()
		if err == nil {
			b.open, b.why = true, nil
		}
		b.mu.Unlock()
		if err == nil {
			b.cfg.Log.Info("what bounds consumers is in force")
			b.opened.Notify()
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-deadline:
			return err
		}
	}
}

// close withdraws the consumers' rights.
func (b *Bounds) close(why error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.shut(why)
}

// shut is close with mu held.
func (b *Bounds) shut(why error) {
	if b.open, b.wanted = false, nil; why == nil {
		return
	}
	if b.why == nil || b.why.Error() != why.Error() {
		b.cfg.Log.Warn("consumers have no rights until what bounds them is in force", "err", why)
	}
	b.why = why
}

// evaluate withdraws the rights at once after a deviation from what was written, and causes it to be written again.
func (b *Bounds) evaluate() {
	b.mu.Lock()
	if b.open {
		if err := b.deviation(); err != nil {
			b.shut(err)
			b.Poke()
		}
	}
	b.mu.Unlock()
	b.seen.Notify()
}

// deviation is the first deviation from what was written. mu is held.
func (b *Bounds) deviation() error {
	for _, k := range slices.SortedFunc(maps.Keys(b.wanted), func(x, y key) int { return slices.Compare([]string{x.Resource, x.name}, []string{y.Resource, y.name}) }) {
		all, known := b.stored[k.GroupVersionResource]
		is, there := all[k.name]
		switch want := b.wanted[k]; {
		case !known:
			return fmt.Errorf("%s: whether somebody changes it is not known", k)
		case !there, is.going && !want.going, is.uid != want.uid:
			return fmt.Errorf("%s was deleted", k)
		case !is.is(want):
			return fmt.Errorf("%s was changed by %s", k, is.by)
		}
	}
	return nil
}

// write writes the objects that differ in the API server, and returns the versions of all.
func (b *Bounds) write(ctx context.Context, objects []*unstructured.Unstructured) (map[key]version, error) {
	out, texts := map[key]version{}, map[key]string{}
	var other []*unstructured.Unstructured
	b.mu.Lock()
	for _, o := range objects {
		k := keyOf(o)
		texts[k] = fmt.Sprint(o.Object)
		if last := b.written[k]; last.text == texts[k] && last.is(b.stored[k.GroupVersionResource][k.name]) {
			out[k] = last.version
		} else {
			other = append(other, o)
		}
	}
	b.mu.Unlock()
	made, err := b.each(ctx, other, b.put)
	for k, v := range made {
		out[k] = v
		b.written[k] = written{texts[k], v}
	}
	return out, err
}

// replace replaces objects that are being deleted.
func (b *Bounds) replace(ctx context.Context, objects []*unstructured.Unstructured) (map[key]version, error) {
	return b.each(ctx, objects, func(ctx context.Context, o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
		if err := b.release(ctx, o); err != nil {
			return nil, err
		}
		return b.put(ctx, o)
	})
}

// writesAtOnce makes a restart short, and leaves capacity of the API server to others.
const writesAtOnce = 8

func (b *Bounds) each(ctx context.Context, objects []*unstructured.Unstructured, do func(context.Context, *unstructured.Unstructured) (*unstructured.Unstructured, error)) (map[key]version, error) {
	versions := make([]version, len(objects))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(writesAtOnce)
	for i, o := range objects {
		group.Go(func() error {
			got, err := do(ctx, o)
			if err != nil {
				return fmt.Errorf("%s: %w", keyOf(o), err)
			}
			versions[i] = versionOf(got)
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	out := map[key]version{}
	for i, o := range objects {
		out[keyOf(o)] = versions[i]
	}
	return out, nil
}
