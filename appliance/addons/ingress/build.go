package ingress

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// Bounds of a table. The newest objects above a bound are left out, with an event.
const (
	maxIngresses    = 500
	maxPerConsumer  = 50
	maxPaths        = 5000
	maxCertificates = 200
	maxFindings     = 16 // of one Ingress
)

// Reasons of events.
const (
	reasonServed      = "Served"
	reasonNoLAN       = "NoLANAddress"
	reasonNobody      = "NoIngressController"
	reasonNotLent     = "NotLent"
	reasonTooMany     = "TooManyIngresses"
	reasonHost        = "HostTaken"
	reasonPath        = "PathTaken"
	reasonResource    = "BackendNotAService"
	reasonService     = "ServiceMissing"
	reasonExternal    = "ServiceWithoutPods"
	reasonPort        = "ServicePortMissing"
	reasonProtocol    = "ProtocolNotServed"
	reasonEndpoint    = "EndpointNotAPod"
	reasonSecret      = "SecretMissing"
	reasonCertificate = "BadCertificate"
)

// finding is why a part of an Ingress is not served, or not as expected.
type finding struct{ reason, text, cure string }

func (f finding) String() string { return f.text + "; " + f.cure }

// source is an Ingress with properties of its namespace.
type source struct {
	*networkingv1.Ingress
	origin string // cluster whose twin the namespace is; empty for this one
	lent   bool   // its class is
	served bool   // of this controller
	found  []finding
	// pending is true while an object that it names is not listed yet.
	pending bool
}

func (s *source) find(reason, cure, text string, args ...any) {
	f := finding{reason, fmt.Sprintf(text, args...), cure}
	if len(s.found) < maxFindings && !slices.Contains(s.found, f) {
		s.found = append(s.found, f)
	}
}

func (s *source) String() string { return s.Namespace + "/" + s.Name }

// facts is the input of a table, beside Ingresses.
type facts struct {
	service  func(namespace, name string) (*corev1.Service, bool)
	slices   func(namespace, service string) []*discoveryv1.EndpointSlice
	secret   func(secretName) (*corev1.Secret, bool)
	pods     func(namespace string) map[netip.Addr]bool // of a twin
	networks []netip.Prefix
	certs    certificates
	now      time.Time
}

// first sorts by precedence for a host or a path: this cluster before others, then by age.
func first(a, b *source) int {
	ownFirst := func(s *source) int { return min(len(s.origin), 1) }
	return cmp.Or(ownFirst(a)-ownFirst(b), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID))
}

// admitted returns the sources for a table, those with precedence first; the others receive an event with the reason.
func admitted(all []*source) (out []*source) {
	slices.SortFunc(all, first)
	each, paths := map[string]int{}, 0
	for _, s := range all {
		if s.origin != "" && !s.lent {
			s.find(reasonNotLent, "its owner lends one by the label rivulet.dev/lent", "its class is not lent to other clusters")
			continue
		}
		n := 0
		for _, r := range s.Spec.Rules {
			if r.HTTP != nil {
				n += len(r.HTTP.Paths)
			}
		}
		if len(out) >= maxIngresses || paths+n > maxPaths || s.origin != "" && each[s.origin] >= maxPerConsumer {
			s.find(reasonTooMany, "delete some that are older, or give several of them to one Ingress with fewer paths",
				"at most %d Ingresses with %d paths are served, %d of another cluster", maxIngresses, maxPaths, maxPerConsumer)
			continue
		}
		paths += n
		each[s.origin]++
		out = append(out, s)
	}
	return out
}

