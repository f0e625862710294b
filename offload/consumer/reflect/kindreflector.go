package reflect

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"rivulet/offload/consumer/homecache"
	"rivulet/offload/homeapi"
	"rivulet/offload/policy"
	"rivulet/offload/target"
	"rivulet/offload/watch"
)

// object is the constraint of all kinds: *corev1.Service and so on.
type object[T any] interface {
	metav1.Object
	runtime.Object
	DeepCopy() T
}

// api is the common part of the typed clients of all kinds.
type api[T any] interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (T, error)
	Create(ctx context.Context, o T, opts metav1.CreateOptions) (T, error)
	Update(ctx context.Context, o T, opts metav1.UpdateOptions) (T, error)
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
}

// kind is what one kind adds to the engine.
type kind[T object[T]] struct {
	name string
	zero T // the type for informers
	api  func(c kubernetes.Interface, namespace string) api[T]
	all  func(c kubernetes.Interface, namespace string) cache.ListerWatcher
	// translate returns the twin's version of an object at home; false if it is not reflected. The engine adds
	// metadata.
	translate func(home T) (T, bool)
	// merge sets in have everything that want has, and keeps what the target's server has added. It reports false if
	// the server would refuse that change: the object has to be replaced.
	merge func(have, want T) bool
	// others reports objects of the twin that have this cluster's label but are another writer's: a controller there
	// has copied it. It may be nil.
	others func(have T) bool
	// used reports whether something on the target refers to the named object; known is false before that is loaded.
	// Nil: all are used.
	used func(name string) (used, known bool)
	// hint is what the owner of a target that refuses objects of the kind can do.
	hint string
	// bare objects are reflected without annotations.
	bare bool
	// made are reflected in addition to the objects at home. stands returns, for an object at home, the name of the one
	// that is made from it.
	made   made[T]
	stands map[string]string
}

// of makes a kind from its typed client.
func of[T object[T], L runtime.Object, C interface {
	api[T]
	List(ctx context.Context, o metav1.ListOptions) (L, error)
	Watch(ctx context.Context, o metav1.ListOptions) (apiwatch.Interface, error)
}](name string, zero T, client func(c kubernetes.Interface, namespace string) C) kind[T] {
	return kind[T]{name: name, zero: zero,
		api: func(c kubernetes.Interface, namespace string) api[T] { return client(c, namespace) },
		all: func(c kubernetes.Interface, namespace string) cache.ListerWatcher {
			objects := client(c, namespace)
			return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
				ListWithContextFunc:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return objects.List(ctx, o) },
				WatchFuncWithContext: objects.Watch,
			}, c)
		}}
}

func (k *kind[T]) informer(all cache.ListerWatcher) cache.SharedIndexInformer {
	i := cache.NewSharedIndexInformer(all, k.zero, 0, cache.Indexers{})
	_ = i.SetTransform(watch.Unmanaged) // fails only after a start
	return i
}

// atHome is the informer of the space's namespace, which the spaces of all targets share.
func (k *kind[T]) atHome(s *space) *homecache.Informer {
	return s.cache.Informer(homecache.Key{Kind: k.name, Namespace: s.home}, func() cache.SharedIndexInformer {
		return k.informer(k.all(s.clients.home, s.home))
	})
}

// kindReflector is one kind in one space.
type kindReflector[T object[T]] struct {
	kind[T]
	space *space
	home  *homecache.Informer
	twin  cache.SharedIndexInformer
	// seconds are further objects that are made of one. touches are objects of other kinds to reconcile after the named
	// one has changed. Both may be nil.
	seconds []second[T]
	touches func(name string) []key
	// removed are the UIDs, by name, of objects that were deleted and may still be in the cache.
	removed sync.Map
	// left returns what is not reflected of an object, and the object for its event; it may be nil.
	left func(ctx context.Context, source T) (about runtime.Object, left LeftOut)
}

func newKindReflector[T object[T]](s *space, k kind[T]) *kindReflector[T] {
	return &kindReflector[T]{kind: k, space: s, home: k.atHome(s), twin: k.informer(s.kept.Bound(k.all(s.clients.twin, s.twin)))}
}

func (k *kindReflector[T]) informers() (*homecache.Informer, cache.SharedIndexInformer) {
	return k.home, k.twin
}

func (k *kindReflector[T]) names() []string {
	var names []string
	for _, o := range k.home.GetStore().List() {
		name := o.(T).GetName()
		names = append(names, name)
		for _, is := range k.seconds {
			names = append(names, secondName(is.prefix, name))
		}
	}
	return append(names, slices.Collect(maps.Keys(k.made))...)
}

