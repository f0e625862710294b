package trace

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
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	"rivulet/appliance/api"
	"rivulet/fabric/peer"
	"rivulet/fabric/tunnel"
	"rivulet/fabric/wgkey"
	"rivulet/offload/consumer/explain"
	"rivulet/offload/networkpolicy"
	"rivulet/offload/policy"
)

const bID = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func addr(s string) netip.Addr         { return netip.MustParseAddr(s) }
func addrPort(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

func to[T any](v T) *T { return &v }

// aPod runs and is ready.
func aPod(name, node, ip string, set map[string]string) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: name, Labels: set, UID: "uid-" + "x"},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "web", Ports: []corev1.ContainerPort{{ContainerPort: 80}}}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}}, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			ContainerStatuses: []corev1.ContainerStatus{{Name: "web", Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}},
	}
}

func aNode(name, target string) corev1.Node {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}
	if target != "" {
		n.Labels = map[string]string{policy.VirtualNodeLabel: target, policy.TargetLabel: name, policy.KindLabel: "peer"}
	}
	return n
}

// working is a Service with a pod at home, web-1, and one on b, web-2, both of which answer; client is another pod.
func working() *Facts {
	app := map[string]string{"app": "web"}
	home, away, client := aPod("web-1", "a", "10.42.0.8", app), aPod("web-2", "b", "240.3.0.9", app), aPod("client", "a", "10.42.0.7", map[string]string{"app": "client"})
	endpoint := func(ip, node string) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{Addresses: []string{ip}, NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: to(true), Serving: to(true), Terminating: to(false)}}
	}
	private, err := wgkey.Generate()
	if err != nil {
		panic(err)
	}
	f := &Facts{
		Service: &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "web"}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.43.1.2", ClusterIPs: []string{"10.43.1.2"}, Selector: app,
			Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(80)}}}},
		Slices: []discoveryv1.EndpointSlice{{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "web-x", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}}, AddressType: discoveryv1.AddressTypeIPv4,
			Ports: []discoveryv1.EndpointPort{{Name: to(""), Port: to(int32(80)), Protocol: to(corev1.ProtocolTCP)}}, Endpoints: []discoveryv1.Endpoint{endpoint("10.42.0.8", "a"), endpoint("240.3.0.9", "b")}}},
		Around: explain.Facts{Namespace: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "lab"}}, Nodes: []corev1.Node{aNode("a", ""), aNode("b", bID)}, Pods: []corev1.Pod{home, away, client},
			Links: map[string]explain.LinkState{bID: {Name: "b", Connected: true}}, Running: true, Here: "a", UsedCPU: -1, Now: now},
		Home: "a",
		Peers: []api.Peer{{View: peer.View{State: peer.Connected, RTT: time.Millisecond, Path: "direct 10.77.0.12:7442", Record: peer.Record{ID: bID, Name: "b", WireGuardKey: private.Public(),
			PeerCIDR: netip.MustParsePrefix("10.42.0.0/16"), PeerMappedCIDR: netip.MustParsePrefix("240.3.0.0/16"), LocalMappedCIDR: netip.MustParsePrefix("240.5.0.0/16"), TunnelAddress: addr("10.42.255.254")}},
			Way: &api.Way{Path: "direct", LastHandshake: now.Add(-20 * time.Second), MTU: 1380}}},
		Tunnel:   &tunnel.Status{},
		Policies: &networkpolicy.World{},
		Name:     Lookup{Done: true, Name: "web.lab.svc.cluster.local", Took: time.Millisecond, Addrs: []netip.Addr{addr("10.43.1.2")}},
		Rules:    Rules{Read: true, Leads: true, To: []netip.AddrPort{addrPort("10.42.0.8:80"), addrPort("240.3.0.9:80")}},
		Through:  Attempt{Outcome: Connected, Took: time.Millisecond},
		Tried: map[netip.AddrPort]Attempt{addrPort("10.42.0.8:80"): {Outcome: Connected, Took: time.Millisecond},
			addrPort("240.3.0.9:80"): {Outcome: Connected, Took: 3 * time.Millisecond}},
	}
	f.Port = f.Service.Spec.Ports[0]
	return f
}

