package homecache

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	fcache "k8s.io/client-go/tools/cache/testing"
	"pgregory.net/rapid"

	"rivulet/test/harness/await"
)

// home is an API server with ConfigMaps.
type home struct {
	namespaces map[string]*fcache.FakeControllerSource
	watches    atomic.Int32 // open ones
	lists      atomic.Int32

	mu     sync.RWMutex
	closed bool
}

func newHome(namespaces ...string) *home {
	h := &home{namespaces: map[string]*fcache.FakeControllerSource{}}
	for _, ns := range namespaces {
		h.namespaces[ns] = fcache.NewFakeControllerSource()
	}
	return h
}

func (*home) IsWatchListSemanticsUnSupported() bool { return true }

func (h *home) informer(namespace string) cache.SharedIndexInformer {
	source := h.namespaces[namespace]
	return cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(_ context.Context, o metav1.ListOptions) (kruntime.Object, error) {
			h.lists.Add(1)
			h.mu.RLock()
			defer h.mu.RUnlock()
			if h.closed { // client-go waits for no list, and the source answers none then
				return nil, context.Canceled
			}
			return source.List(o)
		},
		WatchFuncWithContext: func(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w, err := source.Watch(o)
			if err != nil {
				return nil, err
			}
			h.watches.Add(1)
			return &counted{w, sync.OnceFunc(func() { h.watches.Add(-1) })}, nil
		},
	}, h), &corev1.ConfigMap{}, 0, cache.Indexers{})
}

type counted struct {
	watch.Interface
	ended func()
}

func (c *counted) Stop() {
	c.ended()
	c.Interface.Stop()
}

func (h *home) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for _, source := range h.namespaces {
		source.Shutdown()
	}
}

func object(namespace, name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

// user is one target's interest in a namespace; it notes what it is shown.
type user struct {
	*Informer
	end  context.CancelFunc
	done chan struct{}

	mu    sync.Mutex
	shown map[string]bool
	over  bool
	late  atomic.Bool // it was called after its end
}

func (h *home) use(c *Cache, namespace string) *user {
	ctx, end := context.WithCancel(context.Background())
	u := &user{Informer: c.Informer(Key{"ConfigMap", namespace}, func() cache.SharedIndexInformer { return h.informer(namespace) }),
		end: end, done: make(chan struct{}), shown: map[string]bool{}}
	note := func(there bool) func(any) {
		return func(o any) {
			if d, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = d.Obj
			}
			u.mu.Lock()
			defer u.mu.Unlock()
			u.shown[o.(*corev1.ConfigMap).Name] = there
			if u.over {
				u.late.Store(true)
			}
		}
	}
	go func() {
		defer close(u.done)
		u.Run(ctx, cache.ResourceEventHandlerFuncs{AddFunc: note(true), DeleteFunc: note(false)})
		u.mu.Lock()
		u.over = true
		u.mu.Unlock()
	}()
	return u
}

func (u *user) stop() {
	u.end()
	<-u.done
}

// sees returns what differs between what there is, what the user was shown, and what its store has.
func (u *user) sees(want map[string]bool) string {
	if !u.HasSynced() {
		return "not synced"
	}
	u.mu.Lock()
	shown := maps.Clone(u.shown)
	u.mu.Unlock()
	maps.DeleteFunc(shown, func(_ string, there bool) bool { return !there })
	stored := map[string]bool{}
	for _, o := range u.GetStore().List() {
		stored[o.(*corev1.ConfigMap).Name] = true
	}
	if !maps.Equal(shown, want) || !maps.Equal(stored, want) {
		return fmt.Sprintf("shown %v, stored %v, want %v", shown, stored, want)
	}
	return ""
}

