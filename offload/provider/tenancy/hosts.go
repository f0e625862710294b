package tenancy

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"rivulet/fabric/changes"
	"rivulet/fabric/peer"
	"rivulet/offload/policy"
	"rivulet/offload/watch"
)

// A host of an Ingress has one owner here: this cluster first, then the consumer that came first. A consumer's Ingress
// is first created by a dry run, so that it is checked in the form that the API server would store, and it is admitted
// while no other request may claim hosts. If this cluster takes a host later, the consumer's Ingress is deleted, and
// its next one refused.

// ingress passes a request that creates or changes an Ingress.
func (t *Tenancy) ingress(w http.ResponseWriter, r *http.Request, consumer peer.ID, pass func(http.ResponseWriter, *http.Request)) {
	body, err := io.ReadAll(r.Body) // before anything is locked
	if err != nil {
		status(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, "the request broke off")
		return
	}
	mine, err := t.visitors.wait(r.Context(), consumer, func(v *visitor) chan struct{} { return v.ingresses })
	if err != nil {
		return
	}
	defer mine()
	select {
	case t.hosts <- struct{}{}:
		defer func() { <-t.hosts }()
	case <-r.Context().Done():
		return
	}
	try := r.Clone(r.Context())
	query := try.URL.Query()
	query.Set("dryRun", metav1.DryRunAll)
	try.URL.RawQuery = query.Encode()
	try.Header.Set("Accept", "application/json")
	try.Body = io.NopCloser(bytes.NewReader(body))
	said := &rehearsal{header: http.Header{}}
	t.proxy.serve(said, try, consumer)
	if said.code/100 != 2 {
		for key, values := range said.header {
			w.Header()[key] = values
		}
		w.WriteHeader(said.code)
		_, _ = w.Write(said.body.Bytes()) // the client may be gone
		return
	}
	var made networkingv1.Ingress
	if err := json.Unmarshal(said.body.Bytes(), &made); err != nil {
		later(w, "the provider does not understand its own API server")
		return
	}
	all, err := t.client.NetworkingV1().Ingresses("").List(r.Context(), metav1.ListOptions{})
	if err != nil {
		later(w, "the provider does not know the hosts of its Ingresses")
		return
	}
	var others []*networkingv1.Ingress
	for i := range all.Items {
		others = append(others, &all.Items[i])
	}
	for _, host := range hostsOf(&made) {
		if by := t.takenBy(host, consumer, others); by != nil {
			owner := t.ClusterName()
			if _, tenant := t.consumerOf(by.Namespace); tenant {
				owner = "another cluster"
			}
			status(w, http.StatusForbidden, metav1.StatusReasonForbidden, fmt.Sprintf("host %s is that of %s; use another host", host, owner))
			return
		}
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	pass(w, r)
}

// rehearsal records an answer.
type rehearsal struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

func (r *rehearsal) Header() http.Header { return r.header }

func (r *rehearsal) WriteHeader(code int) { r.code = cmp.Or(r.code, code) }

func (r *rehearsal) Write(p []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	return r.body.Write(p)
}

// consumerOf is the consumer with the twin; false if the namespace is this cluster's.
func (t *Tenancy) consumerOf(namespace string) (peer.ID, bool) {
	ns, err := t.twins.Get(namespace)
	if err != nil {
		return "", false
	}
	return peer.ID(ns.Labels[policy.OriginLabel]), true
}

// takenBy is the Ingress by which this cluster, or otherwise another consumer, has the host; nil without one.
func (t *Tenancy) takenBy(host string, consumer peer.ID, all []*networkingv1.Ingress) (first *networkingv1.Ingress) {
	for _, other := range all {
		id, tenant := t.consumerOf(other.Namespace)
		if tenant && id == consumer || !covers(other, host, tenant) {
			continue
		}
		if !tenant {
			return other
		}
		first = cmp.Or(first, other)
	}
	return first
}

// covers reports whether an Ingress has the host. Only this cluster may have wildcards.
func covers(i *networkingv1.Ingress, host string, tenant bool) bool {
	return slices.ContainsFunc(hostsOf(i), func(h string) bool {
		_, domain, _ := strings.Cut(host, ".")
		return h == host || !tenant && strings.HasPrefix(h, "*.") && h[2:] == domain
	})
}

func hostsOf(i *networkingv1.Ingress) (out []string) {
	for _, r := range i.Spec.Rules {
		if r.Host != "" {
			out = append(out, r.Host)
		}
	}
	return out
}

// keepHosts deletes Ingresses of consumers with hosts of others, until ctx ends.
func (t *Tenancy) keepHosts(ctx context.Context) {
	factory := informers.NewSharedInformerFactoryWithOptions(t.client, 0, informers.WithTransform(onlyHosts))
	defer factory.Shutdown()
	ingresses := factory.Networking().V1().Ingresses()
	kick := make(chan struct{}, 1)
	for _, informer := range []cache.SharedIndexInformer{ingresses.Informer(), t.namespaces.Informer()} {
		// It fails only on a stopped informer.
		_, _ = informer.AddEventHandler(watch.Each(func(any) { changes.Poke(kick) }))
	}
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), ingresses.Informer().HasSynced, t.namespaces.Informer().HasSynced) {
		return
	}
	for {
		wait := time.Hour
		all, _ := ingresses.Lister().List(labels.Everything()) // a cache cannot fail
		for _, i := range all {
			if _, tenant := t.consumerOf(i.Namespace); tenant && !leadsToPods(i) {
				if err := t.endAstray(ctx, i); err != nil && ctx.Err() == nil {
					t.Log.Warn("an Ingress of another cluster leads to more than its pods", "ingress", i.Namespace+"/"+i.Name, "err", err)
					wait = 2 * time.Second
				}
			}
		}
		for i, owner := range t.misplaced(all) {
			if ended, err := t.endIngress(ctx, i, owner); err != nil && ctx.Err() == nil {
				t.Log.Warn("an Ingress of another cluster has a host that is not its", "ingress", i.Namespace+"/"+i.Name, "err", err)
				wait = 2 * time.Second
			} else if !ended {
				wait = 2 * time.Second
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-kick:
		case <-time.After(wait):
		}
	}
}