// build makes the table of sources in the order of admitted. Objects that are not listed yet have no endpoints and no
// event.
func build(all []*source, in facts) *table {
	t, backends := newTable(), map[string]*backend{}
	owners := ownersOf(all)
	for _, s := range all {
		for _, r := range s.Spec.Rules {
			host := strings.ToLower(r.Host)
			if owner := owners.of(host); owner != s.origin && s.origin != "" {
				s.find(reasonHost, "use another host", "host %s belongs to another cluster", host)
				continue
			}
			if r.HTTP == nil {
				continue
			}
			for _, p := range r.HTTP.Paths {
				made := routeOf(p)
				made.owner, made.to = s.String(), in.backend(s, p.Backend, backends)
				if taken := t.put(host, made); taken != "" {
					s.find(reasonPath, "use another host or path, or delete that one", "host %q with path %q belongs to the older Ingress %s", host, p.Path, taken)
				}
			}
		}
		if b := s.Spec.DefaultBackend; b != nil && s.origin == "" {
			if t.rest == nil {
				t.rest = in.backend(s, *b, backends)
			} else {
				s.find(reasonPath, "leave spec.defaultBackend out, or delete that of the older Ingress", "another Ingress is the default already")
			}
		}
		in.certificates(s, t, owners)
	}
	return t
}

// owners maps a host to its cluster.
type owners map[string]string

func ownersOf(all []*source) owners {
	out := owners{}
	for _, s := range all {
		for _, r := range s.Spec.Rules {
			host := strings.ToLower(r.Host)
			if _, has := out[host]; !has && host != "" {
				out[host] = s.origin
			}
		}
	}
	return out
}

// of returns the cluster of a host; a wildcard is this cluster's own, and covers a host.
func (o owners) of(host string) string {
	if _, covered := o[wildcard(host)]; covered {
		return ""
	}
	return o[host]
}

// backend resolves a backend once, and returns what is wrong with it.
func (in facts) backend(s *source, b networkingv1.IngressBackend, made map[string]*backend) *backend {
	if b.Service == nil {
		s.find(reasonResource, "name a Service in its place", "a backend is a resource, and only Services are served")
		return &backend{name: s.String()}
	}
	ref := b.Service
	port := cmp.Or(ref.Port.Name, fmt.Sprint(ref.Port.Number))
	name := s.Namespace + "/" + ref.Name
	key := s.origin + "/" + name + ":" + port
	if have := made[key]; have != nil && len(have.endpoints) > 0 {
		return have // nothing is wrong with it
	}
	out := &backend{name: name}
	made[key] = out
	service, known := in.service(s.Namespace, ref.Name)
	if !known {
		s.pending = true
		return out
	}
	if service == nil {
		s.find(reasonService, "make it, or name another in the Ingress", "there is no Service %s", name)
		return out
	}
	if service.Spec.Type == corev1.ServiceTypeExternalName {
		s.find(reasonExternal, "use a Service with pods", "Service %s is an ExternalName, and Ingresses lead to pods only", name)
		return out
	}
	at := slices.IndexFunc(service.Spec.Ports, func(p corev1.ServicePort) bool {
		return ref.Port.Name != "" && p.Name == ref.Port.Name || ref.Port.Name == "" && p.Port == ref.Port.Number
	})
	if at < 0 {
		s.find(reasonPort, "name one that it has", "Service %s has no port %s", name, port)
		return out
	}
	chosen := service.Spec.Ports[at]
	if !in.protocol(s, name, chosen, out) {
		return out
	}
	in.endpoints(s, service, chosen, out)
	return out
}

// protocol reports whether requests can be sent to a port.
func (in facts) protocol(s *source, name string, p corev1.ServicePort, to *backend) bool {
	said := ""
	if p.AppProtocol != nil {
		said = strings.ToLower(*p.AppProtocol)
	}
	if p.Protocol != corev1.ProtocolTCP && p.Protocol != "" {
		said = string(p.Protocol)
	}
	switch said {
	case "", "http", "kubernetes.io/ws":
	case "kubernetes.io/h2c", "grpc":
		to.h2c = true
	default:
		s.find(reasonProtocol, "use HTTP between the device and its pods, with appProtocol http or none", "port %d of Service %s is of protocol %s", p.Port, name, said)
		return false
	}
	return true
}

