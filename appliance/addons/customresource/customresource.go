// Package customresource runs a controller of one of Rivulet's kinds of objects: it applies the kind's definition,
// waits until the API server serves it, watches the objects, and calls a function whenever an object, or the state that
// the objects describe, has changed.
//
// It reads the objects and alone writes the definition. Restart: everything is compared again. Failures are retried
// after 1 s, then after up to 30 s.
package customresource

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"rivulet/fabric/changes"
	"rivulet/offload/policy"
)

const firstRetry = time.Second

// LastRetry is the longest pause after a failure.
const LastRetry = 30 * time.Second

// Kind is a kind of objects.
type Kind struct {
	Name       string // in errors
	Definition []byte // of the custom resource, YAML
	Resource   schema.GroupVersionResource
	// Gather is how long changes are collected before they are handled together.
	Gather time.Duration
}

// Objects are the objects of a kind, and the clients to write them.
type Objects struct {
	Dynamic  dynamic.Interface
	Kube     kubernetes.Interface
	Store    cache.Store // of *unstructured.Unstructured, from the watch
	Recorder record.EventRecorder
	Poke     func() // triggers Sync
}

// Loop has the functions that are called.
type Loop struct {
	// Sync compares everything. It is called once at a time.
	Sync func(ctx context.Context) error
	// Changed also trigger Sync.
	Changed []<-chan struct{}
	// Every, if it is not 0, is the interval of Sync without a change.
	Every time.Duration
	Log   *slog.Logger
}

// Run runs a controller until ctx ends. It calls start once all objects are known, and ready after the first Sync,
// whose failures concern single objects, which report them.
func Run(ctx context.Context, api *rest.Config, k Kind, start func(Objects) Loop, ready func()) error {
	if err := policy.Apply(ctx, api, k.Definition); err != nil {
		return fmt.Errorf("%s: %w", k.Name, err)
	}
	dyn, err := dynamic.NewForConfig(api)
	if err != nil {
		return fmt.Errorf("%s: %w", k.Name, err)
	}
	kube, err := kubernetes.NewForConfig(api)
	if err != nil {
		return fmt.Errorf("%s: %w", k.Name, err)
	}
	for { // until the API server serves them
		_, err := dyn.Resource(k.Resource).List(ctx, metav1.ListOptions{Limit: 1, ResourceVersion: "0"})
		if err == nil {
			break
		}
		if !changes.Wait(ctx, 200*time.Millisecond) {
			return fmt.Errorf("%s: the API server does not serve them: %w", k.Name, err)
		}
	}
	events := record.NewBroadcaster(record.WithContext(ctx))
	defer events.Shutdown()
	events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: kube.CoreV1().Events("")})

	informer := dynamicinformer.NewDynamicSharedInformerFactory(dyn, 0).ForResource(k.Resource).Informer()
	told := make(chan struct{}, 1)
	poke := func(any) {
		changes.Poke(told)
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: poke, UpdateFunc: func(_, o any) { poke(o) }, DeleteFunc: poke}); err != nil {
		return fmt.Errorf("%s: %w", k.Name, err)
	}
	running := make(chan struct{})
	go func() { defer close(running); informer.RunWithContext(ctx) }()
	defer func() { <-running }()
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return nil // stopped
	}
	loop := start(Objects{
		Dynamic: dyn, Kube: kube, Store: informer.GetStore(), Poke: func() { poke(nil) },
		Recorder: events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "rivulet"}),
	})
	for _, changed := range loop.Changed {
		go func() {
			for {
				select {
				case <-ctx.Done():
					return
				case <-changed:
					poke(nil)
				}
			}
		}()
	}
	loop.follow(ctx, k, told, ready)
	return nil
}

func (l Loop) follow(ctx context.Context, k Kind, told <-chan struct{}, ready func()) {
	retry, pause := time.NewTimer(0), firstRetry
	defer retry.Stop()
	var again <-chan time.Time
	if l.Every > 0 {
		ticker := time.NewTicker(l.Every)
		defer ticker.Stop()
		again = ticker.C
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-told:
		case <-retry.C:
		case <-again:
		}
		if !changes.Wait(ctx, k.Gather) {
			return
		}
		if err := l.Sync(ctx); err != nil && ctx.Err() == nil {
			l.Log.Debug("objects and what they stand for differ, trying again", "kind", k.Name, "err", err)
			retry.Reset(pause)
			pause = min(2*pause, LastRetry)
		} else {
			pause = firstRetry
		}
		if ready != nil {
			ready()
			ready = nil
		}
	}
}
