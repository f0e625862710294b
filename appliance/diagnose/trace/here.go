package trace

import (
	"cmp"
	"context"
	"net/http"
	"net/netip"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"rivulet/appliance/api"
	"rivulet/appliance/config/fixed"
	"rivulet/appliance/diagnose/doctor"
	"rivulet/appliance/diagnose/why"
	"rivulet/fabric/cure"
	"rivulet/offload/networkpolicy"
	"rivulet/offload/policy"
)

// Here is this cluster. All fields are required.
type Here struct {
	Engine     interface{ Client() kubernetes.Interface } // nil before the engine has started
	Supervisor api.Supervisor
	Policies   interface {
		World() (networkpolicy.World, bool)
	}
	DNS   netip.AddrPort // of cluster DNS
	State string         // Rivulet's folder
}

// Path is the route of a trace, with the parameters object, namespace and from of Request.
const Path = "/v1/trace"

// Routes registers the route of `rivulet trace`.
func (h Here) Routes(mux *http.ServeMux) {
	slots := make(chan struct{}, maxRequests)
	mux.Handle("GET "+Path, api.JSON(func(r *http.Request) (any, error) {
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
		default:
			return nil, cure.Errorf("%d traces run already; try again in a few seconds", maxRequests)
		}
		q := r.URL.Query()
		return h.Trace(r.Context(), Request{Object: q.Get("object"), Namespace: q.Get("namespace"), From: q.Get("from")})
	}))
}

// Trace follows a connection.
func (h Here) Trace(ctx context.Context, q Request) (Report, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	o, err := q.parse()
	if err != nil {
		return Report{}, err
	}
	client := h.Engine.Client()
	if client == nil {
		return Report{}, cure.Errorf("home's API server has not started yet; see: rivulet status")
	}
	f, err := h.read(ctx, client, o, q)
	if err != nil {
		return Report{}, err
	}
	h.try(ctx, &f)
	return f.Report(), nil
}

// read collects what is written somewhere.
func (h Here) read(ctx context.Context, client kubernetes.Interface, o object, q Request) (f Facts, err error) {
	if err := o.find(ctx, client, &f); err != nil {
		return f, h.explained(err)
	}
	if err := q.source(ctx, client, &f); err != nil {
		return f, h.explained(err)
	}
	st := h.Supervisor.Status()
	f.Home, f.Peers, f.Tunnel = st.NodeName, st.PeerList(), st.Tunnel
	about := any(f.Pod)
	if f.Service != nil {
		about = f.Service
		list, err := client.DiscoveryV1().EndpointSlices(f.Service.Namespace).List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + f.Service.Name})
		if err != nil {
			return f, describe(err)
		}
		f.Slices = list.Items
	}
	if f.Around, err = why.Facts(ctx, client, about, st); err != nil {
		return f, describe(err)
	}
	if w, known := h.Policies.World(); known {
		f.Policies = &w
	}
	f.Unheld = unheld(f.Around.Events)
	return f, nil
}

// explained passes errors with a cure on.
func (h Here) explained(err error) error {
	if _, fix := cure.Split(err); fix != "" {
		return err
	}
	return describe(err)
}

// unheld are the NetworkPolicies that a target has refused, by the reflection's events.
func unheld(events []corev1.Event) map[string]string {
	out := map[string]string{}
	for _, e := range events {
		if e.InvolvedObject.Kind == policy.NetworkPolicyKind && slices.Contains([]string{"ReflectionRefused", "ReflectionFailed"}, e.Reason) {
			text, _ := cure.Cut(e.Message)
			out[e.InvolvedObject.Namespace+"/"+e.InvolvedObject.Name] = text
		}
	}
	return out
}

