package nodeagent

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"rivulet/fabric/changes"
	"rivulet/fabric/peer"
	"rivulet/offload/policy"
	"rivulet/offload/watch"
)

// Labelled are the Twins of a worker: the namespaces with policy.OriginLabel, read from the API server.
type Labelled struct {
	factory    informers.SharedInformerFactory
	namespaces cache.SharedIndexInformer
	changed    changes.Signal
	// ready is closed when more than the namespaces is known without which no tenant is isolated.
	ready <-chan struct{}
}

// NewLabelled makes Twins that are loaded once Run has read them and ready is closed.
func NewLabelled(client kubernetes.Interface, ready <-chan struct{}) *Labelled {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, watch.Labelled(policy.OriginLabel), informers.WithTransform(slimNamespace))
	return &Labelled{factory: factory, namespaces: factory.Core().V1().Namespaces().Informer(), ready: ready}
}

// slimNamespace keeps the parts that Twins uses.
func slimNamespace(obj any) (any, error) {
	ns, ok := obj.(*corev1.Namespace)
	if !ok {
		return obj, nil
	}
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns.Name, UID: ns.UID, ResourceVersion: ns.ResourceVersion, Labels: map[string]string{policy.OriginLabel: ns.Labels[policy.OriginLabel]}}}, nil
}

// Run reads them until ctx ends; it may be called once.
func (l *Labelled) Run(ctx context.Context) {
	_, _ = l.namespaces.AddEventHandler(watch.Changes(l.changed.Notify)) // fails only on a stopped informer
	l.factory.Start(ctx.Done())
	<-ctx.Done()
	l.factory.Shutdown()
}

// WaitTwins implements Twins.
func (l *Labelled) WaitTwins(ctx context.Context) bool {
	select {
	case <-l.ready:
		return cache.WaitForCacheSync(ctx.Done(), l.namespaces.HasSynced)
	case <-ctx.Done():
		return false
	}
}

// Twins implements Twins.
func (l *Labelled) Twins() map[string]peer.ID {
	out := map[string]peer.ID{}
	for _, obj := range l.namespaces.GetStore().List() {
		if ns, ok := obj.(*corev1.Namespace); ok {
			out[ns.Name] = peer.ID(ns.Labels[policy.OriginLabel])
		}
	}
	return out
}

// TwinsChanged implements Twins.
func (l *Labelled) TwinsChanged() (<-chan struct{}, func()) { return l.changed.Changed() }
