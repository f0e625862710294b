package trace

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	"rivulet/appliance/api"
	"rivulet/offload/networkpolicy"
	"rivulet/offload/policy"
)

// here is a cluster with these objects beside namespace lab, whose DNS is at an address.
func here(server netip.AddrPort, objects ...runtime.Object) Here {
	client := fake.NewClientset(append(objects, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "lab"}}, to(aNode("a", "")))...)
	return Here{Engine: home{client}, Supervisor: home{}, Policies: home{}, DNS: server}
}

type home struct{ client kubernetes.Interface }

func (h home) Client() kubernetes.Interface     { return h.client }
func (home) Status() api.Status                 { return api.Status{Name: "a", NodeName: "a"} }
func (home) World() (networkpolicy.World, bool) { return networkpolicy.World{}, true }

// found selects objects by name as an API server does, which the fake does not.
func found(t *testing.T, h Here, q Request) (Facts, error) {
	t.Helper()
	o, err := q.parse()
	if err != nil {
		return Facts{}, err
	}
	return h.read(t.Context(), h.Engine.Client(), o, q)
}

func TestWhatIsFound(t *testing.T) {
	web := working().Service
	web.Spec.Ports = append(web.Spec.Ports, corev1.ServicePort{Name: "metrics", Port: 9090})
	for words, want := range map[string]struct {
		q    Request
		text string // of an error
	}{
		"by name":                {Request{Object: "web"}, ""},
		"by namespace":           {Request{Object: "lab/web"}, ""},
		"by kind":                {Request{Object: "svc/web", Namespace: "lab"}, ""},
		"by port":                {Request{Object: "svc/web:80"}, ""},
		"by a port's name":       {Request{Object: "web:metrics"}, ""},
		"without a name":         {Request{}, "write svc/NAME"},
		"a path":                 {Request{Object: "../web"}, "write svc/NAME"},
		"an address":             {Request{Object: "http://192.168.1.1/"}, "write svc/NAME"},
		"a selector":             {Request{Object: "web,metadata.namespace!=lab"}, "write svc/NAME"},
		"a port without number":  {Request{Object: "web:"}, "write svc/NAME"},
		"another port":           {Request{Object: "web:81"}, "it has: 80, 9090"},
		"two namespaces":         {Request{Object: "lab/web", Namespace: "shop"}, "leave one of them out"},
		"a source that is none":  {Request{Object: "web", From: "a b"}, "write --from POD"},
		"a source without a pod": {Request{Object: "web", From: "lab/none"}, "there is no pod none in namespace lab"},
	} {
		t.Run(words, func(t *testing.T) {
			f, err := found(t, here(netip.AddrPort{}, web), want.q)
			switch {
			case want.text == "" && (err != nil || f.Service == nil || f.Service.Name != "web"):
				t.Errorf("%+v: %v", f.Service, err)
			case want.text == "" && f.Port.Port != map[bool]int32{true: 9090, false: 80}[strings.HasSuffix(want.q.Object, "metrics")]:
				t.Errorf("port %+v", f.Port)
			case want.text != "" && (err == nil || !strings.Contains(err.Error(), want.text)):
				t.Errorf("%v, want %q", err, want.text)
			}
		})
	}
}

func TestPodsAreFound(t *testing.T) {
	one, other, tenant := aPod("one", "a", "10.42.0.5", nil), aPod("one", "a", "10.42.0.6", nil), aPod("tenant", "a", "10.42.0.7", map[string]string{policy.OriginLabel: bID})
	other.Namespace = "shop"
	for _, c := range []struct {
		q    Request
		port uint16
		text string
	}{
		{Request{Object: "lab/one"}, 80, ""},
		{Request{Object: "pod/one:8080", Namespace: "lab"}, 8080, ""},
		{Request{Object: "pod/one"}, 0, "2 namespaces have a pod one; name one: rivulet trace pod/one -n "},
		{Request{Object: "svc/one"}, 0, "there is no service one"},
		{Request{Object: "lab/one:0"}, 0, "from 1 to 65535"},
		{Request{Object: "lab/one:70000"}, 0, "from 1 to 65535"},
		{Request{Object: "lab/one", From: "tenant"}, 0, "of another cluster"},
	} {
		var objects []runtime.Object
		switch {
		case strings.HasPrefix(c.q.Object, "svc/"):
		case c.q.From != "":
			objects = append(objects, &one)
		default:
			objects = append(objects, &one, &other)
		}
		h := here(netip.AddrPort{}, objects...)
		if c.q.From != "" { // the fake lists all pods whatever their names
			h = here(netip.AddrPort{}, &tenant)
			f := Facts{Pod: &one}
			if err := c.q.source(t.Context(), h.Engine.Client(), &f); err == nil || !strings.Contains(err.Error(), c.text) {
				t.Errorf("%+v: %v", c.q, err)
			}
			continue
		}
		f, err := found(t, h, c.q)
		if c.text == "" && (err != nil || f.Pod == nil || f.PodPort != c.port) || c.text != "" && (err == nil || !strings.Contains(err.Error(), c.text)) {
			t.Errorf("%+v: port %d, %v", c.q, f.PodPort, err)
		}
	}
}