// try adds what only an attempt shows.
func (h Here) try(ctx context.Context, f *Facts) {
	var from place
	if f.From != nil {
		from, f.Inside = placeOf(f.From)
		defer from.close()
	}
	var mu sync.Mutex
	var all sync.WaitGroup
	f.Tried, f.Listening = map[netip.AddrPort]Attempt{}, map[netip.Addr][]netip.AddrPort{}
	targets, _ := f.Targets()
	for _, e := range targets {
		why := h.allowed(*f, e)
		all.Go(func() {
			if why != "" {
				mu.Lock()
				defer mu.Unlock()
				f.Tried[e.Addr] = Attempt{Err: why}
				return
			}
			a := from.connect(ctx, e.Addr)
			var open []netip.AddrPort
			if a.Outcome == Refused && !e.away() {
				open = inside(e.Pod)
			}
			mu.Lock()
			defer mu.Unlock()
			f.Tried[e.Addr], f.Listening[e.Addr.Addr()] = a, open
		})
	}
	if f.Service != nil {
		var name Lookup
		var rules Rules
		var through Attempt
		all.Go(func() { name = h.lookup(ctx, from, *f) })
		if ip := first(f.addresses()); ip.Is4() && fixed.ServiceCIDR.Contains(ip) {
			all.Go(func() { rules = h.rules(ctx, ip, f.Port) })
			if h.leadsToPods(*f) {
				all.Go(func() { through = from.connect(ctx, netip.AddrPortFrom(ip, uint16(f.Port.Port))) })
			}
		}
		all.Wait()
		f.Name, f.Rules, f.Through = name, rules, through
	}
	all.Wait()
}

// leadsToPods reports whether a connection to the cluster IP ends at an endpoint that may be tried.
func (h Here) leadsToPods(f Facts) bool {
	lead, _ := used(f.Endpoints())
	return len(lead) > 0 && !slices.ContainsFunc(lead, func(e Endpoint) bool { return h.allowed(f, e) != "" })
}

// allowed is why an endpoint must not be tried, "" if it may be. What a user writes into an EndpointSlice, or a peer
// into a status, decides nothing: only addresses of pods of this cluster are used.
func (h Here) allowed(f Facts, e Endpoint) string {
	a := e.Addr.Addr()
	switch {
	case e.Pod == nil:
		return "the address is not that of a pod"
	case f.protocol() != corev1.ProtocolTCP || e.Addr.Port() == 0:
		return "there is no TCP port"
	case e.Pod.Status.PodIP == "":
		return "the pod has no address yet"
	case e.Peer != nil && e.Peer.PeerMappedCIDR.IsValid() && e.Peer.PeerMappedCIDR.Contains(a):
		return ""
	case e.Peer == nil && e.away() && f.Policies != nil && slices.ContainsFunc(f.Policies.Peers, func(p netip.Prefix) bool { return p.Contains(a) }):
		return ""
	case !e.away() && (fixed.PodCIDR.Contains(a) || e.Pod.Spec.HostNetwork && a == h.DNS.Addr()):
		return ""
	}
	return "the address is not one that pods have there"
}

// inside are the sockets that listen in a pod of this device; nil if that cannot be read.
func inside(p *corev1.Pod) []netip.AddrPort {
	if p.Spec.HostNetwork {
		return nil
	}
	at, here := placeOf(p)
	defer at.close()
	if !here {
		return nil
	}
	open, _ := at.listening()
	return open
}

// lookup queries cluster DNS as the source does.
func (h Here) lookup(ctx context.Context, from place, f Facts) Lookup {
	name := f.Service.Name + "." + f.Service.Namespace + ".svc." + fixed.ClusterDomain
	if from.ns == nil {
		return from.lookup(ctx, h.DNS, name)
	}
	l := from.lookup(ctx, netip.AddrPortFrom(fixed.ClusterDNS, 53), name)
	if l.Err != "" {
		direct := place{}.lookup(ctx, h.DNS, name)
		l.Direct = direct.Err == ""
	}
	return l
}

func (h Here) rules(ctx context.Context, ip netip.Addr, port corev1.ServicePort) Rules {
	text, err := doctor.Here(h.State, "").Exec(ctx, "iptables-save")
	if err != nil {
		return Rules{Err: err.Error()}
	}
	port.Protocol = cmp.Or(port.Protocol, corev1.ProtocolTCP)
	return parseRules(text, ip, port)
}
