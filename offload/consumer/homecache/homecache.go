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
	end      func() // returns when it has ended
}

// New makes an empty Cache.
func New(log *slog.Logger) *Cache { return &Cache{log: log, running: map[Key]*running{}} }

// Informer is one user's part of a shared informer.
type Informer struct {
	cache        *Cache
	key          Key
	make         func() cache.SharedIndexInformer
	informer     atomic.Pointer[cache.SharedIndexInformer]
	registration atomic.Pointer[cache.ResourceEventHandlerRegistration]
}

// Informer returns a user's part of the informer of a key. Nothing is watched before its Run. If no other user runs
// then, the informer is made by make, which only configures it.
func (c *Cache) Informer(key Key, make func() cache.SharedIndexInformer) *Informer {
	return &Informer{cache: c, key: key, make: make}
}

// Run passes all objects and their changes to the handler until ctx ends. It may be called once. The watch ends with
// the Run of its last user. When Run has returned, the handler is not called, and, if it was the last, nothing runs.
func (i *Informer) Run(ctx context.Context, handler cache.ResourceEventHandler) {
	informer := i.cache.acquire(i.key, i.make)
	defer i.cache.release(i.key)
	i.informer.Store(&informer)
	calls := &calls{to: handler}
	registration, _ := informer.AddEventHandler(calls) // fails only on a stopped informer
	i.registration.Store(&registration)
	<-ctx.Done()
	_ = informer.RemoveEventHandler(registration) // fails only for another informer's
	calls.end()
}

// HasSynced reports whether all objects are in the store and were passed to the handler.
func (i *Informer) HasSynced() bool {
	r := i.registration.Load()
	return r != nil && (*r).HasSynced()
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
func (c *Cache) acquire(key Key, make func() cache.SharedIndexInformer) cache.SharedIndexInformer {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.running[key]
	if r == nil {
		r = &running{informer: make()}
		_ = r.informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) { // fails only after a start
			c.log.Debug("watch of home interrupted", "kind", key.Kind, "namespace", key.Namespace, "err", err)
		})
		ctx, cancel := context.WithCancel(context.Background())
		var running sync.WaitGroup
		running.Go(func() { r.informer.RunWithContext(ctx) })
		r.end = func() { cancel(); running.Wait() }
		c.running[key] = r
	}
	r.users++
	return r.informer
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

// calls passes what an informer reports to a handler until end: an informer may still report something after the
// handler was removed.
type calls struct {
	mu   sync.Mutex
	to   cache.ResourceEventHandler
	over bool
}

func (c *calls) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
}

func (c *calls) pass(call func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.over {
		call()
	}
}

func (c *calls) OnAdd(obj any, initial bool) { c.pass(func() { c.to.OnAdd(obj, initial) }) }
func (c *calls) OnUpdate(was, obj any)       { c.pass(func() { c.to.OnUpdate(was, obj) }) }
func (c *calls) OnDelete(obj any)            { c.pass(func() { c.to.OnDelete(obj) }) }
