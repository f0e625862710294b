package twin

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

// HomeAPI returns the address in the twin of the Service that leads to home's API server.
func (t *Twin) HomeAPI(ctx context.Context) (string, error) {
	t.api.mu.Lock()
	defer t.api.mu.Unlock()
	if t.api.text != "" && time.Since(t.api.at) < addressAge {
		return t.api.text, nil
	}
	s, err := t.client.CoreV1().Services(t.Name).Get(ctx, homeapi.Service, metav1.GetOptions{})
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

// Listed reports whether the pods were listed.
func (t *Twin) Listed() bool { return t.pods.HasSynced() }

// Addresses are those of its pods.
func (t *Twin) Addresses() []string { return t.pods.GetIndexer().ListIndexFuncValues(byAddr) }

// Has reports whether a pod has the address.
func (t *Twin) Has(addr netip.Addr) bool {
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
