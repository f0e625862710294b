package node

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"rivulet/fabric/changes"
	"rivulet/fabric/panics"
	"rivulet/offload/consumer/homecache"
)

// guard watches the Node for cordons, and makes it again if it is deleted. Otherwise Kubernetes would remove its pods a
// minute later, and their owners would make others while these still run. It calls end with a panic.
func (n *Node) guard(ctx context.Context, end context.CancelCauseFunc) {
	nodes := n.cache.Informer(homecache.Key{Kind: "Node"}, func() cache.SharedIndexInformer {
		return informers.NewSharedInformerFactoryWithOptions(n.client, 0, informers.WithTransform(func(obj any) (any, error) {
			if node, ok := obj.(*corev1.Node); ok {
				return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion},
					Spec: corev1.NodeSpec{Unschedulable: node.Spec.Unschedulable}}, nil
			}
			return obj, nil
		})).Core().V1().Nodes().Informer()
	})
	deleted := make(chan struct{}, 1)
	heard := func(obj any) {
		if node, ok := obj.(*corev1.Node); ok && node.Name == n.id.Name {
			n.mu.Lock()
			other := n.cordoned != node.Spec.Unschedulable
			n.cordoned = node.Spec.Unschedulable
			n.mu.Unlock()
			if other {
				n.owner.NodeChanged(n.id.Name)
			}
		}
	}
	var again sync.WaitGroup
	defer again.Wait()
	again.Go(func() {
		defer panics.To(end)
		for {
			select {
			case <-ctx.Done():
				return
			case <-deleted:
			}
			err := n.recreate(ctx, apierrors.NewNotFound(corev1.Resource("nodes"), n.id.Name))
			if err != nil && !apierrors.IsAlreadyExists(err) {
				changes.Wait(ctx, time.Second)
				changes.Poke(deleted)
			}
		}
	})
	nodes.Run(ctx, cache.ResourceEventHandlerFuncs{AddFunc: heard, UpdateFunc: func(_, obj any) { heard(obj) }, DeleteFunc: func(obj any) {
		if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj); err == nil && key == n.id.Name {
			changes.Poke(deleted)
		}
	}})
}
