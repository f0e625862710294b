// Package watch has the common helpers of offload for watching objects of an API server: event handlers, options of
// informers, queues and their workers. It has no state, and reads and writes only what its callers pass to it.
package watch

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"rivulet/fabric/panics"
)

// A panic in a goroutine of client-go, for example in a handler of an informer, is logged, and the goroutine goes on with
// the next object, as it was made for: an object of one peer does not end the process.
func init() { utilruntime.ReallyCrash = false }

// Changes calls changed after any object was added, changed or deleted.
func Changes(changed func()) cache.ResourceEventHandlerFuncs {
	return All(func(any) { changed() })
}

// Each calls seen with each object that was added or changed, in its new state.
func Each(seen func(obj any)) cache.ResourceEventHandlerFuncs {
	return cache.ResourceEventHandlerFuncs{AddFunc: seen, UpdateFunc: func(_, obj any) { seen(obj) }}
}

// All is Each, and also calls seen with each deleted object, in its last state.
func All(seen func(obj any)) cache.ResourceEventHandlerFuncs {
	h := Each(seen)
	h.DeleteFunc = func(obj any) { seen(Last(obj)) }
	return h
}

// Last is the last state of a deleted object.
func Last(obj any) any {
	if d, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		return d.Obj
	}
	return obj
}

// Labelled limits informers to objects that match the label selector.
func Labelled(selector string) informers.SharedInformerOption {
	return informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = selector })
}

// Unmanaged is a transform that removes managedFields.
func Unmanaged(obj any) (any, error) {
	if m, err := meta.Accessor(obj); err == nil {
		m.SetManagedFields(nil)
	}
	return obj, nil
}

// Retries is a queue whose keys wait after a failure.
type Retries[K comparable] struct {
	workqueue.TypedRateLimitingInterface[K]

	mu     sync.Mutex
	failed map[K]struct{}
}

// Queue makes a queue whose keys wait for first after a failure, and twice as long after each other, up to longest.
func Queue[K comparable](first, longest time.Duration) *Retries[K] {
	return &Retries[K]{TypedRateLimitingInterface: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[K](first, longest)),
		failed: map[K]struct{}{}}
}

// AddRateLimited queues the key again after a failure.
func (q *Retries[K]) AddRateLimited(key K) {
	q.mu.Lock()
	q.failed[key] = struct{}{}
	q.mu.Unlock()
	q.TypedRateLimitingInterface.AddRateLimited(key)
}

// Forget is called after a success: the next failure of the key counts as its first.
func (q *Retries[K]) Forget(key K) {
	q.mu.Lock()
	delete(q.failed, key)
	q.mu.Unlock()
	q.TypedRateLimitingInterface.Forget(key)
}

// RetryAll ends the pauses of all keys that have failed, after the common reason of failures is over.
func (q *Retries[K]) RetryAll() {
	q.mu.Lock()
	failed := q.failed
	q.failed = map[K]struct{}{}
	q.mu.Unlock()
	for key := range failed {
		q.TypedRateLimitingInterface.Forget(key)
		q.Add(key)
	}
}

// Work calls do for each due key in a goroutine of its own, at most most at once: an empty queue costs one goroutine. A
// key whose do panics is logged and waits as after a failure. Work returns when ctx has ended or the queue is shut down, and all calls have returned.
func Work[K comparable](ctx context.Context, queue workqueue.TypedRateLimitingInterface[K], most int, do func(K)) {
	var busy sync.WaitGroup
	defer busy.Wait()
	room := make(chan struct{}, most)
	for {
		room <- struct{}{}
		key, stop := queue.Get()
		if stop || ctx.Err() != nil {
			return
		}
		busy.Go(func() {
			defer func() { <-room }()
			defer queue.Done(key)
			defer panics.To(func(err error) {
				var p *panics.Error
				errors.As(err, &p)
				klog.FromContext(ctx).Error(err, "Offloading: an object was not handled, it is tried again", "key", key, "stack", string(p.Stack))
				queue.AddRateLimited(key)
			})
			do(key)
		})
	}
}
