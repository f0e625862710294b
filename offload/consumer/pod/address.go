package pod

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"rivulet/offload/consumer/pod/translate"
	"rivulet/offload/homeapi"
)

// apiAddress caches the address of the Service that leads to home's API server. It is read again regularly, since the
// Service may have been replaced.
type apiAddress struct {
	mu   sync.Mutex
	text string
	at   time.Time
}

const addressAge = time.Minute

// homeAPI returns the address in the twin of the Service that leads to home's API server.
func (t *twin) homeAPI(ctx context.Context) (string, error) {
	t.api.mu.Lock()
	defer t.api.mu.Unlock()
	if t.api.text != "" && time.Since(t.api.at) < addressAge {
		return t.api.text, nil
	}
	s, err := t.client.CoreV1().Services(t.name).Get(ctx, homeapi.Service, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("offload: the way to home's API server: %w", err)
	}
	t.api.text, t.api.at = s.Spec.ClusterIP, time.Now()
	return t.api.text, nil
}

// addresses indexes living pods by their addresses.
func addresses(obj any) ([]string, error) {
	p, ok := obj.(*corev1.Pod)
	if !ok || translate.Terminal(p.Status.Phase) || p.Spec.HostNetwork {
		return nil, nil
	}
	var out []string
	for _, ip := range p.Status.PodIPs {
		out = append(out, ip.IP)
	}
	return out, nil
}

// listed reports whether the pods were listed.
func (t *twin) listed() bool { return t.pods.HasSynced() }

// addresses are those of its pods.
func (t *twin) addresses() []string { return t.pods.GetIndexer().ListIndexFuncValues(byAddr) }

// has reports whether a pod has the address.
func (t *twin) has(addr netip.Addr) bool {
	pods, _ := t.pods.GetIndexer().ByIndex(byAddr, addr.String())
	return len(pods) > 0
}

// moves calls moved after addresses of pods have changed.
func moves(moved func()) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { moved() }, DeleteFunc: func(any) { moved() },
		UpdateFunc: func(was, is any) {
			before, _ := addresses(was)
			if now, _ := addresses(is); !slices.Equal(before, now) {
				moved()
			}
		}}
}

// Addresses returns the addresses of home's pods on the target, as home sees them, and the number of unfinished pods
// that home has sent there. It reports false until all are loaded.
func (c *Controller) Addresses() (addrs []netip.Addr, pods int, known bool) {
	known = c.pods.synced()
	namespaces := map[string]bool{}
	for _, p := range c.pods.list() {
		if !translate.Terminal(p.Status.Phase) {
			pods++
			namespaces[p.Namespace] = true
		}
	}
	for ns := range namespaces {
		t := c.twins.get(ns)
		known = known && t != nil && t.listed()
	}
	for _, t := range c.twins.list() {
		for _, text := range t.addresses() {
			if there, err := netip.ParseAddr(text); err == nil {
				if here, ok := c.cfg.Target.Home(there); ok {
					addrs = append(addrs, here)
				}
			}
		}
	}
	return addrs, pods, known
}

// Runs reports whether a pod of home now runs on the target at the address, given as home sees it.
func (c *Controller) Runs(addr netip.Addr) bool {
	there, ok := c.cfg.Target.Away(addr)
	if !ok {
		return false
	}
	if back, ok := c.cfg.Target.Home(there); !ok || back != addr {
		return false // an address of home or of another target
	}
	return slices.ContainsFunc(c.twins.list(), func(t *twin) bool { return t.has(there) })
}
