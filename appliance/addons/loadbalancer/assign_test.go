package loadbalancer

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"rivulet/fabric/netmon"
)

func tcp(n uint16) Port { return Port{corev1.ProtocolTCP, n} }
func udp(n uint16) Port { return Port{corev1.ProtocolUDP, n} }

// service makes one; age orders, the higher the older.
func service(name string, age int, ports ...Port) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, UID: types.UID(name),
			CreationTimestamp: metav1.NewTime(time.Unix(1_700_000_000-int64(age), 0)),
		},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}},
	}
	for i, p := range ports {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint(i), Protocol: p.Protocol, Port: int32(p.Number)})
	}
	return s
}

func nobody(Port) (string, bool) { return "", false }

var lan = []netip.Addr{netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("198.51.100.7")}

func TestAlone(t *testing.T) {
	in := situation{
		addrs: lan, own: map[Port]string{tcp(6443): "the Kubernetes API"}, tenants: map[string]bool{"lab-b": true},
		listener: func(p Port) (string, bool) { return " by sshd (pid 7)", p == tcp(22) },
	}
	tenant := service("tenant", 0, tcp(80))
	tenant.Namespace = "lab-b"
	six := service("six", 0, tcp(80))
	six.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol}
	wish, dream := service("wish", 0, tcp(80)), service("dream", 0, tcp(80))
	wish.Spec.LoadBalancerIP, dream.Spec.LoadBalancerIP = "198.51.100.7", "203.0.113.9"
	unplugged := in
	unplugged.addrs = nil
	for _, c := range []struct {
		s            *corev1.Service
		in           situation
		addrs        int
		reason, part string
	}{
		{service("web", 0, tcp(80), tcp(443), udp(443)), in, 2, "", "192.0.2.7, 198.51.100.7"},
		{service("ssh", 0, tcp(80), tcp(22)), in, 0, reasonListener, "port 22/TCP of this device is listened on by sshd (pid 7), which the Service would cut off; choose"},
		{service("dns", 0, udp(22)), in, 2, "", ""},
		{service("api", 0, tcp(6443)), in, 0, reasonReserved, "port 6443/TCP is the Kubernetes API on this device"},
		{tenant, in, 0, reasonTenant, "not lent"},
		{six, in, 0, reasonFamily, "IPv4"},
		{wish, in, 1, "", "198.51.100.7"},
		{dream, in, 0, reasonAddress, "203.0.113.9"},
		{service("web", 0, tcp(80)), unplugged, 0, reasonNoLAN, "plug in a cable"},
	} {
		d := alone(c.s, c.in)
		if len(d.addrs) != c.addrs || d.reason != c.reason || !strings.Contains(d.String(), c.part) || (d.cure == "") != (d.reason == "") {
			t.Errorf("%s: %+v", c.s.Name, d)
		}
	}
}

func TestTheOlderServiceHasThePort(t *testing.T) {
	all := []*corev1.Service{service("young", 1, tcp(80)), service("old", 3, tcp(80)), service("other", 2, udp(80), tcp(443)), service("youngest", 0, tcp(443), tcp(81))}
	slices.SortFunc(all, older)
	got := assign(all, situation{addrs: lan, listener: nobody})
	for i, want := range []string{"reached", "reached", "port 80/TCP belongs to the older Service default/old; choose", "port 443/TCP belongs to the older Service default/other"} {
		if !strings.HasPrefix(got[i].String(), want) {
			t.Errorf("%s: %s, want %s", all[i].Name, got[i], want)
		}
	}
}

