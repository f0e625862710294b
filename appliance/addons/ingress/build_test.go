package ingress

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"
)

var noon = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// ingressOf makes an Ingress of a spec in YAML; age is in minutes.
func ingressOf(name string, age int, spec string) *source {
	i := &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(noon.Add(-time.Duration(age) * time.Minute))}}
	if err := yaml.UnmarshalStrict([]byte(spec), &i.Spec); err != nil {
		panic(err)
	}
	return &source{Ingress: i}
}

// rules is a spec with one path of one host.
func rules(host, kind, path, backend string) string {
	return fmt.Sprintf(`rules: [{host: %q, http: {paths: [{path: %q, pathType: %s, backend: %s}]}}]`, host, path, kind, backend)
}

const webPort = `{service: {name: web, port: {name: http}}}`

// shop is what facts are by default: Service web with two pods.
type shop struct {
	services map[string]*corev1.Service
	slices   map[string][]*discoveryv1.EndpointSlice
	secrets  map[secretName]*corev1.Secret
	pods     map[netip.Addr]bool
	unknown  bool
}

func newShop() *shop {
	s := &shop{services: map[string]*corev1.Service{}, slices: map[string][]*discoveryv1.EndpointSlice{}, secrets: map[secretName]*corev1.Secret{}}
	s.service("web", nil, "10.42.0.7", "241.7.0.9")
	return s
}

func (s *shop) service(name string, change func(*corev1.Service), addrs ...string) {
	o := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromString("web")}, {Name: "admin", Port: 81}}}}
	if change != nil {
		change(o)
	}
	s.services[name] = o
	port, other, http, admin := int32(8080), int32(8081), "http", "admin"
	slice := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &admin, Port: &other}, {Name: &http, Port: &port}}}
	for _, a := range addrs {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
	}
	s.slices[name] = append(s.slices[name], slice)
}

func (s *shop) facts() facts {
	return facts{
		service:  func(_, name string) (*corev1.Service, bool) { return s.services[name], !s.unknown },
		slices:   func(_, name string) []*discoveryv1.EndpointSlice { return s.slices[name] },
		secret:   func(n secretName) (*corev1.Secret, bool) { return s.secrets[n], !s.unknown },
		pods:     func(string) map[netip.Addr]bool { return s.pods },
		networks: []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16"), netip.MustParsePrefix("240.0.0.0/5")},
		certs:    certificates{}, now: noon,
	}
}

