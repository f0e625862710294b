package nodeagent

import (
	"context"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"rivulet/offload/watch"
)

// controllers watches the pods of ingress controllers, wherever they run: pods of other nodes have no CNI result here. It
// is for one goroutine.
type controllers struct {
	client  kubernetes.Interface
	pods    netip.Prefix // this cluster's
	changed func()

	inside map[string]*watched // by namespace
}

type watched struct {
	pods cache.SharedIndexInformer
	stop context.CancelFunc
}

// addresses are those of the unfinished pods in these namespaces, sorted. The pods of a namespace are watched from its
// first mention until ctx ends or it is not mentioned; before they are loaded there are none, and changed is called then.
func (c *controllers) addresses(ctx context.Context, namespaces []string) (out []netip.Addr) {
	for ns, in := range c.inside {
		if !slices.Contains(namespaces, ns) {
			in.stop()
			delete(c.inside, ns)
		}
	}
	for _, ns := range namespaces {
		in := c.inside[ns]
		if in == nil {
			factory := informers.NewSharedInformerFactoryWithOptions(c.client, 0, informers.WithNamespace(ns), informers.WithTransform(openable))
			within, stop := context.WithCancel(ctx)
			in = &watched{factory.Core().V1().Pods().Informer(), stop}
			_, _ = in.pods.AddEventHandler(watch.Changes(c.changed)) // fails only on a stopped informer
			go in.pods.RunWithContext(within)
			c.inside[ns] = in
		}
		for _, obj := range in.pods.GetStore().List() {
			out = append(out, addressesOf(obj, c.pods)...)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

// addressesOf are a pod's within a network, none of a finished one.
func addressesOf(obj any, within netip.Prefix) (out []netip.Addr) {
	p, ok := obj.(*corev1.Pod)
	if !ok || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return nil
	}
	for _, ip := range p.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil && within.Contains(a) {
			out = append(out, a)
		}
	}
	return out
}