// only leaves one of the two endpoints.
func (f *Facts) only(pod string) *corev1.Pod {
	at := map[string]int{"web-1": 0, "web-2": 1}[pod]
	f.Slices[0].Endpoints = f.Slices[0].Endpoints[at : at+1]
	f.Around.Pods = slices.DeleteFunc(f.Around.Pods, func(p corev1.Pod) bool { return strings.HasPrefix(p.Name, "web-") && p.Name != pod })
	return &f.Around.Pods[0]
}

func (f *Facts) unready() {
	e := &f.Slices[0].Endpoints[0]
	e.Conditions.Ready, e.Conditions.Serving = to(false), to(false)
	f.Around.Pods[0].Status.Conditions[0].Status = corev1.ConditionFalse
	f.Rules = Rules{Read: true, Rejects: true}
	f.Through.Outcome = Refused
}

func (f *Facts) tries(o Outcome) {
	for a := range f.Tried {
		f.Tried[a] = Attempt{Outcome: o, Took: time.Millisecond, Err: "network is unreachable"}
	}
	f.Through.Outcome = o
}

// holds adds a NetworkPolicy of the web pods with these rules for ingress.
func (f *Facts) holds(rules ...networkingv1.NetworkPolicyIngressRule) {
	f.Policies = &networkpolicy.World{Namespaces: map[string]labels.Set{"lab": {}}, Policies: []*networkingv1.NetworkPolicy{{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "deny"},
		Spec: networkingv1.NetworkPolicySpec{PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, PolicyTypes: []networkingv1.PolicyType{"Ingress"}, Ingress: rules}}}}
	for _, p := range f.Around.Pods {
		f.Policies.Pods = append(f.Policies.Pods, networkpolicy.Pod{Namespace: p.Namespace, Name: p.Name, Labels: p.Labels, Addr: addr(p.Status.PodIP)})
	}
}

func (f *Facts) from(pod string) {
	for i := range f.Around.Pods {
		if f.Around.Pods[i].Name == pod {
			f.From, f.Inside = &f.Around.Pods[i], f.Around.Pods[i].Spec.NodeName == "a"
		}
	}
}

func clients() networkingv1.NetworkPolicyIngressRule {
	return networkingv1.NetworkPolicyIngressRule{From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "client"}}}}}
}