func (k *kindReflector[T]) extra(name string) (also []key) {
	if name == "" {
		for other := range k.made {
			also = append(also, key{k.name, other})
		}
		return also
	}
	if other, ok := k.stands[name]; ok {
		also = append(also, key{k.name, other})
	}
	for _, is := range k.seconds {
		also = append(also, key{k.name, secondName(is.prefix, name)})
	}
	if k.touches != nil {
		also = append(also, k.touches(name)...)
	}
	return also
}

func (k *kindReflector[T]) reconcile(ctx context.Context, name string) error {
	source, atHome := get[T](k.home, k.space.home, name)
	if make, ok := k.made[name]; ok {
		source, atHome = make(k.home)
	}
	var is *second[T]
	if !atHome {
		source, is = k.firstOf(name)
		atHome = is != nil
	}
	have, there := get[T](k.twin, k.space.twin, name)
	if uid, ok := k.removed.Load(name); ok && there && uid == have.GetUID() {
		there = false
	} else if ok {
		k.removed.Delete(name)
	}
	var want T
	wanted := false
	if atHome {
		want, wanted = k.wanted(source, is)
	}
	if wanted {
		used, known := k.isUsed(source)
		if !used && !known {
			return target.ErrNotYet
		}
		wanted = used
	}
	ours := there && have.GetLabels()[policy.ReflectedLabel] == k.space.owner && (k.others == nil || !k.others(have))
	twin := k.api(k.space.clients.twin, k.space.twin)
	id := key{k.kind.name, name}
	var err error
	switch {
	case !wanted && ours:
		err = k.remove(ctx, twin, have)
	case !wanted:
	case !there:
		_, err = twin.Create(ctx, want, metav1.CreateOptions{FieldManager: policy.FieldManager})
	case !ours:
		k.space.report(id, source, "ReflectionConflict", fmt.Sprintf(
			"%s has a %s %s of its own in %s; it is left alone, pods away see it instead of this one. Rename one of them",
			k.space.target, k.kind.name, name, k.space.twin))
		return nil
	default:
		next := have.DeepCopy()
		possible := k.merge(next, want)
		dress(next, want)
		switch {
		case !possible: // deleted first, then created again
			if err = k.remove(ctx, twin, have); err == nil {
				return target.ErrNotYet
			}
		case !equality.Semantic.DeepEqual(next, have):
			_, err = twin.Update(ctx, next, metav1.UpdateOptions{FieldManager: policy.FieldManager})
		}
	}
	if err == nil {
		if atHome && is == nil && k.left != nil && source.GetDeletionTimestamp() == nil && k.follows(source) {
			if about, left := k.left(ctx, source); k.space.reportLeftOut(id, about, left) {
				return nil
			}
		}
		k.space.settled(id)
		return nil
	}
	if wanted && refused(err) {
		k.space.report(id, source, "ReflectionFailed", fmt.Sprintf("%s does not take this %s: %v%s", k.space.target, k.kind.name, err, k.hint))
	}
	return err
}

// wanted returns the object that the twin should have, or a second one; false if none.
func (k *kindReflector[T]) wanted(source T, is *second[T]) (T, bool) {
	if source.GetDeletionTimestamp() != nil || !k.follows(source) {
		return k.zero, false
	}
	want, ok := k.translate(source)
	if !ok || is != nil && !is.make(source, want) {
		return k.zero, false
	}
	want.SetName(source.GetName())
	if is != nil {
		want.SetName(secondName(is.prefix, source.GetName()))
	}
	want.SetNamespace(k.space.twin)
	labels := maps.Clone(source.GetLabels())
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, want.GetLabels())
	labels[policy.ReflectedLabel] = k.space.owner
	want.SetLabels(labels)
	annotations := maps.Clone(source.GetAnnotations())
	maps.DeleteFunc(annotations, func(key, _ string) bool { return homely(key) })
	if k.bare || is != nil && is.bare {
		annotations = nil
	}
	if said := want.GetAnnotations(); len(said) > 0 {
		if annotations == nil {
			annotations = map[string]string{}
		}
		maps.Copy(annotations, said)
	}
	want.SetAnnotations(annotations)
	return want, true
}

