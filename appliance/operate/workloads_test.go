package operate

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"rivulet/appliance/addons/loadbalancer"
	"rivulet/appliance/api"
	"rivulet/offload"
	"rivulet/offload/consumer/explain"
	"rivulet/offload/policy"
	"rivulet/offload/provider/tenancy"
)

// students is a status with one virtual cluster, of a course.
var students = offload.Status{Consumers: []offload.Consumer{{Consumer: tenancy.Consumer{ID: "anna", Name: "db-anna"}, VCluster: true, Course: "default/db"}, {Consumer: tenancy.Consumer{ID: b, Name: "b"}, Peer: true}}}

func podOf(ns, name, node string, phase corev1.PodPhase, ready bool) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: object(ns, name, nil), Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c"}}},
		Status: corev1.PodStatus{Phase: phase, ContainerStatuses: []corev1.ContainerStatus{{Name: "c", Ready: ready}}}}
}

// Pods that wait come first, with the reason; those that ran to their end are counted, and the cluster's own are left out.
func TestWorkloads(t *testing.T) {
	tenant := podOf("twin", "theirs", "home", corev1.PodPending, false)
	tenant.Labels = map[string]string{policy.OriginLabel: string(b)}
	student := podOf("twin", "web-0-abc", "home", corev1.PodPending, false)
	student.Labels, student.Annotations = map[string]string{policy.OriginLabel: "anna"}, map[string]string{policy.HomeNamespaceAnnotation: "default", policy.HomePodAnnotation: "web-0"}
	objects := []runtime.Object{
		student,
		&corev1.Node{ObjectMeta: object("", "home", nil)}, &corev1.Node{ObjectMeta: object("", "b", map[string]string{policy.VirtualNodeLabel: string(b)})},
		&corev1.Namespace{ObjectMeta: object("", "lab", nil)}, &corev1.Namespace{ObjectMeta: object("", "kube-system", nil)}, &corev1.Namespace{ObjectMeta: object("", "twin", nil)},
		podOf("lab", "waits", "", corev1.PodPending, false), podOf("lab", "runs", "home", corev1.PodRunning, true), podOf("lab", "away", "b", corev1.PodRunning, true),
		podOf("lab", "done", "home", corev1.PodSucceeded, false), podOf("lab", "broken", "home", corev1.PodFailed, false), podOf("kube-system", "own", "home", corev1.PodRunning, true), tenant,
		&corev1.Service{ObjectMeta: object("lab", "web", nil), Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 80, NodePort: 30080}}}},
	}
	c := clusterOf(supervisor{status: api.Status{Name: "a", StatusPage: "http://a.local", Status: students}}, objects...)
	show := func(s Selection) (lines []string) {
		w, err := c.Workloads(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range w.Places {
			line := p.Place + " " + p.Node + ":"
			for _, one := range p.Pods {
				line += " " + one.Pod.Pod
				if one.Why != nil {
					if one.Why.What == "" {
						t.Errorf("%s: a reason without a text", one.Pod.Pod)
					}
					line += "(" + one.Why.Code + ")"
				}
				if one.Origin != nil {
					line += "=" + one.Origin.String()
				}
			}
			lines = append(lines, line)
		}
		for _, e := range w.Exposed {
			lines = append(lines, e.Name+" "+e.URLs[0])
		}
		return append(lines, fmt.Sprint(len(w.Namespaces), w.Ended))
	}
	want := []string{"waiting : waits(not-scheduled)", "home home: broken(ended) runs", "away b: away", "tenant home: theirs web-0-abc(starting)=anna (course db) default/web-0", "web http://a.local:30080/", "2 1"}
	if got := show(Selection{}); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if got := show(Selection{System: true}); !strings.Contains(strings.Join(got, "\n"), "own") {
		t.Errorf("%q", got)
	}
	if got := show(Selection{Namespace: "kube-system"}); !slices.Equal(got, []string{"home home: own", "1 0"}) {
		t.Errorf("%q", got)
	}
}

