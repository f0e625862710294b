package gatewaypod

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	coredns "github.com/coredns/coredns/plugin/kubernetes"
	"github.com/coredns/coredns/plugin/kubernetes/object"
	"github.com/coredns/coredns/plugin/pkg/dnstest"
	dnstesting "github.com/coredns/coredns/plugin/test"
	miekg "github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	pod "rivulet/fabric/gateway"
	"rivulet/fabric/gateway/gatewayproto"
)

// atHome is what CoreDNS's plugin, which home's DNS is, asks of its controller.
type atHome struct {
	services []*object.Service
	ends     []*object.Endpoints
}

func pick[T any](all []T, is func(T) bool) (out []T) {
	for _, o := range all {
		if is(o) {
			out = append(out, o)
		}
	}
	return out
}

func (a *atHome) ServiceList() []*object.Service     { return a.services }
func (a *atHome) EndpointsList() []*object.Endpoints { return a.ends }
func (a *atHome) SvcIndex(name string) []*object.Service {
	return pick(a.services, func(s *object.Service) bool { return s.Index == name })
}
func (a *atHome) SvcIndexReverse(ip string) []*object.Service {
	return pick(a.services, func(s *object.Service) bool { return slices.Contains(s.ClusterIPs, ip) })
}
func (a *atHome) EpIndex(name string) []*object.Endpoints {
	return pick(a.ends, func(e *object.Endpoints) bool { return e.Index == name })
}
func (a *atHome) EpIndexReverse(ip string) []*object.Endpoints {
	return pick(a.ends, func(e *object.Endpoints) bool { return slices.Contains(e.IndexIP, ip) })
}
func (*atHome) ServiceImportList() []*object.ServiceImport       { return nil }
func (*atHome) SvcExtIndexReverse(string) []*object.Service      { return nil }
func (*atHome) SvcImportIndex(string) []*object.ServiceImport    { return nil }
func (*atHome) PodIndex(string) []*object.Pod                    { return nil }
func (*atHome) McEpIndex(string) []*object.MultiClusterEndpoints { return nil }
func (*atHome) Run()                                             {}
func (*atHome) HasSynced() bool                                  { return true }
func (*atHome) Stop() error                                      { return nil }
func (*atHome) Modified(coredns.ModifiedMode) int64              { return 0 }
func (*atHome) GetNodeByName(context.Context, string) (*corev1.Node, error) {
	return nil, fmt.Errorf("none")
}
func (*atHome) GetNamespaceByName(name string) (*object.Namespace, error) {
	return &object.Namespace{Name: name}, nil
}

// said are an answer's code and records, sorted, with addresses as the map has them.
func said(m *miekg.Msg, as map[string]string) string {
	var words []string
	for _, rr := range m.Answer {
		switch r := rr.(type) {
		case *miekg.A:
			ip, known := as[r.A.String()]
			if !known {
				ip = r.A.String()
			}
			words = append(words, "A "+strings.ToLower(r.Hdr.Name)+" "+ip)
		case *miekg.SRV:
			words = append(words, fmt.Sprintf("SRV %d %s", r.Port, r.Target))
		case *miekg.CNAME:
			words = append(words, "CNAME "+r.Target)
		case *miekg.PTR:
			words = append(words, "PTR "+r.Ptr)
		default:
			words = append(words, rr.String())
		}
	}
	slices.Sort(words)
	return miekg.RcodeToString[m.Rcode] + " " + strings.Join(slices.Compact(words), ", ")
}

