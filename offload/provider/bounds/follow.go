package bounds

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"rivulet/fabric/changes"
)

// rewatch is the pause before a kind is listed again after its watch has failed or ended at once.
const rewatch = time.Second

// follow keeps the stored versions of a kind up to date until ctx ends. (An informer waits up to 30 s before it
// retries, and does not report that it lags.)
func (b *Bounds) follow(ctx context.Context, kind schema.GroupVersionResource) {
	for ctx.Err() == nil {
		begun := time.Now()
		if err := b.watch(ctx, kind); err != nil && ctx.Err() == nil {
			b.mu.Lock()
			delete(b.stored, kind)
			b.mu.Unlock()
			b.evaluate()
		}
		if time.Since(begun) <= rewatch {
			changes.Wait(ctx, rewatch)
		}
	}
}

// watch lists a kind and watches it; it returns nil when the watch has ended and has to be renewed.
func (b *Bounds) watch(ctx context.Context, kind schema.GroupVersionResource) error {
	client := b.metas.Resource(kind)
	list, err := client.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	stored := map[string]version{}
	for i := range list.Items {
		stored[list.Items[i].Name] = versionOf(&list.Items[i])
	}
	b.mu.Lock()
	_, known := b.stored[kind]
	b.stored[kind] = stored
	b.mu.Unlock()
	b.evaluate()
	if !known && b.Problem() != nil { // the API server answers again
		b.Poke()
	}
	w, err := client.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		return err
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		o, ok := e.Object.(*metav1.PartialObjectMetadata)
		switch {
		case e.Type == watch.Error:
			return fmt.Errorf("bounds: %w", apierrors.FromObject(e.Object))
		case !ok:
			continue
		}
		b.mu.Lock()
		if e.Type == watch.Deleted {
			delete(stored, o.Name)
		} else {
			stored[o.Name] = versionOf(o)
		}
		b.mu.Unlock()
		b.evaluate()
	}
	return nil
}