// follows reports whether users want the object to follow the pods.
func (k *kindReflector[T]) follows(source T) bool {
	if _, needed := k.made[source.GetName()]; needed {
		return true
	}
	return wantedAway(source, k.space.mode.Mode(k.name))
}

// isUsed reports whether the object follows, for kinds that follow only if used.
func (k *kindReflector[T]) isUsed(source T) (used, known bool) {
	_, needed := k.made[source.GetName()]
	mode := k.space.mode
	if needed || k.used == nil || mode.Mode(k.name) != policy.ReflectUsed || mode.Sends() && source.GetAnnotations()[policy.ReflectAnnotation] == policy.ReflectOn {
		return true, true
	}
	return k.used(source.GetName())
}

// late returns an error while an object that exists at home is not in the cache.
func (k *kindReflector[T]) late(ctx context.Context, name string) error {
	if _, seen := get[T](k.home, k.space.home, name); seen {
		return nil
	}
	_, err := k.api(k.space.clients.home, k.space.home).Get(ctx, name, metav1.GetOptions{})
	switch {
	case err == nil:
		return target.ErrNotYet
	case apierrors.IsNotFound(err):
		return nil
	}
	return err
}

// stays returns a policy.StaysHomeError for an object that exists at home and does not follow, unless the twin has one of
// that name that is not home's, or another stands for it.
func (k *kindReflector[T]) stays(name string) error {
	source, atHome := get[T](k.home, k.space.home, name)
	if have, there := get[T](k.twin, k.space.twin, name); there {
		if uid, removed := k.removed.Load(name); !removed || uid != have.GetUID() {
			return nil
		}
	}
	if !atHome || source.GetDeletionTimestamp() != nil || name == homeapi.RootCA {
		return nil
	}
	stays := &policy.StaysHomeError{Object: policy.Object{Kind: k.name, Namespace: k.space.home, Name: name}}
	_, translates := k.translate(source)
	switch mode := k.space.mode.Mode(k.name); {
	case !k.space.mode.Sends():
		return target.ErrNotYet // a pod is there, so this mode is about to change
	case !translates:
		stays.Why, stays.Cure = "it is a credential of this cluster, or what Helm keeps", "give the pod a projected serviceAccountToken volume in its place"
	case k.follows(source):
		return nil
	case mode == policy.ReflectOff:
		stays.Why, stays.Cure = "annotation "+policy.ReflectAnnotation+" of namespace "+k.space.home+" keeps this kind at home", "remove "+k.name+"="+mode+" there"
	default:
		stays.Why, stays.Cure = "its annotation "+policy.ReflectAnnotation+", or that of its namespace, keeps it at home", "annotate it "+policy.ReflectAnnotation+"="+policy.ReflectOn
	}
	return stays
}

// wantedAway reports whether users want the object to follow, for a kind that is reflected in the mode.
func wantedAway(o metav1.Object, mode string) bool {
	said := o.GetAnnotations()[policy.ReflectAnnotation]
	switch mode {
	case policy.ReflectOff:
		return false
	case policy.ReflectOptIn:
		return said == policy.ReflectOn
	}
	return said != policy.ReflectOff
}

// homely reports whether the annotation has a meaning only in its own cluster.
func homely(annotation string) bool {
	return annotation == corev1.LastAppliedConfigAnnotation || annotation == policy.ReflectAnnotation ||
		annotation == policy.HomeAddressAnnotation || annotation == policy.HomeNodeAnnotation ||
		strings.HasPrefix(annotation, "endpoints.kubernetes.io/")
}

// dress sets the labels and annotations of have to those of want.
func dress(have, want metav1.Object) {
	have.SetLabels(want.GetLabels())
	have.SetAnnotations(want.GetAnnotations())
}

// remove deletes exactly the given object: not a successor, and not one that another writer has taken over.
func (k *kindReflector[T]) remove(ctx context.Context, twin api[T], have T) error {
	if have.GetDeletionTimestamp() != nil {
		return nil
	}
	uid, version := have.GetUID(), have.GetResourceVersion()
	err := twin.Delete(ctx, have.GetName(), metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version}})
	if apierrors.IsNotFound(err) && !lost(err) {
		err = nil
	}
	if err == nil {
		k.removed.Store(have.GetName(), uid)
	}
	return err
}

func get[T any](informer interface{ GetStore() cache.Store }, namespace, name string) (T, bool) {
	var none T
	o, ok, err := informer.GetStore().GetByKey(namespace + "/" + name)
	if err != nil || !ok {
		return none, false
	}
	return o.(T), true
}
