package reflect

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"rivulet/fabric/ipam"
	"rivulet/offload/policy"
)

// ReasonLeftOut is the reason of the event on a Service that is not reflected completely.
const ReasonLeftOut = "ReflectionLeftOut"

const (
	// settlesWithin is how long something is left out before it is reported: ways to pods of other peers are known
	// shortly after the pods.
	settlesWithin = 10 * time.Second
	// named is how many addresses are listed in a message.
	named = 5
	// lookupTime bounds the lookup of an alias.
	lookupTime = 2 * time.Second
)

// Lookup returns the addresses of a host name at home.
type Lookup func(ctx context.Context, host string) ([]netip.Addr, error)

// HomeLookup uses this device's resolver, as home's cluster DNS does for external names.
func HomeLookup(ctx context.Context, host string) ([]netip.Addr, error) {
	return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
}

// LeftOut is the part of a Service that is not reachable from a target, with a cure.
type LeftOut struct{ Service, What, Cure string }

// LeftOutOfSlice is the part of a slice that a target does not reach; the zero value is nothing.
func LeftOutOfSlice(s *discoveryv1.EndpointSlice, reached func(netip.Addr) bool) (out LeftOut) {
	service := s.Labels[discoveryv1.LabelServiceName]
	if service == "" || s.Namespace == metav1.NamespaceDefault && service == "kubernetes" {
		return out // no Service, or one that every cluster has itself
	}
	var left []string
	for _, e := range s.Endpoints {
		for _, text := range e.Addresses {
			a, err := netip.ParseAddr(text)
			if s.AddressType == discoveryv1.AddressTypeIPv4 && err == nil && reached(a) {
				continue
			}
			left = append(left, text)
		}
	}
	if len(left) == 0 {
		return out
	}
	slices.Sort(left)
	left = slices.Compact(left)
	more := ""
	if n := len(left); n > named {
		left, more = left[:named], fmt.Sprintf(" and %d more", n-named)
	}
	why := "only pods have addresses that are reached from other clusters"
	switch s.AddressType {
	case discoveryv1.AddressTypeIPv6:
		why = "no IPv6 passes between clusters"
	case discoveryv1.AddressTypeFQDN:
		why = "a name is no address"
	}
	return LeftOut{service, fmt.Sprintf("Service %s leads to %s%s (EndpointSlice %s) at home only: %s", service, strings.Join(left, ", "), more, s.Name, why), viaPod}
}

// viaPod is the cure: a pod at home reaches what home reaches, and is reachable from everywhere.
const viaPod = "lead the Service to a pod at home that forwards to it (label " + policy.NamespaceLabel + "=off in its template), or run the pods that need it at home"

// LeftOutOfAlias reports an alias (ExternalName) for something that is reachable at home only; the zero value is none.
func LeftOutOfAlias(ctx context.Context, s *corev1.Service, offloaded func(namespace string) bool, lookup Lookup) (out LeftOut) {
	name := strings.ToLower(strings.TrimSuffix(s.Spec.ExternalName, "."))
	if s.Spec.Type != corev1.ServiceTypeExternalName || name == "" {
		return out
	}
	if bare, ok := strings.CutSuffix(name, clusterSuffix); ok {
		of := bare[strings.LastIndexByte(bare, '.')+1:]
		if of == s.Namespace || offloaded(of) {
			return out
		}
		return LeftOut{s.Name, fmt.Sprintf("Service %s is another name of %s, which is at home only: namespace %s is not offloaded there", s.Name, name, of), "rivulet offload " + of + " --when services"}
	}
	addrs := []netip.Addr{}
	if a, err := netip.ParseAddr(name); err == nil {
		addrs = append(addrs, a)
	} else {
		ctx, cancel := context.WithTimeout(ctx, lookupTime)
		defer cancel()
		addrs, _ = lookup(ctx, name) // a name that does not resolve at home is no loss away
	}
	i := slices.IndexFunc(addrs, func(a netip.Addr) bool { return !ipam.Public(a) })
	if i < 0 {
		return out
	}
	return LeftOut{s.Name, fmt.Sprintf("Service %s is another name of %s, which has the address %s at home: there it is another device's, or nobody's", s.Name, name, addrs[i].Unmap()), viaPod}
}

// withLeftOut reports on Services what is not reflected of them.
func withLeftOut(c Config, services *kindReflector[*corev1.Service], endpoints *kindReflector[*discoveryv1.EndpointSlice]) {
	home, lookup := services.space.home, c.Lookup
	if lookup == nil {
		lookup = HomeLookup
	}
	endpoints.left = func(_ context.Context, s *discoveryv1.EndpointSlice) (runtime.Object, LeftOut) {
		left := LeftOutOfSlice(s, func(a netip.Addr) bool { _, ok := c.Target.Away(a); return ok })
		if service, ok := get[*corev1.Service](services.home, home, left.Service); ok {
			return service, left
		}
		return s, left
	}
	services.left = func(ctx context.Context, s *corev1.Service) (runtime.Object, LeftOut) {
		return s, LeftOutOfAlias(ctx, s, func(namespace string) bool {
			ns, ok := c.Namespaces.Get(namespace)
			return ok && ns.Reflects(c.Target.Name())
		}, lookup)
	}
}

// reportLeftOut makes an event about what has been left out of an object for settlesWithin, once for the same text, and
// reports whether anything is left out.
func (s *space) reportLeftOut(k key, about runtime.Object, left LeftOut) bool {
	if left.What == "" {
		return false
	}
	s.mu.Lock()
	since, known := s.leftSince[k]
	if !known {
		since = time.Now()
		s.leftSince[k] = since
	}
	s.mu.Unlock()
	if wait := settlesWithin - time.Since(since); wait > 0 {
		s.queue.AddAfter(k, wait)
		return true
	}
	s.report(k, about, ReasonLeftOut, fmt.Sprintf("%s, and not from %s; %s", left.What, s.target, left.Cure))
	return true
}