// Each verdict of each hop has a case: the facts are those of a Service that works, with one change, and the hop to begin
// with is the changed one.
func TestVerdicts(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(f *Facts)
		begin   string // a hop, or "" if nothing is wrong
		verdict Verdict
		text    string // of the hop; or of any, if nothing is wrong
		cure    string
	}{
		"all works":                   {func(*Facts) {}, "", OK, "ready, accepts connections", ""},
		"the translation is shown":    {func(*Facts) {}, "", OK, "it is 10.42.0.9 on b (10.42.0.0/16 there is 240.3.0.0/16 here); this cluster's pods are 240.5.0.0/16 there", ""},
		"the path is shown":           {func(*Facts) {}, "", OK, "direct 10.77.0.12:7442, round trip 1ms", ""},
		"the tunnel is shown":         {func(*Facts) {}, "", OK, "the last handshake was 20s ago, packets of 1380 bytes fit", ""},
		"DNS is silent":               {func(f *Facts) { f.Name.Err, f.Name.Addrs = "no answer within 2s", nil }, "name", Fails, "cluster DNS does not answer", "rivulet status"},
		"DNS answers the device only": {func(f *Facts) { f.from("client"); f.Name.Err, f.Name.Direct = "no answer", true }, "name", Fails, "answers this device, but not the pod", "rivulet doctor"},
		"DNS has not read Services":   {func(f *Facts) { f.Name.Code = "SERVFAIL" }, "name", Fails, "SERVFAIL", "rivulet status"},
		"no such name":                {func(f *Facts) { f.Name.Code = "NXDOMAIN" }, "name", Fails, "has no web.lab", "restart"},
		"another address":             {func(f *Facts) { f.Name.Addrs = []netip.Addr{addr("10.43.9.9")} }, "name", Fails, "is 10.43.9.9, and the Service has 10.43.1.2", "restart"},
		"DNS is slow":                 {func(f *Facts) { f.Name.Took = time.Second }, "name", Slow, "10.43.1.2", "rivulet doctor"},
		"a pod without cluster DNS":   {func(f *Facts) { f.from("client"); f.From.Spec.DNSPolicy = corev1.DNSDefault }, "name", Fails, "dnsPolicy: Default", "ClusterFirst"},
		"DNS was not queried":         {func(f *Facts) { f.Name = Lookup{Err: "busy"} }, "", Unknown, "busy", ""},
		"an alias": {func(f *Facts) {
			f.Service.Spec.Type, f.Service.Spec.ExternalName = corev1.ServiceTypeExternalName, "nas.lan"
		}, "", OK, "another name of nas.lan", ""},
		"an alias without an address": {func(f *Facts) {
			f.Service.Spec.Type, f.Service.Spec.ExternalName, f.Name.Code = corev1.ServiceTypeExternalName, "nas.lan", "NXDOMAIN"
		}, "name", Fails, "leads to nas.lan, which has no address", "externalName"},
		"nothing is selected":   {func(f *Facts) { f.Service.Spec.Selector = map[string]string{"app": "wb"}; f.Slices = nil }, "endpoints", Fails, "no pod has the labels", "correct the selector"},
		"a port without a name": {func(f *Facts) { f.Service.Spec.Selector = nil; f.Slices[0].Ports[0].Name = to("http") }, "endpoints", Fails, "no addresses for port", "EndpointSlices"},
		"home's pod is ending": {func(f *Facts) {
			e := &f.Slices[0].Endpoints[0].Conditions
			e.Ready, e.Terminating = to(false), to(true)
		}, "", OK, "1 ready: 240.3.0.9:80 (web-2, b); web-1 is ending", ""},
		"one of two is not ready": {func(f *Facts) {
			f.unready()
			f.Rules, f.Through.Outcome = Rules{Read: true, Leads: true, To: []netip.AddrPort{addrPort("240.3.0.9:80")}}, Connected
		}, "", OK, "web-1 is not ready", ""},
		"local traffic only": {func(f *Facts) {
			f.only("web-2")
			f.Service.Spec.InternalTrafficPolicy = to(corev1.ServiceInternalTrafficPolicyLocal)
		}, "endpoints", Fails, "internalTrafficPolicy is Local", "internalTrafficPolicy: Cluster"},
		"a NAS, from away": {func(f *Facts) {
			f.from("web-2")
			f.Slices[0].Endpoints = f.Slices[0].Endpoints[:1]
			f.Slices[0].Endpoints[0].Addresses[0] = "192.168.1.20"
		}, "endpoints", Fails, "only pods have addresses", "forwards"},
		"rules are gone":       {func(f *Facts) { f.Rules = Rules{Read: true}; f.Through.Outcome = Silent }, "rules", Fails, "no rule that leads 10.43.1.2:80", "rivulet doctor"},
		"rules lead elsewhere": {func(f *Facts) { f.Rules.To = []netip.AddrPort{addrPort("10.42.0.99:80")} }, "rules", Fails, "no rule", "rivulet doctor"},
		"rules do not work":    {func(f *Facts) { f.Through.Outcome = Silent }, "rules", Fails, "does not connect (no answer within 3s), and its endpoints do", "rivulet doctor"},
		"rules cannot be read": {func(f *Facts) { f.Rules = Rules{Err: "no iptables"} }, "", Unknown, "no iptables", ""},
		"an outdated address": {func(f *Facts) {
			f.only("web-2").Status.PodIP = "240.4.0.9"
			f.Slices[0].Endpoints[0].Addresses[0] = "240.4.0.9"
			f.Rules.To[0] = addrPort("240.4.0.9:80")
		}, "translation", Fails, "not in 240.3.0.0/16", "rivulet kubectl delete pod -n lab web-2"},
		"prefixes are unknown":      {func(f *Facts) { f.Peers[0].PeerCIDR = netip.Prefix{} }, "", Unknown, "have not been exchanged", ""},
		"the same addresses":        {func(f *Facts) { f.Peers[0].PeerCIDR = f.Peers[0].PeerMappedCIDR }, "", OK, "none: it is 240.3.0.9 in both clusters", ""},
		"the tunnel has no process": {func(f *Facts) { f.Tunnel = nil; f.tries(Connected) }, "tunnel", Fails, "process on this device", "rivulet status"},
		"the tunnel is refused": {func(f *Facts) {
			f.Tunnel.Peers = []tunnel.PeerStatus{{ID: bID, Problem: &tunnel.Problem{Text: "its prefix is taken", Cure: "restart b"}}}
		}, "tunnel", Fails, "its prefix is taken", "restart b"},
		"a peer is lost": {func(f *Facts) { f.lost() }, "tunnel", Fails, "peer b is not reached (Lost): no answer", "rivulet doctor peer b"},
		"a peer was ended": {func(f *Facts) {
			f.lost()
			f.Peers[0].State, f.Peers[0].Reason = peer.Denied, "ended here; rivulet peer b"
		}, "tunnel", Fails, "ended here", "rivulet peer b"},
		"old keys":            {func(f *Facts) { f.Peers[0].Way.LastHandshake = now.Add(-time.Hour) }, "", Unknown, "last handshake was 1h0m0s ago", ""},
		"a far peer":          {func(f *Facts) { f.Peers[0].RTT = 200 * time.Millisecond }, "path", Slow, "round trip 200ms", "rivulet doctor peer b"},
		"a policy for nobody": {func(f *Facts) { f.holds() }, "policy", Fails, "lab/deny lets no pod in to port 80/TCP", "rivulet kubectl edit networkpolicy -n lab deny"},
		"a policy for some":   {func(f *Facts) { f.holds(clients()) }, "", Unknown, "lab/deny let in 1 of 2 pods, such as lab/client", ""},
		"a policy for all":    {func(f *Facts) { f.holds(networkingv1.NetworkPolicyIngressRule{}) }, "", OK, "lab/deny let all pods in", ""},
		"a policy for addresses": {func(f *Facts) {
			f.holds(networkingv1.NetworkPolicyIngressRule{From: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: "192.168.0.0/16"}}}})
		}, "", Unknown, "but others", ""},
		"a policy for the pod": {func(f *Facts) { f.holds(clients()); f.from("client") }, "", OK, "allowed by lab/deny", ""},
		"a policy against it":  {func(f *Facts) { f.holds(clients()); f.from("web-2"); f.tries(Silent) }, "policy", Fails, "lab/deny does not let web-2 in to port 80/TCP of web-1", "rivulet kubectl edit networkpolicy -n lab deny"},
		"a policy keeps it in": {func(f *Facts) {
			f.holds()
			f.Policies.Policies[0].Spec.PodSelector.MatchLabels["app"] = "client"
			f.Policies.Policies[0].Spec.PolicyTypes[0] = "Egress"
			f.from("client")
			f.tries(Silent)
		}, "policy", Fails, "does not let client out to port 80/TCP of web-1", "egress"},
		"a policy not enforced": {func(f *Facts) {
			f.holds(clients())
			f.from("client")
			f.Unheld = map[string]string{"lab/deny": "an older version"}
		}, "", OK, "b does not enforce deny (an older version)", ""},
		"policies are unread": {func(f *Facts) { f.Policies = nil }, "", Unknown, "have not been read", ""},
		"nothing listens":     {func(f *Facts) { f.only("web-1"); f.tries(Refused) }, "container", Fails, "nothing listens on port 80 of the pod; the Service's targetPort is 80", "rivulet kubectl logs"},
		"it listens elsewhere": {func(f *Facts) {
			f.only("web-1")
			f.tries(Refused)
			f.Listening = map[netip.Addr][]netip.AddrPort{addr("10.42.0.8"): {addrPort("0.0.0.0:8080"), addrPort("127.0.0.1:9")}}
		}, "container", Fails, "and the pod listens on 8080", `rivulet kubectl patch service -n lab web --type json -p '[{"op":"replace","path":"/spec/ports/0/targetPort","value":8080}]'`},
		"it listens for itself": {func(f *Facts) {
			f.only("web-1")
			f.tries(Refused)
			f.Listening = map[netip.Addr][]netip.AddrPort{addr("10.42.0.8"): {addrPort("127.0.0.1:80")}}
		}, "container", Fails, "127.0.0.1 only", "0.0.0.0"},
		"it declares another": {func(f *Facts) {
			f.only("web-1").Spec.Containers[0].Ports[0].ContainerPort = 8080
			f.tries(Refused)
		}, "container", Fails, "the pod declares 8080", "targetPort"},
		"packets are dropped at home": {func(f *Facts) { f.only("web-1"); f.tries(Silent) }, "container", Fails, "no answer from port 80 within 3s", "rivulet doctor --only firewall"},
		"packets are dropped away":    {func(f *Facts) { f.only("web-2"); f.tries(Silent) }, "container", Fails, "between b and the pod", "there: rivulet doctor"},
		"no route":                    {func(f *Facts) { f.only("web-1"); f.tries(Unreachable) }, "container", Fails, "network is unreachable", "rivulet doctor"},
		"a slow pod":                  {func(f *Facts) { f.Tried[addrPort("10.42.0.8:80")] = Attempt{Outcome: Connected, Took: time.Second} }, "container", Slow, "accepts connections", "rivulet why lab/web-1"},
		"a crash": {func(f *Facts) {
			p := f.only("web-1")
			f.unready()
			f.tries(Refused)
			p.Status.ContainerStatuses[0] = corev1.ContainerStatus{Name: "web", RestartCount: 4, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}, LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 3}}}
		}, "container", Fails, "not ready: ", "rivulet kubectl logs"},
		"a probe that fails": {func(f *Facts) { f.only("web-1"); f.unready() }, "container", Fails, "it accepts connections, and is not ready", ""},
		"a pod that waits": {func(f *Facts) {
			p := f.only("web-1")
			f.unready()
			p.Status.Phase = corev1.PodPending
			p.Status.ContainerStatuses = nil
		}, "container", Fails, "being started", ""},
		"published unready": {func(f *Facts) {
			f.only("web-1").Status.Conditions[0].Status = corev1.ConditionFalse
			f.Service.Spec.PublishNotReadyAddresses = true
		}, "", OK, "accepts connections", ""},
		"UDP": {func(f *Facts) { f.udp() }, "", Unknown, "cannot be proved by UDP", ""},
		"a written address": {func(f *Facts) {
			f.Slices[0].Endpoints[0].Addresses[0] = "192.168.1.20"
			f.Rules.To[0] = addrPort("192.168.1.20:80")
		}, "", Unknown, "not that of a pod of this cluster, and is not tried", ""},
		"headless and unready": {func(f *Facts) {
			f.Service.Spec.ClusterIP, f.Service.Spec.ClusterIPs = "None", []string{"None"}
			f.only("web-1")
			f.unready()
			f.Name.Code, f.Name.Addrs = "NXDOMAIN", nil
		}, "container", Fails, "is not ready", ""},
		"between two peers": {func(f *Facts) {
			f.Around.Nodes = append(f.Around.Nodes, aNode("c", "cccc"))
			f.Peers = append(f.Peers, api.Peer{View: peer.View{State: peer.Connected, Record: peer.Record{ID: "cccc", Name: "c"}}, Way: f.Peers[0].Way})
			f.Around.Pods[2].Spec.NodeName = "c"
			f.from("client")
		}, "", Unknown, "between c and b", ""},
		"relayed": {func(f *Facts) {
			f.Around.Nodes = append(f.Around.Nodes, aNode("c", "cccc"))
			f.Peers = append(f.Peers, api.Peer{View: peer.View{State: peer.Connected, Record: peer.Record{ID: "cccc", Name: "c"}}, Way: f.Peers[0].Way, Relayed: []string{"b"}})
			f.Around.Pods[2].Spec.NodeName = "c"
			f.from("client")
		}, "", OK, "through this cluster, since c and b are no peers of each other", ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := working()
			c.change(f)
			r := f.Report()
			h, found := r.Cause()
			if !found {
				for _, h = range r.Hops {
					if strings.Contains(h.Text, c.text) {
						break
					}
				}
			}
			if found != (c.begin != "") || found && h.Name != c.begin || r.Verdict != c.verdict || !strings.Contains(h.Text, c.text) || !strings.Contains(h.Cure, c.cure) {
				t.Errorf("begins at %q (%s), verdict %s: %q, cure %q\n%s", h.Name, h.Pod, r.Verdict, h.Text, h.Cure, show(r))
			}
		})
	}
}