// endpoints are the ready ones of a port. Those of a twin are its own pods only, because its cluster writes its
// EndpointSlices.
func (in facts) endpoints(s *source, service *corev1.Service, port corev1.ServicePort, to *backend) {
	var own map[netip.Addr]bool
	if s.origin != "" {
		own = in.pods(s.Namespace)
	}
	seen, foreign := map[netip.AddrPort]bool{}, 0
	for _, slice := range in.slices(service.Namespace, service.Name) {
		number := portOf(slice, port.Name)
		if slice.AddressType != discoveryv1.AddressTypeIPv4 || number == 0 {
			continue
		}
		for _, e := range slice.Endpoints {
			if len(e.Addresses) == 0 || e.Conditions.Ready != nil && !*e.Conditions.Ready {
				continue
			}
			addr, err := netip.ParseAddr(e.Addresses[0])
			inside := err == nil && slices.ContainsFunc(in.networks, func(n netip.Prefix) bool { return n.Contains(addr) })
			if !inside || own != nil && !own[addr] {
				if foreign++; foreign > 1 {
					continue // one event is enough
				}
				s.find(reasonEndpoint, "use a pod without hostNetwork, and let Kubernetes make the endpoints", "endpoint %s of Service %s/%s is no pod that may be served",
					e.Addresses[0], service.Namespace, service.Name)
				continue
			}
			if at := netip.AddrPortFrom(addr, number); !seen[at] {
				seen[at] = true
				to.endpoints = append(to.endpoints, &endpoint{addr: at})
			}
		}
	}
	to.turn.Store(rand.Uint32()) // new tables are frequent; the first pod must not get more requests
}

// portOf returns the number of a port by name in a slice; 0 if it has none.
func portOf(s *discoveryv1.EndpointSlice, name string) uint16 {
	for _, p := range s.Ports {
		if p.Port != nil && *p.Port > 0 && *p.Port <= 65535 && (p.Name == nil && name == "" || p.Name != nil && *p.Name == name) {
			return uint16(*p.Port)
		}
	}
	return 0
}

// certificates assigns certificates to the names of an Ingress's TLS: those that it lists, or all its hosts if it lists
// none.
func (in facts) certificates(s *source, t *table, owners owners) {
	for _, one := range s.Spec.TLS {
		names := one.Hosts
		if len(names) == 0 {
			for _, r := range s.Spec.Rules {
				names = append(names, r.Host)
			}
		}
		if one.SecretName == "" {
			s.find(reasonCertificate, "name a Secret of type kubernetes.io/tls in spec.tls", "there is no certificate for %s", strings.Join(names, ", "))
			continue
		}
		id := secretName{s.Namespace, one.SecretName}
		secret, known := in.secret(id)
		if !known {
			s.pending = true
			continue
		}
		if secret == nil {
			s.find(reasonSecret, "make it: kubectl create secret tls", "there is no Secret %s/%s", id.namespace, id.name)
			continue
		}
		cert, err := in.certs.of(secret)
		if err != nil {
			s.find(reasonCertificate, "put a certificate and its key there: kubectl create secret tls", "Secret %s/%s: %v", id.namespace, id.name, err)
			continue
		}
		for _, name := range names {
			in.give(s, t, strings.ToLower(name), cert, owners)
		}
	}
}

func (in facts) give(s *source, t *table, name string, cert *tls.Certificate, owners owners) {
	if name == "" {
		return
	}
	if s.origin != "" && owners.of(name) != s.origin {
		s.find(reasonHost, "use another host", "host %s belongs to another cluster", name)
		return
	}
	if t.certs[name] != nil {
		return // the older Ingress's, or the same
	}
	if len(t.certs) >= maxCertificates {
		s.find(reasonTooMany, "use a wildcard certificate", "at most %d names have certificates", maxCertificates)
		return
	}
	t.certs[name] = cert
	if err := fits(cert, name, in.now); err != nil {
		s.find(reasonCertificate, "renew it, or put another into its Secret", "browsers will refuse the certificate for %s: %v", name, err)
	}
}