// pods are where a request may go, sorted.
func pods(t *table, host, path string) string {
	b := t.find(host, path)
	if b == nil {
		return "nobody"
	}
	var out []string
	for _, e := range b.endpoints {
		out = append(out, e.addr.String())
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func TestBackends(t *testing.T) {
	s := newShop()
	ready, not, http := true, false, "http"
	port := int32(8080)
	s.service("mixed", nil)
	s.slices["mixed"] = []*discoveryv1.EndpointSlice{
		{AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &http, Port: &port}}, Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"10.42.0.1"}, Conditions: discoveryv1.EndpointConditions{Ready: &not}},
			{Addresses: []string{"10.42.0.2"}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}}},
		{AddressType: discoveryv1.AddressTypeIPv6, Ports: []discoveryv1.EndpointPort{{Name: &http, Port: &port}}, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"fd00::1"}}}},
		{AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &http, Port: &port}}, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.42.0.2"}}}},
	}
	s.service("outside", nil, "127.0.0.1", "192.168.1.1", "100.127.3.4", "10.43.0.1")
	s.service("external", func(o *corev1.Service) {
		o.Spec.Type, o.Spec.ExternalName = corev1.ServiceTypeExternalName, "localhost"
	})
	tls, h2c := "https", "kubernetes.io/h2c"
	s.service("tls", func(o *corev1.Service) { o.Spec.Ports[0].AppProtocol = &tls }, "10.42.0.7")
	s.service("grpc", func(o *corev1.Service) { o.Spec.Ports[0].AppProtocol = &h2c }, "10.42.0.7")
	s.service("udp", func(o *corev1.Service) { o.Spec.Ports[0].Protocol = corev1.ProtocolUDP }, "10.42.0.7")
	for _, c := range []struct{ backend, want, reason string }{
		{webPort, "10.42.0.7:8080 241.7.0.9:8080", ""},
		{`{service: {name: web, port: {number: 80}}}`, "10.42.0.7:8080 241.7.0.9:8080", ""},
		{`{service: {name: web, port: {number: 81}}}`, "10.42.0.7:8081 241.7.0.9:8081", ""},
		{`{service: {name: web, port: {number: 8080}}}`, "", reasonPort},
		{`{service: {name: web, port: {name: web}}}`, "", reasonPort},
		{`{service: {name: none, port: {number: 80}}}`, "", reasonService},
		{`{service: {name: mixed, port: {name: http}}}`, "10.42.0.2:8080", ""},
		{`{service: {name: outside, port: {name: http}}}`, "", reasonEndpoint},
		{`{service: {name: external, port: {name: http}}}`, "", reasonExternal},
		{`{service: {name: tls, port: {name: http}}}`, "", reasonProtocol},
		{`{service: {name: udp, port: {name: http}}}`, "", reasonProtocol},
		{`{service: {name: grpc, port: {name: http}}}`, "10.42.0.7:8080", ""},
		{`{resource: {kind: Bucket, name: b}}`, "", reasonResource},
	} {
		i := ingressOf("one", 1, rules("a.example", "Prefix", "/", c.backend))
		table := build(admitted([]*source{i}), s.facts())
		if got := pods(table, "a.example", "/"); got != c.want {
			t.Errorf("%s goes to %q, want %q", c.backend, got, c.want)
		}
		if c.reason == "" && len(i.found) > 0 || c.reason != "" && (len(i.found) == 0 || i.found[0].reason != c.reason) {
			t.Errorf("%s: %+v, want %s", c.backend, i.found, c.reason)
		}
		for _, f := range i.found {
			if f.cure == "" {
				t.Errorf("%s: no cure for %s", c.backend, f.text)
			}
		}
	}
	i := ingressOf("one", 1, rules("a.example", "Prefix", "/", `{service: {name: grpc, port: {name: http}}}`))
	if !build(admitted([]*source{i}), s.facts()).find("a.example", "/").h2c {
		t.Error("a port of h2c is spoken to in HTTP/1")
	}
}

// What is not listed yet is neither served nor complained about.
func TestUnknownIsNotMissing(t *testing.T) {
	s := newShop()
	s.unknown = true
	i := ingressOf("one", 1, `tls: [{hosts: [a.example], secretName: key}]
`+rules("a.example", "Prefix", "/", webPort))
	table := build(admitted([]*source{i}), s.facts())
	if len(i.found) > 0 || pods(table, "a.example", "/") != "" {
		t.Errorf("%+v, %s", i.found, pods(table, "a.example", "/"))
	}
}

func TestTheOlderHasThePath(t *testing.T) {
	s := newShop()
	s.service("other", nil, "10.42.0.99")
	other := `{service: {name: other, port: {name: http}}}`
	young, old := ingressOf("young", 1, "defaultBackend: "+other+"\n"+rules("A.example", "Prefix", "/x/", other)), ingressOf("old", 2, "defaultBackend: "+webPort+"\n"+rules("a.example", "Prefix", "/x", webPort))
	table := build(admitted([]*source{young, old}), s.facts())
	if got := pods(table, "a.example", "/x"); got != "10.42.0.7:8080 241.7.0.9:8080" {
		t.Error(got)
	}
	if got := pods(table, "b.example", "/y"); got != "10.42.0.7:8080 241.7.0.9:8080" {
		t.Error(got)
	}
	if len(old.found) > 0 || len(young.found) != 2 || !strings.Contains(young.found[0].text, "shop/old") {
		t.Errorf("%+v %+v", old.found, young.found)
	}
}