func TestWorkloadsAreBounded(t *testing.T) {
	var pods []corev1.Pod
	for i := range PageOfWorkloads + 20 {
		pods = append(pods, *podOf("lab", fmt.Sprintf("p%03d", i), "", corev1.PodPending, false))
	}
	var w Workloads
	explained := 0
	w.place(pods, nil, nil, Selection{}, func(*corev1.Pod) *explain.Reason { explained++; return &explain.Reason{What: "x"} })
	if len(w.Places) != 1 || len(w.Places[0].Pods) != PageOfWorkloads || w.More != 20 || explained != maxReasons {
		t.Errorf("%d places, %d more, %d explained", len(w.Places), w.More, explained)
	}
}

func TestExposed(t *testing.T) {
	https := "https"
	service := func(name string, kind corev1.ServiceType, ports ...corev1.ServicePort) corev1.Service {
		return corev1.Service{ObjectMeta: object("lab", name, nil), Spec: corev1.ServiceSpec{Type: kind, Ports: ports}}
	}
	path := func(p string) *networkingv1.HTTPIngressRuleValue {
		return &networkingv1.HTTPIngressRuleValue{Paths: []networkingv1.HTTPIngressPath{{Path: p}}}
	}
	served := networkingv1.Ingress{ObjectMeta: object("lab", "shop", nil), Spec: networkingv1.IngressSpec{TLS: []networkingv1.IngressTLS{{Hosts: []string{"safe.example"}}}}}
	for host, p := range map[string]string{"safe.example": "/a b", "*.any.example": "/", "": "/x"} {
		served.Spec.Rules = append(served.Spec.Rules, networkingv1.IngressRule{Host: host, IngressRuleValue: networkingv1.IngressRuleValue{HTTP: path(p)}})
	}
	slices.SortFunc(served.Spec.Rules, func(x, y networkingv1.IngressRule) int { return strings.Compare(y.Host, x.Host) })
	unserved := *served.DeepCopy()
	unserved.Name = "unserved"
	served.Status.LoadBalancer.Ingress = []networkingv1.IngressLoadBalancerIngress{{IP: "192.0.2.1"}}
	st := api.Status{StatusPage: "http://a.local:7480", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("fe80::1"), netip.MustParseAddr("2001:db8::1")},
		Services: []loadbalancer.Service{{Name: "lab/lb", At: []string{"192.0.2.1:8080", "192.0.2.1:53/udp", "a.local:8080", "192.0.2.1:443"}}}}
	got := ExposedBy([]corev1.Service{
		service("lb", corev1.ServiceTypeLoadBalancer, corev1.ServicePort{Port: 8080}, corev1.ServicePort{Port: 53, Protocol: corev1.ProtocolUDP}, corev1.ServicePort{Port: 443}),
		service("pending", corev1.ServiceTypeLoadBalancer, corev1.ServicePort{Port: 80}),
		service("np", corev1.ServiceTypeNodePort, corev1.ServicePort{Port: 1, NodePort: 30001, AppProtocol: &https}),
		service("inside", corev1.ServiceTypeClusterIP, corev1.ServicePort{Port: 80}),
	}, []networkingv1.Ingress{served, unserved}, st)
	var lines []string
	for _, e := range got {
		lines = append(lines, e.Kind+" "+e.Name+" "+strings.Join(e.URLs, " "))
	}
	want := []string{
		"Service lb http://a.local:8080/ http://192.0.2.1:8080/ https://192.0.2.1/",
		"Service np https://a.local:30001/ https://192.0.2.1:30001/ https://[2001:db8::1]:30001/",
		"Ingress shop https://safe.example/a%20b http://a.local/x http://192.0.2.1/x http://[2001:db8::1]/x",
	}
	if !slices.Equal(lines, want) {
		t.Errorf("\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
}