// leadsToPods reports whether an Ingress leads only to Services for which policy rivulet-twin-endpoints holds.
func leadsToPods(i *networkingv1.Ingress) bool {
	for _, r := range i.Spec.Rules {
		for _, p := range ptr.Deref(r.HTTP, networkingv1.HTTPIngressRuleValue{}).Paths {
			if p.Backend.Service == nil || !strings.HasPrefix(p.Backend.Service.Name, policy.IngressServicePrefix) {
				return false
			}
		}
	}
	return true
}

// endAstray deletes an Ingress from before the policy.
func (t *Tenancy) endAstray(ctx context.Context, i *networkingv1.Ingress) error {
	err := t.client.NetworkingV1().Ingresses(i.Namespace).Delete(ctx, i.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &i.UID, ResourceVersion: &i.ResourceVersion}})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	if err == nil {
		t.Log.Info("an Ingress of another cluster ends: it leads to more than its pods here", "ingress", i.Namespace+"/"+i.Name)
	}
	return err
}

// endIngress deletes an Ingress of a consumer, after a live check that its host still has another owner: the caches of
// Ingresses and of twins may differ in time.
func (t *Tenancy) endIngress(ctx context.Context, i, owner *networkingv1.Ingress) (ended bool, err error) {
	believed, _ := t.consumerOf(owner.Namespace)
	ns, err := t.client.CoreV1().Namespaces().Get(ctx, owner.Namespace, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && peer.ID(ns.Labels[policy.OriginLabel]) != believed {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	err = t.client.NetworkingV1().Ingresses(i.Namespace).Delete(ctx, i.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &i.UID}})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return false, err
	}
	t.Log.Info("an Ingress of another cluster ends: its host has another owner here", "ingress", i.Namespace+"/"+i.Name, "hosts", hostsOf(i), "owner", owner.Namespace+"/"+owner.Name)
	return true, nil
}

// misplaced are the Ingresses of consumers with a host of this cluster or of an earlier consumer, and the Ingress that
// has it.
func (t *Tenancy) misplaced(all []*networkingv1.Ingress) map[*networkingv1.Ingress]*networkingv1.Ingress {
	all = slices.SortedFunc(slices.Values(all), func(a, b *networkingv1.Ingress) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID))
	})
	var stay []*networkingv1.Ingress // of this cluster, then in the order of creation
	for _, i := range all {
		if _, tenant := t.consumerOf(i.Namespace); !tenant {
			stay = append(stay, i)
		}
	}
	out := map[*networkingv1.Ingress]*networkingv1.Ingress{}
	for _, i := range all {
		id, tenant := t.consumerOf(i.Namespace)
		if !tenant {
			continue
		}
		for _, host := range hostsOf(i) {
			out[i] = cmp.Or(out[i], t.takenBy(host, id, stay))
		}
		if out[i] == nil {
			delete(out, i)
			stay = append(stay, i)
		}
	}
	return out
}

// onlyHosts keeps the parts of an Ingress that are used here.
func onlyHosts(o any) (any, error) {
	i, ok := o.(*networkingv1.Ingress)
	if !ok {
		return o, nil
	}
	out := &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Name: i.Name, Namespace: i.Namespace, UID: i.UID, ResourceVersion: i.ResourceVersion, CreationTimestamp: i.CreationTimestamp}}
	for _, r := range i.Spec.Rules {
		out.Spec.Rules = append(out.Spec.Rules, networkingv1.IngressRule{Host: r.Host, IngressRuleValue: r.IngressRuleValue})
	}
	return out, nil
}