// Other clusters have what they are lent: no class without the label, no host or
// certificate of another cluster, nobody's pods but their own.
func TestTenants(t *testing.T) {
	s := newShop()
	s.pods = map[netip.Addr]bool{netip.MustParseAddr("10.42.0.7"): true}
	s.secrets[secretName{"shop", "key"}] = secretOf(t, "key", noon, "a.example", "b.example")
	tenant := func(name, origin, host string, age int, lent bool) *source {
		i := ingressOf(name, age, fmt.Sprintf("tls: [{hosts: [%q], secretName: key}]\ndefaultBackend: %s\n", host, webPort)+rules(host, "Prefix", "/t", webPort))
		i.origin, i.lent = origin, lent
		return i
	}
	mine := ingressOf("mine", 1, rules("a.example", "Prefix", "/", webPort)+"\n")
	wide := ingressOf("wide", 1, rules("*.wide.example", "Prefix", "/", webPort))
	unlent, thief, under, good, late := tenant("unlent", "bob", "c.example", 9, false), tenant("thief", "bob", "a.example", 9, true),
		tenant("under", "bob", "x.wide.example", 9, true), tenant("good", "bob", "b.example", 9, true), tenant("late", "eve", "b.example", 3, true)
	table := build(admitted([]*source{mine, wide, unlent, thief, under, good, late}), s.facts())
	for asked, want := range map[string]string{
		"a.example/t": "10.42.0.7:8080 241.7.0.9:8080", "x.wide.example/t": "10.42.0.7:8080 241.7.0.9:8080", // mine
		"b.example/t": "10.42.0.7:8080", // 241.7.0.9 is no pod of the twin
		"c.example/t": "nobody", "b.example/": "nobody",
	} {
		host, path, _ := strings.Cut(asked, "/")
		if got := pods(table, host, "/"+path); got != want {
			t.Errorf("%s goes to %q, want %q", asked, got, want)
		}
	}
	for i, reason := range map[*source]string{unlent: reasonNotLent, thief: reasonHost, under: reasonHost, late: reasonHost, good: reasonEndpoint} {
		if len(i.found) == 0 || i.found[0].reason != reason {
			t.Errorf("%s: %+v, want %s", i.Name, i.found, reason)
		}
	}
	if table.certificate("a.example") != nil || table.certificate("x.wide.example") != nil || table.certificate("c.example") != nil || table.certificate("b.example") == nil {
		t.Errorf("certificates are of %v", table.certs)
	}
}

func TestTablesAreBounded(t *testing.T) {
	var all []*source
	for i := range maxIngresses + 10 {
		all = append(all, ingressOf(fmt.Sprintf("i%04d", i), 0, rules(fmt.Sprintf("h%d.example", i), "Prefix", "/", webPort)))
	}
	for i := range maxPerConsumer + 5 {
		s := ingressOf(fmt.Sprintf("t%04d", i), 5, rules(fmt.Sprintf("t%d.example", i), "Prefix", "/", webPort))
		s.origin, s.lent = "bob", true
		all = append(all, s)
	}
	if got := admitted(all); len(got) != maxIngresses || slices.ContainsFunc(got, func(s *source) bool { return s.origin != "" }) {
		t.Errorf("%d are served", len(got))
	}
	if got := admitted(all[maxIngresses:]); len(got) != 10+maxPerConsumer {
		t.Errorf("%d are served", len(got))
	}
	huge := ingressOf("huge", 9, rules("a.example", "Prefix", "/", webPort))
	for range maxPaths {
		huge.Spec.Rules[0].HTTP.Paths = append(huge.Spec.Rules[0].HTTP.Paths, path(prefix, "/x"))
	}
	if got := admitted([]*source{huge}); len(got) != 0 || len(huge.found) != 1 || huge.found[0].reason != reasonTooMany {
		t.Errorf("%d, %+v", len(got), huge.found)
	}
}

// What an author gets wrong a thousand times is told a few times.
func TestFindingsAreBounded(t *testing.T) {
	s := newShop()
	var addrs []string
	for i := range 1000 {
		addrs = append(addrs, fmt.Sprintf("192.0.%d.%d", i/250, i%250))
	}
	s.service("outside", nil, addrs...)
	i := ingressOf("one", 1, rules("a.example", "Prefix", "/", `{service: {name: outside, port: {name: http}}}`))
	build(admitted([]*source{i}), s.facts())
	if len(i.found) != 1 {
		t.Errorf("%d are told of one Service", len(i.found))
	}
	for n := range 100 {
		p := path(prefix, fmt.Sprint("/", n))
		p.Backend.Service = &networkingv1.IngressServiceBackend{Name: fmt.Sprint("none", n), Port: networkingv1.ServiceBackendPort{Number: 80}}
		i.Spec.Rules[0].HTTP.Paths = append(i.Spec.Rules[0].HTTP.Paths, p)
	}
	build(admitted([]*source{i}), s.facts())
	if len(i.found) != maxFindings {
		t.Errorf("%d are told, want %d", len(i.found), maxFindings)
	}
}
