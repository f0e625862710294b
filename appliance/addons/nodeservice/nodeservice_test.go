package nodeservice

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// kubeDNS is the Service that cluster DNS needs: two ports and a fixed cluster IP.
func kubeDNS(ip netip.Addr, addr netip.AddrPort) Service {
	return Service{
		Namespace: "kube-system", Name: "kube-dns", ClusterIP: ip, Addr: addr.Addr(), Labels: map[string]string{"k8s-app": "kube-dns"},
		Ports: []Port{
			{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53, Target: addr.Port()},
			{Name: "dns-tcp", Protocol: corev1.ProtocolTCP, Port: 53, Target: addr.Port()},
		},
	}
}

func TestEnsure(t *testing.T) {
	ip, addr, moved := netip.MustParseAddr("10.43.0.10"), netip.MustParseAddrPort("100.127.7.7:1053"), netip.MustParseAddrPort("100.127.7.8:1053")
	other := kubeDNS(netip.MustParseAddr("10.43.0.99"), addr).service()
	selecting := kubeDNS(ip, addr).service()
	selecting.Spec.Selector = map[string]string{"k8s-app": "kube-dns"}
	selecting.Annotations = map[string]string{"theirs": "stays"}
	for _, c := range []struct {
		name   string
		have   []*corev1.Service
		writes []string
	}{
		{"a fresh cluster", nil, []string{"create services", "create endpointslices"}},
		{"a coredns deployment's", []*corev1.Service{selecting}, []string{"update services", "create endpointslices"}},
		{"another cluster IP", []*corev1.Service{other}, []string{"delete services", "create services", "create endpointslices"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			client := fake.NewClientset()
			for _, s := range c.have {
				if _, err := client.CoreV1().Services(s.Namespace).Create(t.Context(), s, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			step := func(addr netip.AddrPort, want ...string) {
				t.Helper()
				client.ClearActions()
				if err := Ensure(t.Context(), client, kubeDNS(ip, addr)); err != nil {
					t.Fatal(err)
				}
				var writes []string
				for _, a := range client.Actions() {
					if a.GetVerb() != "get" {
						writes = append(writes, a.GetVerb()+" "+a.GetResource().Resource)
					}
				}
				if len(writes) != len(want) {
					t.Fatalf("writes %v, want %v", writes, want)
				}
				for i := range want {
					if writes[i] != want[i] {
						t.Fatalf("writes %v, want %v", writes, want)
					}
				}
			}
			step(addr, c.writes...)
			step(addr) // nothing differs, nothing is written
			step(moved, "update endpointslices")

			s, err := client.CoreV1().Services("kube-system").Get(t.Context(), "kube-dns", metav1.GetOptions{})
			if err != nil || s.Spec.ClusterIP != ip.String() || s.Spec.Selector != nil || len(s.Spec.Ports) != 2 {
				t.Fatalf("service %v, %v", s, err)
			}
			if c.have != nil && c.have[0] == selecting && s.Annotations["theirs"] != "stays" {
				t.Fatal("an annotation of others is gone")
			}
			e, err := client.DiscoveryV1().EndpointSlices("kube-system").Get(t.Context(), "kube-dns-rivulet", metav1.GetOptions{})
			if err != nil || e.Endpoints[0].Addresses[0] != "100.127.7.8" || e.Labels["kubernetes.io/service-name"] != "kube-dns" {
				t.Fatalf("slice %v, %v", e, err)
			}
			for i, p := range e.Ports {
				if *p.Name != s.Spec.Ports[i].Name || *p.Protocol != s.Spec.Ports[i].Protocol || *p.Port != 1053 {
					t.Fatalf("port %v does not belong to %v", p, s.Spec.Ports[i])
				}
			}
		})
	}
}