func TestUsersShareAWatch(t *testing.T) {
	h := newHome("lab")
	defer h.close()
	c := New(slog.New(slog.DiscardHandler))
	until := func(what string, u *user, names ...string) {
		t.Helper()
		want := map[string]bool{}
		for _, name := range names {
			want[name] = true
		}
		await.Empty(t, time.Minute, what, func(context.Context) string { return u.sees(want) })
	}
	h.namespaces["lab"].Add(object("lab", "x"))
	idle := c.Informer(Key{"ConfigMap", "lab"}, func() cache.SharedIndexInformer { t.Error("made before it runs"); return nil })
	if idle.HasSynced() || len(idle.GetStore().List()) > 0 {
		t.Error("content before Run")
	}
	first := h.use(c, "lab")
	until("the first is shown what there is", first, "x")
	alone := runtime.NumGoroutine()
	brief := h.use(c, "lab")
	until("so is one that comes later", brief, "x")
	brief.stop()
	await.True(t, time.Minute, "nothing of it is left at the end, while the first goes on", func() bool { return runtime.NumGoroutine() <= alone })
	second := h.use(c, "lab")
	until("one more", second, "x")
	if first.GetStore().List()[0] != second.GetStore().List()[0] {
		t.Error("the object is cached twice")
	}
	first.stop()
	h.namespaces["lab"].Add(object("lab", "y"))
	until("the second goes on", second, "x", "y")
	if n := h.lists.Load(); n != 1 {
		t.Errorf("%d lists", n)
	}
	if first.late.Load() || first.shown["y"] {
		t.Error("shown something after its end")
	}
	second.stop()
	if n := h.watches.Load(); n != 0 || len(c.running) != 0 {
		t.Errorf("%d watches and %d informers without users", n, len(c.running))
	}
	third := h.use(c, "lab")
	until("a later one begins anew", third, "x", "y")
	third.stop()
	if n := h.lists.Load(); n != 2 {
		t.Errorf("%d lists", n)
	}
}

// Two hundred targets cost no goroutines and buffers beside those of the watch.
func TestUsersCostLittle(t *testing.T) {
	h := newHome("lab")
	defer h.close()
	c := New(slog.New(slog.DiscardHandler))
	h.namespaces["lab"].Add(object("lab", "x"))
	first := h.use(c, "lab")
	defer first.stop()
	until := func(u *user) {
		t.Helper()
		await.Empty(t, time.Minute, "it is shown what there is", func(context.Context) string { return u.sees(map[string]bool{"x": true}) })
	}
	until(first)
	memory := func() int {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	const n = 200
	goroutines, heap := runtime.NumGoroutine(), memory()
	for range n {
		u := h.use(c, "lab")
		defer u.stop()
		until(u)
	}
	if more := runtime.NumGoroutine() - goroutines; more > n+5 { // the one of use
		t.Errorf("%d users have %d goroutines", n, more)
	}
	if each := (memory() - heap) / n; each > 6<<10 {
		t.Errorf("a user takes %d bytes", each)
	}
}

// A target may end at any time, also before it has seen anything.
func TestUsersComeAndGo(t *testing.T) {
	namespaces := []string{"a", "b", "c"}
	before := runtime.NumGoroutine()
	rapid.Check(t, func(t *rapid.T) {
		h, c := newHome(namespaces...), New(slog.New(slog.DiscardHandler))
		defer h.close()
		there := map[string]map[string]bool{"a": {}, "b": {}, "c": {}}
		live, ended := map[*user]string{}, []*user{}
		var ending sync.WaitGroup
		end := func(u *user) {
			delete(live, u)
			ended = append(ended, u)
			ending.Go(u.stop)
		}
		check := func() {
			for u, ns := range live {
				await.Empty(t, time.Minute, "a user of "+ns, func(context.Context) string { return u.sees(there[ns]) })
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"begin": func(t *rapid.T) {
				ns := rapid.SampledFrom(namespaces).Draw(t, "namespace")
				live[h.use(c, ns)] = ns
			},
			"end": func(t *rapid.T) {
				users := slices.Collect(maps.Keys(live))
				if len(users) == 0 {
					t.Skip("none")
				}
				end(users[rapid.IntRange(0, len(users)-1).Draw(t, "user")])
			},
			"end all of a namespace": func(t *rapid.T) {
				ns := rapid.SampledFrom(namespaces).Draw(t, "namespace")
				for u, of := range live {
					if of == ns {
						end(u)
					}
				}
			},
			"change": func(t *rapid.T) {
				ns, name := rapid.SampledFrom(namespaces).Draw(t, "namespace"), rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "name")
				if there[ns][name] {
					delete(there[ns], name)
					h.namespaces[ns].Delete(object(ns, name))
				} else {
					there[ns][name] = true
					h.namespaces[ns].Add(object(ns, name))
				}
			},
			"look": func(*rapid.T) { check() },
		})
		check()
		ending.Wait()
		used := map[string]bool{}
		for _, ns := range live {
			used[ns] = true
		}
		if len(c.running) != len(used) {
			t.Errorf("informers for %v, used are %v", slices.Collect(maps.Keys(c.running)), used)
		}
		for u := range live {
			end(u)
		}
		ending.Wait()
		if n := h.watches.Load(); n != 0 || len(c.running) != 0 {
			t.Errorf("%d watches and %d informers without users", n, len(c.running))
		}
		for _, u := range ended {
			if u.late.Load() {
				t.Error("a user was shown something after its end")
			}
		}
	})
	await.True(t, time.Minute, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= before })
}
