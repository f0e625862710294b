package ingress

import (
	"cmp"
	"crypto/tls"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
)

// table maps requests to pods. Only turns and failures of its endpoints change after it is made.
type table struct {
	// routes are by host: the full name, "*." and the part after its first dot, or empty for rules without host. Those
	// of one host are in the order of before.
	routes map[string][]route
	// rest is the default backend; nil is none.
	rest  *backend
	certs map[string]*tls.Certificate // by name, which may begin with "*."
}

// route is one path of one host.
type route struct {
	path  string // of a prefix, without the trailing slash
	exact bool
	to    *backend
	owner string
}

// backend is a port of a Service.
type backend struct {
	name      string // for messages: NAMESPACE/NAME
	h2c       bool   // its pods accept HTTP/2 without TLS
	endpoints []*endpoint
	turn      atomic.Uint32
}

// endpoint is a ready pod.
type endpoint struct {
	addr   netip.AddrPort
	failed atomic.Int64 // time of the last failed connection, ns since 1970
}

// rested is how long an endpoint is tried last after a failed connection.
const rested = 10 * time.Second

// inTurn are the endpoints in the order of attempts.
func (b *backend) inTurn(now time.Time) []*endpoint {
	n := len(b.endpoints)
	if n == 0 {
		return nil
	}
	first := int(b.turn.Add(1) % uint32(n))
	out := make([]*endpoint, 0, n)
	var late []*endpoint
	for k := range n {
		e := b.endpoints[(first+k)%n]
		if now.Sub(time.Unix(0, e.failed.Load())) < rested {
			late = append(late, e)
		} else {
			out = append(out, e)
		}
	}
	return append(out, late...)
}

// find returns the backend of a request: the most specific host that has the path; there the longest path; of equals
// the exact one. It is nil if there is none.
func (t *table) find(host, path string) *backend {
	for _, name := range []string{host, wildcard(host), ""} {
		for _, r := range t.routes[name] {
			if r.has(path) {
				return r.to
			}
		}
	}
	return t.rest
}

// certificate returns the certificate for a name of SNI, or of the wildcard above it.
func (t *table) certificate(name string) *tls.Certificate {
	if c := t.certs[name]; c != nil {
		return c
	}
	return t.certs[wildcard(name)]
}

// has reports whether the route matches the path. A prefix consists of whole elements.
func (r route) has(path string) bool {
	if r.exact {
		return path == r.path
	}
	rest, ok := strings.CutPrefix(path, r.path)
	return ok && (rest == "" || rest[0] == '/')
}

// wildcard returns the wildcard for a host, which replaces its first label.
func wildcard(host string) string {
	_, rest, _ := strings.Cut(host, ".")
	return "*." + rest
}

// routeOf converts a path of an Ingress.
func routeOf(p networkingv1.HTTPIngressPath) route {
	if p.PathType != nil && *p.PathType == networkingv1.PathTypeExact {
		return route{path: cmp.Or(p.Path, "/"), exact: true}
	}
	return route{path: strings.TrimRight(p.Path, "/")}
}

// put adds a route, unless there is one for the same path; then it returns that one's Ingress.
func (t *table) put(host string, r route) (taken string) {
	at, there := slices.BinarySearchFunc(t.routes[host], r, before)
	if there {
		return t.routes[host][at].owner
	}
	t.routes[host] = slices.Insert(t.routes[host], at, r)
	return ""
}

// before is the order in which routes of a host are checked.
func before(a, b route) int {
	exactFirst := map[bool]int{true: 0, false: 1}
	return cmp.Or(cmp.Compare(len(b.path), len(a.path)), exactFirst[a.exact]-exactFirst[b.exact], cmp.Compare(a.path, b.path))
}

func newTable() *table {
	return &table{routes: map[string][]route{}, certs: map[string]*tls.Certificate{}}
}
