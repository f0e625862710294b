// Package homecache shares informers of home's API between targets: one watch, and one copy of each object, however
// many targets need it. It reads what the informers of its users list, and writes nothing. Restart: everything is
// listed again. Failure: an informer repeats its watch by itself, and is logged at level debug.
package homecache

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"

	"k8s.io/client-go/tools/cache"

	"rivulet/fabric/panics"
)

// Key identifies a set of objects. Users of the same key need the same objects, in the same form.
type Key struct{ Kind, Namespace string }

// Cache has the informers that run: those with a user. Its methods may be called concurrently.
type Cache struct {
	log     *slog.Logger
	mu      sync.Mutex
	running map[Key]*running
}

type running struct {
	informer cache.SharedIndexInformer
	users    int
	to       *fan
	begin    func()      // returns when it runs
	synced   func() bool // everything was passed to the fan
	end      func()      // returns when it has ended
}

// New makes an empty Cache.
func New(log *slog.Logger) *Cache { return &Cache{log: log, running: map[Key]*running{}} }

// Informer is one user's part of a shared informer.
type Informer struct {
	cache    *Cache
	key      Key
	make     func() cache.SharedIndexInformer
	informer atomic.Pointer[cache.SharedIndexInformer]
	synced   atomic.Pointer[func() bool]
}

// Informer returns a user's part of the informer of a key. Nothing is watched before its Run. If no other user runs
// then, the informer is made by make, which only configures it.
func (c *Cache) Informer(key Key, make func() cache.SharedIndexInformer) *Informer {
	return &Informer{cache: c, key: key, make: make}
}

// Run passes all objects and their changes to the handler until ctx ends. It may be called once. The handler delays
// those of all users, so it must not wait. The watch ends with the Run of its last user. When Run has returned, the handler is not called, and, if it was the last, nothing runs.
func (i *Informer) Run(ctx context.Context, handler cache.ResourceEventHandler) {
	r := i.cache.acquire(i.key, i.make)
	defer i.cache.release(i.key)
	i.informer.Store(&r.informer)
	r.to.join(i, handler)
	i.synced.Store(&r.synced)
	<-ctx.Done()
	r.to.leave(i)
}

// HasSynced reports whether all objects are in the store and were passed to the handler.
func (i *Informer) HasSynced() bool {
	synced := i.synced.Load()
	return synced != nil && (*synced)()
}

// none is the content of an Informer before Run.
var none = cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})

// GetIndexer returns the objects, which all users share: they may not be changed. After Run they stay as they are.
func (i *Informer) GetIndexer() cache.Indexer {
	if informer := i.informer.Load(); informer != nil {
		return (*informer).GetIndexer()
	}
	return none
}

// GetStore is GetIndexer.
func (i *Informer) GetStore() cache.Store { return i.GetIndexer() }

// acquire returns the informer of the key, which runs until each acquire has its release.
func (c *Cache) acquire(key Key, make func() cache.SharedIndexInformer) *running {
	r := c.user(key, make)
	r.begin()
	return r
}

// user counts one more user of the key.
func (c *Cache) user(key Key, make func() cache.SharedIndexInformer) *running {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.running[key]
	if r == nil {
		r = &running{informer: make(), to: &fan{log: c.log, seen: map[string]any{}, users: map[*Informer]cache.ResourceEventHandler{}}}
		r.begin = sync.OnceFunc(func() { r.start(c.log.With("kind", key.Kind, "namespace", key.Namespace)) })
		c.running[key] = r
	}
	r.users++
	return r
}

func (r *running) start(log *slog.Logger) {
	_ = r.informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) { // fails only after a start
		log.Debug("watch of home interrupted", "err", err)
	})
	registration, _ := r.informer.AddEventHandler(r.to) // fails only on a stopped informer
	r.synced = registration.HasSynced
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		defer panics.To(func(err error) { log.Error("watch of home ended", "err", err) })
		r.informer.RunWithContext(ctx)
	})
	r.end = func() {
		_ = r.informer.RemoveEventHandler(registration) // fails only for another informer's
		cancel()
		running.Wait()
	}
}

func (c *Cache) release(key Key) {
	c.mu.Lock()
	r := c.running[key]
	r.users--
	last := r.users == 0
	if last {
		delete(c.running, key)
	}
	c.mu.Unlock()
	if last {
		r.end()
	}
}

// fan passes what an informer reports to its users, one after the other; one that panics does not keep the others from it.
// A user costs an entry in a map, while each handler of client-go has two goroutines and a buffer of 16 kB. It has the
// reported objects for users that come later.
type fan struct {
	log   *slog.Logger
	mu    sync.Mutex
	seen  map[string]any
	users map[*Informer]cache.ResourceEventHandler
}

func (f *fan) join(i *Informer, handler cache.ResourceEventHandler) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, obj := range f.seen {
		handler.OnAdd(obj, true)
	}
	f.users[i] = handler
}

func (f *fan) leave(i *Informer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.users, i)
}

// report records obj as what there is of its name, nil for nothing, and calls each user.
func (f *fan) report(of, obj any, call func(cache.ResourceEventHandler)) {
	key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(of)
	if err != nil {
		return // no object
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if obj == nil {
		delete(f.seen, key)
	} else {
		f.seen[key] = obj
	}
	for _, handler := range f.users {
		if err := panics.Call(func() error { call(handler); return nil }); err != nil {
			f.log.Error("a change at home was not followed", "object", key, "err", err)
		}
	}
}

func (f *fan) OnAdd(obj any, initial bool) {
	f.report(obj, obj, func(to cache.ResourceEventHandler) { to.OnAdd(obj, initial) })
}

func (f *fan) OnUpdate(was, obj any) {
	f.report(obj, obj, func(to cache.ResourceEventHandler) { to.OnUpdate(was, obj) })
}

func (f *fan) OnDelete(obj any) {
	f.report(obj, nil, func(to cache.ResourceEventHandler) { to.OnDelete(obj) })
}