func (f *Facts) lost() {
	p := f.only("web-2")
	f.unready()
	f.tries(Silent)
	p.Status.Conditions[0].Reason = "Lost"
	f.Peers[0].State, f.Peers[0].Reason = peer.Lost, "no answer; is it on?"
	f.Around.Links[bID] = explain.LinkState{Name: "b", Why: "no answer"}
}

func (f *Facts) udp() {
	f.Port.Protocol = corev1.ProtocolUDP
	f.Slices[0].Ports[0].Protocol = to(corev1.ProtocolUDP)
	f.Tried = nil
}

func show(r Report) string {
	var out []string
	for _, h := range r.Hops {
		out = append(out, fmt.Sprintf("%s %s %s: %s → %s", h.Pod, h.Verdict, h.Name, h.Text, h.Cure))
	}
	return strings.Join(out, "\n")
}

// A pod is followed without a Service: no name, endpoints or rules.
func TestAPodWithoutAService(t *testing.T) {
	f := working()
	f.Pod, f.PodPort, f.Service = &f.Around.Pods[1], 80, nil
	r := f.Report()
	var names []string
	for _, h := range r.Hops {
		names = append(names, h.Name)
	}
	if want := "translation tunnel path policy container"; strings.Join(names, " ") != want || r.Verdict != OK || r.Port != "80/TCP" || r.Kind != "Pod" {
		t.Errorf("%s %s\n%s", names, r.Verdict, show(r))
	}
	f.PodPort = 0
	if r := f.Report(); r.Verdict != Unknown || !strings.Contains(show(r), "declares no TCP port") {
		t.Errorf("without a port:\n%s", show(r))
	}
}

