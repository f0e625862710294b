package foreign

import (
	"context"
	"fmt"
	"net/http"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/watchlist"
)

const (
	// MaxObjects bounds the objects of one kind in one namespace that home keeps: no quota of a consumer is larger
	// (package tenancy).
	MaxObjects = 8000
	// MaxKept bounds the objects that home keeps of one other, in bytes as protobuf.
	MaxKept = 64 << 20
	// perObject is added to the size of each object, in bytes.
	perObject = 512
	// pageSize is how many objects a list requests at once, maxPages how many pages one list has.
	pageSize, maxPages = 250, 1000
)

// Kept counts what the informers of one other's objects keep, all together. Its methods may be called concurrently.
type Kept struct {
	From Origin

	mu    sync.Mutex
	bytes int64
}

// Bytes is the size of all kept objects.
func (k *Kept) Bytes() int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.bytes
}

// Bound makes lists and watches of lw, which are for one informer, end with an error before the informer keeps too
// much. Lists come in pages. What the informer keeps counts until the context of its Run ends.
func (k *Kept) Bound(lw cache.ListerWatcher) cache.ListerWatcher {
	return &lister{ListerWatcherWithContext: cache.ToListerWatcherWithContext(lw), kept: k, plain: watchlist.DoesClientNotSupportWatchListSemantics(lw)}
}

// Informer makes a bounded informer of the objects of one kind that match the selector, by one of client's APIs.
func Informer[L runtime.Object](k *Kept, client any, api interface {
	List(ctx context.Context, o metav1.ListOptions) (L, error)
	Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
}, zero runtime.Object, selector string, transform cache.TransformFunc) cache.SharedIndexInformer {
	i := cache.NewSharedIndexInformer(k.Bound(cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.LabelSelector = selector
			return api.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector = selector
			return api.Watch(ctx, o)
		},
	}, client)), zero, 0, cache.Indexers{})
	_ = i.SetTransform(transform) // fails only after a start
	return i
}

// lister counts the objects of one informer.
type lister struct {
	cache.ListerWatcherWithContext
	kept  *Kept
	plain bool // there is no list by a watch

	// These are guarded by kept.mu.
	has     sizes // in the informer's store
	listed  sizes // by the list under way, which replaces the store
	pages   int
	counted int64 // of kept.bytes
	run     bool
	over    bool
}

type sizes struct {
	of  map[string]int64 // by namespace/name
	sum int64
}

func (s *sizes) put(key string, size int64) {
	s.sum += size - s.of[key]
	s.of[key] = size
}

func (s *sizes) drop(key string) {
	s.sum -= s.of[key]
	delete(s.of, key)
}

// IsWatchListSemanticsUnSupported is read by reflectors.
func (l *lister) IsWatchListSemanticsUnSupported() bool { return l.plain }

func (l *lister) List(o metav1.ListOptions) (runtime.Object, error) {
	return l.ListWithContext(context.Background(), o)
}

func (l *lister) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return l.WatchWithContext(context.Background(), o)
}

// ListWithContext returns one page.
func (l *lister) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	if o.Limit == 0 || o.Limit > pageSize {
		o.Limit = pageSize
	}
	if o.ResourceVersion == "0" { // a watch cache would ignore the limit
		o.ResourceVersion = ""
	}
	first := o.Continue == ""
	page, err := l.ListerWatcherWithContext.ListWithContext(ctx, o)
	if err != nil {
		return nil, err
	}
	list, err := meta.ListAccessor(page)
	if err != nil {
		return nil, &Unusable{l.kept.From, "it is no list"}
	}
	l.kept.mu.Lock()
	defer l.kept.mu.Unlock()
	if first || l.listed.of == nil {
		l.begin(ctx)
	}
	if l.pages++; l.pages > maxPages {
		err = &Unusable{l.kept.From, fmt.Sprintf("a list has more than %d pages", maxPages)}
	} else {
		err = meta.EachListItem(page, func(o runtime.Object) error { return l.add(&l.listed, o) })
	}
	if err != nil {
		l.listed = sizes{}
		l.count()
		return nil, err
	}
	if list.GetContinue() == "" {
		l.end()
	}
	return page, nil
}

// WatchWithContext ends the watch with an event that has the error.
func (l *lister) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	inner, err := l.ListerWatcherWithContext.WatchWithContext(ctx, o)
	if err != nil {
		return nil, err
	}
	lists := o.SendInitialEvents != nil && *o.SendInitialEvents
	l.kept.mu.Lock()
	if lists {
		l.begin(ctx)
	} else {
		l.start(ctx)
	}
	l.kept.mu.Unlock()
	w := &counted{Interface: inner, out: make(chan watch.Event), stopped: make(chan struct{})}
	go func() {
		defer close(w.out)
		defer inner.Stop()
		for e := range inner.ResultChan() {
			if err := l.event(e, &lists); err != nil {
				e = watch.Event{Type: watch.Error, Object: &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusRequestEntityTooLarge,
					Reason: metav1.StatusReasonRequestEntityTooLarge, Message: err.Error()}}
			}
			select {
			case w.out <- e:
			case <-w.stopped:
				return
			}
			if e.Type == watch.Error {
				return
			}
		}
	}()
	return w, nil
}

