package gatewaypod

import (
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"rivulet/fabric/gateway/gatewayproto"
)

// Whatever comes and goes: an address is one pod's, a pod keeps its own while it is
// there, and a table that is read back is the same.
func TestTable(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		prefix := netip.PrefixFrom(netip.MustParseAddr("10.200.0.0"), rapid.IntRange(16, 28).Draw(rt, "bits"))
		now := time.Unix(1000, 0)
		tab := newTable(prefix, ownAddress(prefix), nil, now)
		pod := rapid.Custom(func(rt *rapid.T) netip.Addr {
			if rapid.IntRange(0, 9).Draw(rt, "six") == 0 {
				return netip.AddrFrom16([16]byte{0: 0xfd, 15: rapid.Byte().Draw(rt, "last")})
			}
			return netip.AddrFrom4([4]byte{10, rapid.SampledFrom([]byte{1, 2}).Draw(rt, "b"), 0, rapid.Byte().Draw(rt, "d")})
		})
		model := map[netip.Addr]netip.Addr{} // real to seen
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 100).Draw(rt, "later")) * time.Second)
			switch rapid.IntRange(0, 4).Draw(rt, "what") {
			case 0: // some are there, the rest may go
				there := map[netip.Addr]bool{}
				for real := range model {
					there[real] = rapid.Bool().Draw(rt, "there")
				}
				tab.keep(there, now, time.Minute)
				for real := range model {
					if _, known := tab.byReal[real]; !known {
						if there[real] {
							rt.Fatalf("%s is there and was forgotten", real)
						}
						delete(model, real)
					}
				}
			case 1: // home starts anew
				tab = newTable(prefix, ownAddress(prefix), tab.pods(), now)
			default:
				real := pod.Draw(rt, "pod")
				seen, isNew := tab.see(real, now)
				was, known := model[real]
				switch {
				case known && (was != seen || isNew):
					rt.Fatalf("%s was %s and is %s", real, was, seen)
				case !known && seen.IsValid() && !isNew:
					rt.Fatalf("%s is not new", real)
				case !seen.IsValid() && len(model) < 1<<(32-prefix.Bits())-3:
					rt.Fatalf("no room for %s beside %d", real, len(model))
				}
				if seen.IsValid() {
					model[real] = seen
				}
			}
			pods := tab.pods()
			if len(pods) != len(model) {
				rt.Fatalf("%d pods, %d expected", len(pods), len(model))
			}
			for real, seen := range model {
				if pods[seen] != real || !prefix.Contains(seen) || seen == ownAddress(prefix) || seen == prefix.Addr() {
					rt.Fatalf("%s is %s, table %v", real, seen, pods)
				}
			}
		}
	})
}

func TestTheLastPartOfAnAddressIsKept(t *testing.T) {
	prefix := netip.MustParsePrefix("10.200.0.0/16")
	tab := newTable(prefix, ownAddress(prefix), nil, time.Now())
	for real, want := range map[string]string{"10.42.3.7": "10.200.3.7", "192.168.9.1": "10.200.9.1"} {
		if seen, _ := tab.see(netip.MustParseAddr(real), time.Now()); seen.String() != want {
			t.Errorf("%s is seen as %s, not %s", real, seen, want)
		}
	}
	if own := ownAddress(prefix); own.String() != "10.200.255.254" {
		t.Error(own)
	}
}

var (
	homeNet   = netip.MustParsePrefix("10.42.0.0/16")
	campusNet = netip.MustParsePrefix("10.200.0.0/16")
)

func service(name string, ports ...corev1.ServicePort) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: corev1.ServiceSpec{Ports: ports}}
}

func slice(of, port string, number int32, protocol corev1.Protocol, ends ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Labels: map[string]string{discoveryv1.LabelServiceName: of}},
		Ports: []discoveryv1.EndpointPort{{Name: &port, Port: &number, Protocol: &protocol}}, Endpoints: ends}
}

func at(ready bool, addrs ...string) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{Addresses: addrs, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}
}

func TestWhatIsBehindAService(t *testing.T) {
	all := []*corev1.Service{
		service("web", corev1.ServicePort{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}, corev1.ServicePort{Name: "quic", Port: 80, Protocol: corev1.ProtocolUDP},
			corev1.ServicePort{Name: "odd", Port: 9, Protocol: corev1.ProtocolSCTP}),
		service("db", corev1.ServicePort{Port: 5432, Protocol: corev1.ProtocolTCP}),
	}
	ends := []*discoveryv1.EndpointSlice{
		slice("web", "http", 8080, corev1.ProtocolTCP, at(true, "10.42.0.5"), at(false, "10.42.0.6"), at(true, "10.77.0.1")),
		slice("web", "http", 8080, corev1.ProtocolTCP, at(true, "10.42.0.5"), at(true, "10.42.1.5")),
		slice("web", "quic", 4433, corev1.ProtocolUDP, at(true, "10.42.0.5")),
		slice("db", "", 5432, corev1.ProtocolTCP, at(true, "10.42.0.9")),
	}
	got := desired(all, ends, nil, homeNet, campusNet)
	web, db := got["shop/web"], got["shop/db"]
	if len(web.Ports) != 2 || len(db.Ports) != 1 {
		t.Fatalf("%+v", got)
	}
	want := []netip.AddrPort{netip.MustParseAddrPort("10.42.0.5:8080"), netip.MustParseAddrPort("10.42.1.5:8080")}
	if e := web.Ports[0].Endpoints; len(e) != 2 || e[0] != want[0] || e[1] != want[1] {
		t.Errorf("%v", e)
	}
	if e := web.Ports[1].Endpoints; len(e) != 1 || e[0].Port() != 4433 {
		t.Errorf("%v", e)
	}
	// One Service goes, one comes: what stays has the port that it had.
	next := desired([]*corev1.Service{service("a", corev1.ServicePort{Port: 1, Protocol: corev1.ProtocolTCP}), all[0]}, ends, got, homeNet, campusNet)
	for i := range web.Ports {
		if next["shop/web"].Ports[i].Listen != web.Ports[i].Listen {
			t.Errorf("the port of web was %d and is %d", web.Ports[i].Listen, next["shop/web"].Ports[i].Listen)
		}
	}
	cfg := gatewayproto.Gateway{PrivateKey: "x", PublicKey: "y", Address: netip.MustParseAddr("10.200.255.254"), Prefix: netip.MustParsePrefix("10.200.0.0/16"),
		Home: netip.MustParsePrefix("10.42.0.0/16"), Services: sorted(next)}
	if err := cfg.Check(); err != nil {
		t.Error(err)
	}
}

func TestRate(t *testing.T) {
	var r rate
	now := time.Unix(0, 0)
	r.note(now, 100, 100)
	r.note(now.Add(2*time.Second), 300, 100)
	if r.receiving != 100 || r.sending != 0 {
		t.Errorf("%+v", r)
	}
	r.note(now.Add(3*time.Second), 5, 5) // the tunnel began anew
	if r.receiving != 0 || r.sending != 0 {
		t.Errorf("%+v", r)
	}
}
