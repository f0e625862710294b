package reflect

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"

	"rivulet/offload/watch"
)

// Every address that hand-written endpoints have and a target does not reach is named, and nothing else.
func TestLeftOutOfSlice(t *testing.T) {
	pods := netip.MustParsePrefix("10.42.0.0/16")
	for name, c := range map[string]struct {
		kind      discoveryv1.AddressType
		addresses []string
		want      []string
	}{
		"pods":               {discoveryv1.AddressTypeIPv4, []string{"10.42.0.5"}, nil},
		"a NAS":              {discoveryv1.AddressTypeIPv4, []string{"192.168.1.20"}, []string{"192.168.1.20"}},
		"a NAS beside a pod": {discoveryv1.AddressTypeIPv4, []string{"10.42.0.5", "192.168.1.20"}, []string{"192.168.1.20"}},
		"IPv6":               {discoveryv1.AddressTypeIPv6, []string{"fd00::20"}, []string{"fd00::20", "IPv6"}},
		"a name":             {discoveryv1.AddressTypeFQDN, []string{"nas.lan"}, []string{"nas.lan"}},
		"many":               {discoveryv1.AddressTypeIPv4, []string{"192.168.1.1", "192.168.1.2", "192.168.1.3", "192.168.1.4", "192.168.1.5", "192.168.1.6"}, []string{"192.168.1.5", "1 more"}},
	} {
		s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "nas-1", Labels: map[string]string{discoveryv1.LabelServiceName: "nas"}}, AddressType: c.kind}
		for _, a := range c.addresses {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
		}
		left := LeftOutOfSlice(s, pods.Contains)
		if (left.What == "") != (c.want == nil) {
			t.Errorf("%s: %+v", name, left)
		}
		for _, w := range append(c.want, "Service nas ") {
			if c.want != nil && !strings.Contains(left.What, w) {
				t.Errorf("%s: %q lacks %q", name, left.What, w)
			}
		}
		if strings.Contains(left.What, "10.42.0.5") || c.want != nil && left.Cure == "" {
			t.Errorf("%s: %+v", name, left)
		}
	}
}

func TestLeftOutOfAlias(t *testing.T) {
	lookup := func(_ context.Context, host string) ([]netip.Addr, error) {
		switch host {
		case "nas.lan":
			return []netip.Addr{netip.MustParseAddr("192.168.1.20")}, nil
		case "example.org":
			return []netip.Addr{netip.MustParseAddr("203.0.113.5")}, nil
		}
		return nil, errors.New("no such host")
	}
	for name, want := range map[string]string{
		"nas.lan": "192.168.1.20", "NAS.lan.": "192.168.1.20", "192.168.1.20": "192.168.1.20", "example.org": "", "nobody.lan": "",
		"web.lab.svc.cluster.local": "", "web.shop.svc.cluster.local": "", "web.private.svc.cluster.local": "private is not offloaded",
	} {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "nas"}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: name}}
		left := LeftOutOfAlias(t.Context(), s, func(ns string) bool { return ns == "shop" }, lookup)
		if (left.What == "") != (want == "") || !strings.Contains(left.What, want) {
			t.Errorf("%s: %+v", name, left)
		}
	}
}

// What is left out for a moment is not told; what stays is, once, and again when it is left out anew.
func TestLeftOutIsToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events := record.NewFakeRecorder(9)
		s := &space{target: "b", reported: map[key]string{}, leftSince: map[key]time.Time{}, recorder: events,
			queue: watch.Queue[key](time.Second, time.Minute)}
		defer s.queue.ShutDown()
		k, left := key{"EndpointSlice", "nas-1"}, LeftOut{"nas", "Service nas leads nowhere", "mend it"}
		look := func() { s.reportLeftOut(k, &corev1.Service{}, left); synctest.Wait() }
		if s.reportLeftOut(k, &corev1.Service{}, LeftOut{}) {
			t.Error("nothing is told")
		}
		look()
		s.settled(k)
		time.Sleep(settlesWithin)
		look()
		if n := len(events.Events); n != 0 {
			t.Fatalf("%d events for what lasted a moment", n)
		}
		time.Sleep(settlesWithin)
		if s.queue.Len() != 1 {
			t.Error("it is not looked at again")
		}
		for range 3 {
			look()
		}
		if n := len(events.Events); n != 1 {
			t.Fatalf("%d events, want 1", n)
		}
		if e := <-events.Events; !strings.Contains(e, ReasonLeftOut) || !strings.Contains(e, "not from b; mend it") {
			t.Error(e)
		}
	})
}

// A target that has Services in a way of its own passes TCP and UDP; what is SCTP is told.
func TestSCTPIsToldWhereItDoesNotPass(t *testing.T) {
	s := &space{target: "campus", clients: clients{home: fake.NewClientset()}}
	say := unheldServices(s).(*unheld[*corev1.Service]).message
	service := &corev1.Service{Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}, {Port: 81, Protocol: corev1.ProtocolUDP}}}}
	if got := say(service); got != "" {
		t.Error(got)
	}
	service.Spec.Ports[1].Protocol = corev1.ProtocolSCTP
	if got := say(service); !strings.Contains(got, "no SCTP passes to and from campus") {
		t.Error(got)
	}
}