// Whatever Services there are: no port of an address belongs to two; nobody is refused
// for a port that nobody has; and a Service that goes changes nothing for older ones.
func TestAssignProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 8).Draw(t, "n")
		var all []*corev1.Service
		for i := range n {
			var ports []Port
			for range rapid.IntRange(1, 3).Draw(t, "ports") {
				p := Port{rapid.SampledFrom([]corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP}).Draw(t, "protocol"), uint16(rapid.IntRange(80, 84).Draw(t, "port"))}
				if !slices.Contains(ports, p) {
					ports = append(ports, p)
				}
			}
			s := service(fmt.Sprint(i), rapid.IntRange(0, 3).Draw(t, "age"), ports...)
			if rapid.Bool().Draw(t, "one address") {
				s.Spec.LoadBalancerIP = rapid.SampledFrom(lan).Draw(t, "address").String()
			}
			all = append(all, s)
		}
		slices.SortFunc(all, older)
		in := situation{addrs: lan, own: map[Port]string{tcp(84): "x"}, listener: nobody}
		got := assign(all, in)
		owner := map[string]int{}
		for i, d := range got {
			for _, a := range d.addrs {
				for _, p := range portsOf(all[i]) {
					key := a.String() + p.String()
					if j, twice := owner[key]; twice {
						t.Fatalf("%s belongs to %d and %d", key, i, j)
					}
					owner[key] = i
				}
			}
		}
		for i, d := range got {
			if d.reason != reasonConflict {
				continue
			}
			found := false
			for _, p := range portsOf(all[i]) {
				for _, a := range lan {
					j, is := owner[a.String()+p.String()]
					found = found || is && j < i
				}
			}
			if !found {
				t.Fatalf("%d is refused for nothing: %s", i, d)
			}
		}
		for k := range got {
			if fmt.Sprint(assign(all[:k], in)) != fmt.Sprint(got[:k]) {
				t.Fatalf("older Services change when %d goes", k)
			}
		}
	})
}

func TestAddresses(t *testing.T) {
	i := func(addrs ...string) (i netmon.Interface) {
		for _, a := range addrs {
			i.Addrs = append(i.Addrs, netip.MustParsePrefix(a))
		}
		return i
	}
	for _, c := range []struct {
		lans netmon.LANs
		want string
	}{
		{nil, "[]"},
		{netmon.LANs{i("192.0.2.9/24", "fe80::1/64", "2001:db8::1/64")}, "[192.0.2.9]"},
		{netmon.LANs{i("198.51.100.1/24"), i("192.0.2.9/24", "169.254.3.4/16")}, "[192.0.2.9 198.51.100.1]"},
		{netmon.LANs{i("169.254.3.4/16"), i("fe80::1/64")}, "[169.254.3.4]"},
		{netmon.LANs{i("192.0.2.9/24"), i("192.0.2.9/24")}, "[192.0.2.9]"},
	} {
		if got := fmt.Sprint(Addresses(c.lans)); got != c.want {
			t.Errorf("%v: %s, want %s", c.lans, got, c.want)
		}
	}
}

// Other nodes' addresses are given, too, but for ports that their programs use; the device's own decides whether at all.
func TestOtherNodes(t *testing.T) {
	node := Node{Name: "b", Addr: netip.MustParseAddr("192.0.2.3"), Taken: map[Port]bool{tcp(22): true}}
	in := situation{addrs: lan, nodes: []Node{node}, listener: nobody}
	wish := service("wish", 0, tcp(80))
	wish.Spec.LoadBalancerIP = "192.0.2.3"
	for _, c := range []struct {
		s    *corev1.Service
		in   situation
		want string
	}{
		{service("web", 0, tcp(80)), in, "192.0.2.3, 192.0.2.7, 198.51.100.7"},
		{service("ssh", 0, tcp(22)), in, " 192.0.2.7, 198.51.100.7"},
		{service("both", 0, tcp(80), tcp(22)), in, " 192.0.2.7, 198.51.100.7"},
		{wish, in, " 192.0.2.3"},
		{service("unplugged", 0, tcp(80)), situation{nodes: in.nodes, listener: nobody}, " 192.0.2.3"},
	} {
		if got := alone(c.s, c.in).String(); !strings.HasSuffix(got, c.want) {
			t.Errorf("%s: %s, want %s", c.s.Name, got, c.want)
		}
	}
	if len(lan) != 2 || lan[0].String() != "192.0.2.7" {
		t.Errorf("the device's own addresses were changed: %v", lan)
	}
}
