package operate

import (
	"cmp"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"rivulet/appliance/api"
)

// Bounds of Exposed.
const (
	maxExposed = 200
	maxURLs    = 8 // of one object
)

// Exposed is a Service or an Ingress that a browser on the LAN can open.
type Exposed struct {
	Kind            string // Service or Ingress
	Namespace, Name string
	// URLs are by the device's name first, if it has one on the LAN.
	URLs []string
}

// ExposedBy are the Services of type LoadBalancer that have an address, those of type NodePort, and the Ingresses that
// are served, by namespace and name.
func ExposedBy(services []corev1.Service, ingresses []networkingv1.Ingress, st api.Status) (out []Exposed) {
	own := hostsOf(st)
	at := map[string][]string{}
	for _, s := range st.Services {
		at[s.Name] = s.At
	}
	add := func(e Exposed, urls []string) {
		// A name that people remember comes before an address.
		slices.SortStableFunc(urls, func(x, y string) int { return cmp.Compare(byName(y), byName(x)) })
		if e.URLs, _ = bound(slices.Compact(urls), maxURLs); len(e.URLs) > 0 {
			out = append(out, e)
		}
	}
	for i := range services {
		s := &services[i]
		add(Exposed{Kind: "Service", Namespace: s.Namespace, Name: s.Name}, serviceURLs(s, at[s.Namespace+"/"+s.Name], own))
	}
	for i := range ingresses {
		g := &ingresses[i]
		add(Exposed{Kind: "Ingress", Namespace: g.Namespace, Name: g.Name}, ingressURLs(g, own))
	}
	slices.SortStableFunc(out, func(x, y Exposed) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name))
	})
	return out
}

// byName is 1 for a URL by a name, 0 for one by an address.
func byName(raw string) int {
	if u, err := url.Parse(raw); err != nil || net.ParseIP(u.Hostname()) != nil {
		return 0
	}
	return 1
}

// hostsOf are the names and addresses of the device for a browser on the LAN.
func hostsOf(st api.Status) (hosts []string) {
	if u, err := url.Parse(st.StatusPage); err == nil && strings.HasSuffix(u.Hostname(), ".local") {
		hosts = append(hosts, u.Hostname())
	}
	for _, a := range st.Addresses {
		if !a.IsLinkLocalUnicast() { // its zone is another one on each machine
			hosts = append(hosts, a.String())
		}
	}
	return hosts
}

// serviceURLs are those of a Service: at are the HOST:PORT of one of type LoadBalancer.
func serviceURLs(s *corev1.Service, at, own []string) (urls []string) {
	for _, p := range s.Spec.Ports {
		if p.Protocol != "" && p.Protocol != corev1.ProtocolTCP {
			continue
		}
		scheme := "http"
		if secure := p.Name + " " + ptrTo(p.AppProtocol); p.Port == 443 || p.Port == 8443 || strings.Contains(secure, "https") {
			scheme = "https"
		}
		switch s.Spec.Type {
		case corev1.ServiceTypeLoadBalancer:
			for _, hostport := range at {
				if host, port, err := net.SplitHostPort(hostport); err == nil && port == strconv.Itoa(int(p.Port)) {
					urls = append(urls, urlOf(scheme, host, int(p.Port), ""))
				}
			}
		case corev1.ServiceTypeNodePort:
			for _, host := range own {
				if p.NodePort != 0 {
					urls = append(urls, urlOf(scheme, host, int(p.NodePort), ""))
				}
			}
		}
	}
	return urls
}

func ptrTo(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// ingressURLs are those of an Ingress that a controller serves. Wildcards of hosts cannot be opened.
func ingressURLs(g *networkingv1.Ingress, own []string) (urls []string) {
	if len(g.Status.LoadBalancer.Ingress) == 0 {
		return nil
	}
	scheme := func(host string) string {
		for _, t := range g.Spec.TLS {
			if slices.Contains(t.Hosts, host) {
				return "https"
			}
		}
		return "http"
	}
	add := func(host, path string) {
		hosts := []string{host}
		if host == "" {
			hosts = own
		}
		for _, h := range hosts {
			if !strings.HasPrefix(h, "*") {
				urls = append(urls, urlOf(scheme(host), h, 0, path))
			}
		}
	}
	if g.Spec.DefaultBackend != nil {
		add("", "/")
	}
	for _, r := range g.Spec.Rules {
		if r.HTTP == nil {
			continue
		}
		for _, p := range r.HTTP.Paths {
			add(r.Host, p.Path)
		}
	}
	return urls
}

// urlOf leaves out the port that a scheme has by itself; 0 is that.
func urlOf(scheme, host string, port int, path string) string {
	u := url.URL{Scheme: scheme, Host: host, Path: cmp.Or(path, "/")}
	switch {
	case port != 0 && port != map[string]int{"http": 80, "https": 443}[scheme]:
		u.Host = net.JoinHostPort(host, strconv.Itoa(port))
	case strings.Contains(host, ":"):
		u.Host = "[" + host + "]"
	}
	return u.String()
}