// event counts one event; lists: those of the list are not over.
func (l *lister) event(e watch.Event, lists *bool) error {
	l.kept.mu.Lock()
	defer l.kept.mu.Unlock()
	to := &l.has
	if *lists {
		to = &l.listed
	}
	switch e.Type {
	case watch.Added, watch.Modified:
		return l.add(to, e.Object)
	case watch.Deleted:
		if key, err := cache.MetaNamespaceKeyFunc(e.Object); err == nil {
			to.drop(key)
			l.count()
		}
	case watch.Bookmark:
		if m, err := meta.Accessor(e.Object); err == nil && *lists && m.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true" {
			*lists = false
			l.end()
		}
	}
	return nil
}

// begin begins a list. kept.mu is held.
func (l *lister) begin(ctx context.Context) {
	l.start(ctx)
	l.listed, l.pages = sizes{of: map[string]int64{}}, 0
	l.count()
}

// end makes the list what the store has. kept.mu is held.
func (l *lister) end() {
	l.has, l.listed = l.listed, sizes{}
	l.count()
}

// start counts until the informer's context ends. kept.mu is held.
func (l *lister) start(ctx context.Context) {
	if l.run {
		return
	}
	l.run, l.has.of = true, map[string]int64{}
	context.AfterFunc(ctx, func() {
		l.kept.mu.Lock()
		defer l.kept.mu.Unlock()
		l.over, l.has, l.listed = true, sizes{}, sizes{}
		l.count()
	})
}

// count updates the total. The store has what was there until a list is complete. kept.mu is held.
func (l *lister) count() {
	now := max(l.has.sum, l.listed.sum)
	l.kept.bytes += now - l.counted
	l.counted = now
}

// add counts an object that is about to be kept, unless it is one too many. kept.mu is held.
func (l *lister) add(to *sizes, o runtime.Object) error {
	key, err := cache.MetaNamespaceKeyFunc(o)
	sized, ok := o.(interface{ Size() int })
	switch {
	case l.over:
		return context.Canceled
	case err != nil || !ok:
		return &Unusable{l.kept.From, fmt.Sprintf("a list or watch has a %T", o)}
	}
	if err := Quantities(o); err != nil {
		return &Unusable{l.kept.From, err.Error()}
	}
	had, there := to.of[key]
	if !there && len(to.of) >= MaxObjects {
		return &Unusable{l.kept.From, fmt.Sprintf("a list or watch has more than %d objects", MaxObjects)}
	}
	to.put(key, int64(sized.Size())+perObject)
	if l.count(); l.kept.bytes <= MaxKept {
		return nil
	}
	if to.drop(key); there {
		to.put(key, had)
	}
	l.count()
	return &Unusable{l.kept.From, fmt.Sprintf("its objects are larger than %d MiB together", MaxKept>>20)}
}

// counted is a watch whose events pass event.
type counted struct {
	watch.Interface
	out     chan watch.Event
	once    sync.Once
	stopped chan struct{}
}

func (w *counted) ResultChan() <-chan watch.Event { return w.out }

func (w *counted) Stop() {
	w.once.Do(func() { close(w.stopped) })
	w.Interface.Stop()
}

// Pages lists all objects in pages, and calls each with one page after the other. They have MaxKept bytes together.
func Pages[L metav1.ListInterface](ctx context.Context, from Origin, o metav1.ListOptions, list func(context.Context, metav1.ListOptions) (L, error), each func(L)) error {
	o.Limit = pageSize
	var size int
	for range maxPages {
		page, err := list(ctx, o)
		if err != nil {
			return err
		}
		sized, ok := any(page).(interface{ Size() int })
		if !ok {
			return &Unusable{from, fmt.Sprintf("a list is a %T", page)}
		}
		if size += sized.Size(); size > MaxKept {
			return &Unusable{from, fmt.Sprintf("a list is larger than %d MiB", MaxKept>>20)}
		}
		if err := Quantities(page); err != nil {
			return &Unusable{from, err.Error()}
		}
		each(page)
		if o.Continue = page.GetContinue(); o.Continue == "" {
			return nil
		}
	}
	return &Unusable{from, fmt.Sprintf("a list has more than %d pages", maxPages)}
}