// Whatever is known, a report has a text in every hop, and a cure in each that fails, except where a pod only starts; it
// begins at a hop with the verdict of the whole, and no endpoint beyond the bound is in it.
func TestReportsAreWhole(t *testing.T) {
	failed := 0
	rapid.Check(t, func(t *rapid.T) {
		f := working()
		for i := range rapid.IntRange(0, 12).Draw(t, "further pods") {
			p := aPod(fmt.Sprint("more-", i), rapid.SampledFrom([]string{"a", "b", "gone"}).Draw(t, "node"), fmt.Sprintf("10.42.1.%d", i+1), map[string]string{"app": "web"})
			p.Status.Phase = rapid.SampledFrom([]corev1.PodPhase{corev1.PodRunning, corev1.PodPending, corev1.PodFailed}).Draw(t, "phase")
			f.Around.Pods = append(f.Around.Pods, p)
			f.Slices[0].Endpoints = append(f.Slices[0].Endpoints, discoveryv1.Endpoint{Addresses: []string{p.Status.PodIP}, Conditions: discoveryv1.EndpointConditions{Ready: to(rapid.Bool().Draw(t, "ready"))}})
		}
		for _, e := range f.Endpoints() {
			f.Tried[e.Addr] = Attempt{Outcome: Outcome(rapid.IntRange(0, 4).Draw(t, "outcome")), Took: time.Duration(rapid.IntRange(0, 2e9).Draw(t, "took"))}
		}
		f.Through.Outcome = Outcome(rapid.IntRange(0, 4).Draw(t, "through"))
		f.Rules.Read, f.Rules.Leads = rapid.Bool().Draw(t, "read"), rapid.Bool().Draw(t, "leads")
		f.Name.Code = rapid.SampledFrom([]string{"", "NXDOMAIN", "SERVFAIL"}).Draw(t, "code")
		f.Peers[0].State = rapid.SampledFrom([]peer.State{peer.Connected, peer.Lost, peer.Refused, peer.Connecting}).Draw(t, "state")
		if rapid.Bool().Draw(t, "held") {
			f.holds()
		}
		if rapid.Bool().Draw(t, "from") {
			f.from(rapid.SampledFrom([]string{"client", "web-2"}).Draw(t, "source"))
		}
		r := f.Report()
		followed := map[string]bool{}
		for i, h := range r.Hops {
			if h.Text == "" || h.Verdict == "" {
				t.Fatalf("hop %d has no text:\n%s", i, show(r))
			}
			if h.Verdict == Fails {
				failed++
			}
			if h.Endpoint != "" {
				followed[h.Endpoint] = true
			}
		}
		if h, found := r.Cause(); found && h.Verdict != r.Verdict || !found && (r.Verdict == Fails || r.Verdict == Slow) || len(followed) > maxEndpoints {
			t.Fatalf("%s begins at %d, %d endpoints:\n%s", r.Verdict, r.Begin, len(followed), show(r))
		}
	})
	if failed == 0 {
		t.Error("nothing ever failed")
	}
}