// What a pod at the campus is told of a name of home's is what a pod at home is told,
// with the addresses under which the same is reached from there.
func TestNamesMeanWhatTheyMeanAtHome(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var services []*corev1.Service
		var ends []*discoveryv1.EndpointSlice
		names := []string{}
		next := byte(0)
		as := map[string]string{} // addresses of home, as the campus has them
		pods := map[netip.Addr]netip.Addr{}
		for i := range rapid.IntRange(1, 4).Draw(rt, "services") {
			s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: rapid.SampledFrom([]string{"shop", "lab"}).Draw(rt, "namespace"), Name: fmt.Sprintf("s%d", i)}}
			name := s.Name + "." + s.Namespace
			names = append(names, name)
			switch kind := rapid.SampledFrom([]string{"plain", "headless", "external"}).Draw(rt, "kind"); kind {
			case "external":
				s.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "files.example.org"}
			default:
				s.Spec.ClusterIP = fmt.Sprintf("10.43.0.%d", i+1)
				ports := rapid.SliceOfNDistinct(rapid.SampledFrom([]int32{80, 443, 7000}), 1, 2, rapid.ID).Draw(rt, "ports")
				slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: s.Name}}}
				for _, number := range ports {
					protocol := rapid.SampledFrom([]corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP}).Draw(rt, "protocol")
					port, to := fmt.Sprintf("p%d", number), number+8000
					s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: port, Port: number, TargetPort: intstr.FromInt32(to), Protocol: protocol})
					slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &port, Port: &to, Protocol: &protocol})
				}
				if kind == "headless" {
					s.Spec.ClusterIP = corev1.ClusterIPNone
					for j := range rapid.IntRange(0, 3).Draw(rt, "pods") {
						next++
						ready := rapid.Bool().Draw(rt, "ready")
						ip := netip.AddrFrom4([4]byte{10, 42, 0, next})
						if rapid.Bool().Draw(rt, "away") {
							ip = netip.AddrFrom4([4]byte{10, 200, 0, next})
							pods[ip] = netip.AddrFrom4([4]byte{192, 168, 9, next})
							as[ip.String()] = pods[ip].String()
						}
						e := discoveryv1.Endpoint{Addresses: []string{ip.String()}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}
						host := dashed(ip)
						if rapid.Bool().Draw(rt, "named") {
							host = fmt.Sprintf("%s-%d", s.Name, j)
							e.Hostname = &host
						}
						slice.Endpoints = append(slice.Endpoints, e)
						names = append(names, host+"."+name)
					}
				}
				ends = append(ends, slice)
			}
			services = append(services, s)
		}

		home := &atHome{}
		for _, s := range services {
			c := s.DeepCopy()
			if c.Spec.ClusterIP != "" {
				c.Spec.ClusterIPs = []string{c.Spec.ClusterIP}
			}
			o, err := object.ToService(c)
			if err != nil {
				rt.Fatal(err)
			}
			home.services = append(home.services, o.(*object.Service))
		}
		for _, e := range ends {
			o, err := object.EndpointSliceToEndpoints(e.DeepCopy())
			if err != nil {
				rt.Fatal(err)
			}
			home.ends = append(home.ends, o.(*object.Endpoints))
		}
		k := coredns.New([]string{"cluster.local.", "in-addr.arpa."})
		k.APIConn = home

		cfg := gatewayproto.Gateway{Pods: pods}
		want := desired(services, ends, nil, homeNet, campusNet)
		made := byte(0)
		place(want, campusNet, func(namespace, name string, _ []gatewayproto.Port) netip.Addr {
			made++
			at := netip.AddrFrom4([4]byte{10, 96, 0, made})
			for _, s := range home.services {
				if s.Namespace == namespace && s.Name == name && s.ClusterIPs[0] != corev1.ClusterIPNone {
					as[s.ClusterIPs[0]] = at.String()
				}
			}
			return at
		})
		cfg.Services = sorted(want)
		for _, s := range cfg.Services {
			for _, h := range s.Hosts {
				if h.IP.IsValid() {
					as[h.Pod.String()] = h.IP.String()
				}
			}
		}

		for range 8 {
			name := rapid.SampledFrom(append(names, "nobody.shop", "shop", "x."+names[0])).Draw(rt, "name")
			if rapid.Bool().Draw(rt, "of a port") {
				name = rapid.SampledFrom([]string{"_p80._tcp.", "_p443._udp.", "_p7000._tcp.", "_none._tcp."}).Draw(rt, "port") + name
			}
			if !slices.ContainsFunc(cfg.Services, func(s gatewayproto.Service) bool { return strings.HasSuffix("."+name, "."+s.Namespace) }) {
				continue // the campus's affair
			}
			kind := rapid.SampledFrom([]uint16{miekg.TypeA, miekg.TypeAAAA, miekg.TypeSRV, miekg.TypeCNAME}).Draw(rt, "type")
			q := new(miekg.Msg).SetQuestion(name+".svc.cluster.local.", kind)
			raw, err := q.Pack()
			if err != nil {
				rt.Fatal(err)
			}
			packed, ours := pod.Answer(cfg, raw)
			if !ours {
				if s, _ := cfg.Find(strings.Split(name, ".")[len(strings.Split(name, "."))-1], strings.Split(name, ".")[0]); s.External == "" {
					rt.Fatalf("%s is not ours: %+v", name, cfg.Services)
				}
				continue
			}
			var got miekg.Msg
			if err := got.Unpack(packed); err != nil || binary.BigEndian.Uint16(packed) != q.Id {
				rt.Fatal(err)
			}
			rec := dnstest.NewRecorder(&dnstesting.ResponseWriter{})
			if code, err := k.ServeDNS(context.Background(), rec, q); err != nil {
				rt.Fatalf("CoreDNS: %d %v", code, err)
			}
			if home, there := said(rec.Msg, as), said(&got, nil); home != there {
				rt.Fatalf("%s %s\n  at home  %s\n  there    %s\n%+v", miekg.TypeToString[kind], name, home, there, cfg.Services)
			}
		}
	})
}