// Nothing but pods of this cluster is connected to, whatever a user writes into an EndpointSlice or a peer reports.
func TestOnlyPodsAreTried(t *testing.T) {
	h := here(netip.MustParseAddrPort("100.127.0.1:1053"))
	for name, c := range map[string]struct {
		change func(f *Facts)
		tried  int
	}{
		"pods":                       {func(*Facts) {}, 2},
		"an address on the LAN":      {func(f *Facts) { f.Slices[0].Endpoints[0].Addresses[0] = "192.168.1.1" }, 1},
		"the device itself":          {func(f *Facts) { f.Slices[0].Endpoints[0].Addresses[0] = "127.0.0.1" }, 1},
		"a pod of another namespace": {func(f *Facts) { f.Around.Pods[0].Namespace = "shop" }, 1},
		"a peer reports another's": {func(f *Facts) {
			f.Around.Pods[1].Status.PodIP = "240.4.0.9"
			f.Slices[0].Endpoints[1].Addresses[0] = "240.4.0.9"
		}, 1},
		"a peer reports home's": {func(f *Facts) {
			f.Around.Pods[1].Status.PodIP = "10.42.0.99"
			f.Slices[0].Endpoints[1].Addresses[0] = "10.42.0.99"
		}, 1},
		"a host's pod somewhere else": {func(f *Facts) {
			p := &f.Around.Pods[0]
			p.Spec.HostNetwork, p.Status.PodIP = true, "192.168.1.1"
			f.Slices[0].Endpoints[0].Addresses[0] = "192.168.1.1"
		}, 1},
		"a host's pod of this device": {func(f *Facts) {
			p := &f.Around.Pods[0]
			p.Spec.HostNetwork, p.Status.PodIP = true, "100.127.0.1"
			f.Slices[0].Endpoints[0].Addresses[0] = "100.127.0.1"
		}, 2},
		"a port that is no port of TCP": {func(f *Facts) { f.udp() }, 0},
	} {
		f := working()
		c.change(f)
		tried := 0
		targets, _ := f.Targets()
		for _, e := range targets {
			if h.allowed(*f, e) == "" {
				tried++
			}
		}
		if tried != c.tried || h.leadsToPods(*f) != (tried == 2) { // else kube-proxy leads elsewhere
			t.Errorf("%s: %d are tried, want %d; by the cluster IP: %t", name, tried, c.tried, h.leadsToPods(*f))
		}
	}
}

// A Service without pods is followed by the route: the query reaches a DNS server, and the report ends at endpoints.
func TestTheRoute(t *testing.T) {
	l, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &dns.Server{PacketConn: l, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		if q.Question[0].Name == "web.lab.svc.cluster.local." {
			m.Answer = append(m.Answer, &dns.A{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 5}, A: net.IPv4(10, 43, 1, 2)})
		}
		_ = w.WriteMsg(m)
	})}
	go server.ActivateAndServe() //nolint:errcheck // ends with the test
	defer server.ShutdownContext(context.Background())
	web := working().Service
	web.Spec.ClusterIP, web.Spec.ClusterIPs = corev1.ClusterIPNone, []string{corev1.ClusterIPNone} // nothing else is connected to
	mux := http.NewServeMux()
	here(l.LocalAddr().(*net.UDPAddr).AddrPort(), web).Routes(mux)
	answer := httptest.NewRecorder()
	mux.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, Path+"?"+url.Values{"object": {"lab/web"}}.Encode(), nil))
	text := answer.Body.String()
	for _, want := range []string{`"kind":"Service"`, `"text":"web.lab.svc.cluster.local is 10.43.1.2"`, `"name":"endpoints","verdict":"fails"`, `"begin":2`} {
		if answer.Code != http.StatusOK || !strings.Contains(text, want) {
			t.Errorf("%d: %s is not in\n%s", answer.Code, want, text)
		}
	}
	answer = httptest.NewRecorder()
	mux.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, Path+"?object=http://192.168.1.1/", nil))
	if answer.Code == http.StatusOK || !strings.Contains(answer.Body.String(), "is no Service and no pod") {
		t.Errorf("%d: %s", answer.Code, answer.Body)
	}
}

// Attempts end with what the network did.
func TestOutcomes(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().(*net.TCPAddr).AddrPort()
	if a := (place{}).connect(t.Context(), at); a.Outcome != Connected || a.Took <= 0 {
		t.Errorf("%+v", a)
	}
	open, err := place{}.listening()
	if err != nil || !strings.Contains(portsAt(open), at.String()) {
		t.Errorf("%v: %v", open, err)
	}
	l.Close()
	if a := (place{}).connect(t.Context(), at); a.Outcome != Refused {
		t.Errorf("%+v", a)
	}
	ended, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	if a := (place{}).connect(ended, at); a.Outcome != Silent {
		t.Errorf("%+v", a)
	}
	if l := (place{}).lookup(t.Context(), at, "web.lab"); l.Err == "" || !strings.Contains(l.Err, "nothing listens") {
		t.Errorf("%+v", l)
	}
}

func portsAt(all []netip.AddrPort) string {
	var out []string
	for _, a := range all {
		out = append(out, a.String())
	}
	return strings.Join(out, " ")
}