func TestParseRules(t *testing.T) {
	const text = `*nat
:KUBE-SERVICES - [0:0]
-A KUBE-SERVICES -d 10.43.1.2/32 -p tcp -m comment --comment "lab/web cluster IP" -m tcp --dport 80 -j KUBE-SVC-AAA
-A KUBE-SERVICES -d 10.43.1.3/32 -p tcp -m comment --comment "lab/db cluster IP" -m tcp --dport 80 -j KUBE-SVC-BBB
-A KUBE-SERVICES -d 10.43.1.2/32 -p udp -m comment --comment "lab/web:u cluster IP" -m udp --dport 80 -j KUBE-SVC-CCC
-A KUBE-SVC-AAA ! -s 10.42.0.0/16 -d 10.43.1.2/32 -p tcp -m tcp --dport 80 -j KUBE-MARK-MASQ
-A KUBE-SVC-AAA -m comment --comment "lab/web -> 10.42.0.8:80" -m recent --rcheck --seconds 10800 --reap --name KUBE-SEP-1 --mask 255.255.255.255 --rsource -j KUBE-SEP-1
-A KUBE-SVC-AAA -m comment --comment "lab/web -> 10.42.0.8:80" -m statistic --mode random --probability 0.5 -j KUBE-SEP-1
-A KUBE-SVC-AAA -m comment --comment "lab/web -> 240.3.0.9:80" -j KUBE-SEP-2
-A KUBE-SEP-1 -s 10.42.0.8/32 -m comment --comment "lab/web" -j KUBE-MARK-MASQ
-A KUBE-SEP-1 -p tcp -m comment --comment "lab/web" -m tcp -j DNAT --to-destination 10.42.0.8:80
-A KUBE-SEP-2 -p tcp -m tcp -j DNAT --to-destination 240.3.0.9:80
COMMIT
*filter
-A KUBE-SERVICES -d 10.43.1.9/32 -p tcp -m comment --comment "lab/none has no endpoints" -m tcp --dport 80 -j REJECT --reject-with icmp-port-unreachable
COMMIT
`
	port := corev1.ServicePort{Port: 80, Protocol: corev1.ProtocolTCP}
	if r := parseRules(text, addr("10.43.1.2"), port); !r.Leads || r.Rejects || !slices.Equal(r.To, []netip.AddrPort{addrPort("10.42.0.8:80"), addrPort("240.3.0.9:80")}) {
		t.Errorf("%+v", r)
	}
	if r := parseRules(text, addr("10.43.1.9"), port); r.Leads || !r.Rejects || len(r.To) != 0 {
		t.Errorf("without endpoints: %+v", r)
	}
	if r := parseRules(text, addr("10.43.1.8"), port); !r.Read || r.Leads || r.Rejects {
		t.Errorf("of none: %+v", r)
	}
	port.Port = 81
	if r := parseRules(text, addr("10.43.1.2"), port); r.Leads {
		t.Errorf("of another port: %+v", r)
	}
}
