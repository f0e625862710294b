package trace

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"rivulet/appliance/api"
	"rivulet/fabric/cure"
	"rivulet/fabric/peer"
	"rivulet/offload/consumer/pod/translate"
)

// to are the hops from the source to one endpoint.
func (f Facts) to(e Endpoint) (hops []Hop) {
	from := f.source()
	switch {
	case from.Peer != nil && e.Peer != nil && from.Peer.ID == e.Peer.ID:
		// The packets stay on that cluster; what home knows of it comes through its tunnel.
	case from.Peer != nil && e.Peer != nil && slices.Contains(from.Peer.Relayed, e.Peer.Name):
		hops = append(hops, Hop{Name: "relay", Verdict: OK, Text: fmt.Sprintf("through this cluster, since %s and %s are no peers of each other", from.Peer.Name, e.Peer.Name)})
		hops = append(hops, f.tunnel(from.Peer)...)
	case from.Peer != nil && e.Peer != nil:
		hops = append(hops, Hop{Name: "tunnel", Verdict: Unknown, Text: fmt.Sprintf("between %s and %s, and known there only; they have to be peers of each other", from.Peer.Name, e.Peer.Name),
			Cure: "there: rivulet doctor peer " + e.Peer.Name})
	case from.Peer != nil:
		hops = append(hops, f.tunnel(from.Peer)...)
	}
	switch {
	case e.Peer != nil:
		hops = append(hops, f.translation(e))
		if from.Peer == nil || from.Peer.ID == e.Peer.ID || slices.Contains(from.Peer.Relayed, e.Peer.Name) {
			hops = append(hops, f.tunnel(e.Peer)...)
		}
	case e.away():
		hops = append(hops, f.target(e))
	}
	return append(hops, f.policy(from, e), f.container(e))
}

// translation evaluates the prefixes under which two clusters see each other's pods.
func (f Facts) translation(e Endpoint) Hop {
	p := e.Peer
	h := Hop{Name: "translation", Verdict: OK}
	if !p.Complete() {
		h.Verdict, h.Text = Unknown, "prefixes have not been exchanged with "+p.Name+" yet"
		return h
	}
	there, ok := peer.Translate(e.Addr.Addr(), p.PeerMappedCIDR, p.PeerCIDR)
	switch {
	case !ok && e.Addr.Addr().IsValid() && !e.Addr.Addr().IsUnspecified():
		h.Verdict, h.Text = Fails, fmt.Sprintf("%s is not in %s, the prefix of the pods of %s here: its status is outdated", e.Addr.Addr(), p.PeerMappedCIDR, p.Name)
		h.Cure = "wait half a minute; if it stays, delete the pod, its controller makes another: rivulet kubectl delete pod -n " + e.Pod.Namespace + " " + e.Pod.Name
	case !ok:
		h.Verdict, h.Text, h.follows = Fails, "it has no address yet", true
	case there == e.Addr.Addr():
		h.Text = fmt.Sprintf("none: it is %s in both clusters; this cluster's pods are %s there", there, p.LocalMappedCIDR)
	default:
		h.Text = fmt.Sprintf("it is %s on %s (%s there is %s here); this cluster's pods are %s there", there, p.Name, p.PeerCIDR, p.PeerMappedCIDR, p.LocalMappedCIDR)
	}
	return h
}

// rekey is the greatest age of the keys of a tunnel in use; WireGuard drops them then.
const rekey = 180 * time.Second

// tunnel evaluates the tunnel to a peer and the path that its packets take.
func (f Facts) tunnel(p *api.Peer) []Hop {
	t, way := Hop{Name: "tunnel", Verdict: OK}, Hop{Name: "path", Verdict: OK, Took: p.RTT}
	text, fix := cure.Cut(p.Reason)
	if f.Tunnel == nil {
		t.Verdict, t.Text, t.Cure = Fails, "the tunnel's process on this device does not answer", "see why: rivulet status; or: journalctl -n 50 -u rivulet"
		return []Hop{t}
	}
	for _, s := range f.Tunnel.Peers {
		if s.ID == string(p.ID) && s.Problem != nil && !s.Problem.Partly {
			t.Verdict, t.Text, t.Cure = Fails, p.Name+" is not served as it should be: "+s.Problem.Text, s.Problem.Cure
			return []Hop{t}
		}
	}
	if p.State != peer.Connected {
		t.Verdict, t.Text = Fails, fmt.Sprintf("peer %s is not reached (%s): %s", p.Name, p.State, orReason(text))
		t.Cure = "is it on, is rivulet running there, is it on the network? To find out: rivulet doctor peer " + p.Name
		if p.State.Apart() && fix != "" {
			t.Cure = fix
		}
		return []Hop{t}
	}
	age := f.Around.Now.Sub(handshake(p)).Round(time.Second)
	switch {
	case p.Way == nil || p.Way.LastHandshake.IsZero():
		t.Verdict, t.Text, t.Cure = Unknown, p.Name+" answers, and no handshake is known", "rivulet doctor peer "+p.Name
	case age > rekey:
		t.Verdict, t.Text, t.Cure = Unknown, fmt.Sprintf("%s answered, and the last handshake was %s ago", p.Name, age), "rivulet doctor peer "+p.Name
	default:
		t.Text = fmt.Sprintf("%s answers, the last handshake was %s ago", p.Name, max(age, 0))
	}
	if p.Way != nil && p.Way.MTU > 0 {
		t.Text += fmt.Sprintf(", packets of %d bytes fit", p.Way.MTU)
	}
	way.Text = "direct"
	switch {
	case p.Path != "":
		way.Text = p.Path
	case p.Way == nil || p.Way.Path == "":
		way.Verdict, way.Text = Unknown, "no path is known by its name; WireGuard has found one alone"
	case p.Way.Path == "direct":
		way.Text = "direct " + p.Way.Endpoint.String()
	default:
		way.Text = strings.TrimSpace(p.Way.Path + " " + p.Way.Via)
	}
	if p.RTT > 0 {
		way.Text += ", round trip " + p.RTT.Round(10*time.Microsecond).String()
	}
	if p.RTT > slowRTT {
		way.Verdict, way.Cure = Slow, "rivulet doctor peer "+p.Name+"; what talks much belongs together: rivulet offload NAMESPACE --to PEER"
	}
	return []Hop{t, way}
}

func handshake(p *api.Peer) (at time.Time) {
	if p.Way != nil {
		at = p.Way.LastHandshake
	}
	return at
}

// target evaluates the node of a target that is not a peer.
func (f Facts) target(e Endpoint) Hop {
	h := Hop{Name: "tunnel", Verdict: OK, Text: "by the gateway of " + e.where()}
	for _, c := range e.Node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			h.Verdict, h.Text, h.Cure = Fails, e.where()+" is not reached: "+orReason(c.Message), "rivulet burst status "+strings.TrimPrefix(e.where(), "burst-")
		}
	}
	return h
}

// container evaluates the attempt to connect, and the state of the pod.
func (f Facts) container(e Endpoint) Hop {
	a := f.Tried[e.Addr]
	h := Hop{Name: "container", Verdict: OK, Took: a.Took}
	p := e.Pod
	if p == nil {
		h.Verdict, h.Text = Unknown, "the address is not that of a pod of this cluster, and is not tried"
		return h
	}
	if p.Status.PodIP == "" || p.Status.Phase != corev1.PodRunning || p.DeletionTimestamp != nil && !e.Serving {
		r := f.why(p)
		h.Verdict, h.Text, h.Cure = Fails, r.What, r.Cure
		return h
	}
	if a.Outcome > Connected {
		if h, proved := f.unanswered(e, a, h); proved {
			return h
		}
	}
	if !isReady(p) && !f.publishes() {
		r := f.why(p)
		h.Verdict, h.Text, h.Cure = Fails, "not ready: "+r.What, r.Cure
		if a.Outcome == Connected {
			h.Text = "it accepts connections, and is not ready: " + r.What
		}
		return h
	}
	restarts := int32(0)
	for _, c := range p.Status.ContainerStatuses {
		restarts += c.RestartCount
	}
	state := "ready"
	if restarts > 0 {
		state += fmt.Sprintf(", %d restarts", restarts)
	}
	switch {
	case e.Addr.Port() == 0:
		h.Verdict, h.Text, h.Cure = Unknown, state+"; it declares no TCP port to connect to", "rivulet trace pod/"+p.Name+":PORT -n "+p.Namespace
	case f.protocol() != corev1.ProtocolTCP:
		h.Verdict, h.Text = Unknown, state+"; an open port cannot be proved by "+string(f.protocol())
	case a.Outcome == Untried:
		h.Verdict, h.Text = Unknown, state+"; no connection was tried: "+orReason(a.Err)
	default:
		h.Text = state + ", accepts connections"
		if f.From != nil && !f.Inside {
			h.Text += " from this device; from inside " + f.From.Name + " nothing can be tried here"
		}
		far := time.Duration(0)
		if e.Peer != nil {
			far = 2 * e.Peer.RTT
		}
		if a.Took > slowConnect+far {
			h.Verdict = Slow
			h.Cure = "see whether it is at its CPU limit, or its device is busy: rivulet why " + p.Namespace + "/" + p.Name
		}
	}
	return h
}

// publishes: the Service leads to pods that are not ready, too.
func (f Facts) publishes() bool { return f.Service != nil && f.Service.Spec.PublishNotReadyAddresses }

// unanswered explains a connection that failed; false if the pod's own state explains it.
func (f Facts) unanswered(e Endpoint, a Attempt, h Hop) (Hop, bool) {
	h.Verdict = Fails
	port := e.Addr.Port()
	switch a.Outcome {
	case Refused:
		if starting(e.Pod) {
			return h, false
		}
		h.Text = fmt.Sprintf("nothing listens on port %d of the pod", port)
		open, only := f.listening(e)
		if only {
			h.Text = fmt.Sprintf("the program listens on port %d of 127.0.0.1 only, which nothing outside of the pod reaches", port)
			h.Cure = "have the program listen on 0.0.0.0"
			return h, true
		}
		h.Cure = "have the program listen on that port, on all addresses: rivulet kubectl logs -n " + e.Pod.Namespace + " " + e.Pod.Name
		if f.Service == nil {
			if len(open) > 0 {
				h.Text += "; it listens on " + ports(open)
			}
			return h, true
		}
		h.Text += "; the Service's targetPort is " + f.targetPort()
		if len(open) > 0 {
			h.Text += ", and the pod listens on " + ports(open)
		} else if open = declared(e.Pod); len(open) > 0 && !slices.Equal(open, []uint16{port}) {
			h.Text += ", and the pod declares " + ports(open)
		}
		if len(open) == 1 && open[0] != port {
			h.Cure = fmt.Sprintf(`rivulet kubectl patch service -n %s %s --type json -p '[{"op":"replace","path":"/spec/ports/%d/targetPort","value":%d}]'`, f.Service.Namespace, f.Service.Name, f.portIndex(), open[0])
		}
	case Silent:
		if !isReady(e.Pod) {
			return h, false
		}
		h.Text = fmt.Sprintf("no answer from port %d within %s: something drops the packets", port, connectLimit)
		h.Cure = "rivulet doctor --only firewall,pod-network,service-rules"
		if e.Peer != nil {
			h.Text += " between " + e.Peer.Name + " and the pod"
			h.Cure = "there: rivulet doctor --only firewall,pod-network; and here: rivulet doctor peer " + e.Peer.Name
		}
	default:
		if !isReady(e.Pod) {
			return h, false
		}
		h.Text, h.Cure = fmt.Sprintf("port %d is not reached: %s", port, a.words()), "rivulet doctor"
		if e.Peer != nil {
			h.Cure = "rivulet doctor peer " + e.Peer.Name
		}
	}
	return h, true
}

// starting reports a container that is not running: nothing listens because of that.
func starting(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool { return c.State.Running == nil })
}

func (f Facts) portIndex() int {
	return max(0, slices.IndexFunc(f.Service.Spec.Ports, func(p corev1.ServicePort) bool { return p.Name == f.Port.Name && p.Port == f.Port.Port }))
}

// listening are the ports that the pod's programs listen on for others; only: the port of the endpoint is for the pod
// itself.
func (f Facts) listening(e Endpoint) (open []uint16, only bool) {
	for _, s := range f.Listening[e.Addr.Addr()] {
		if s.Addr().IsLoopback() {
			only = only || s.Port() == e.Addr.Port()
			continue
		}
		open = append(open, s.Port())
	}
	slices.Sort(open)
	return slices.Compact(open), only
}

// declared are the pod's TCP ports.
func declared(p *corev1.Pod) (out []uint16) {
	for c := range translate.KeepRunning(p) {
		for _, port := range c.Ports {
			if port.Protocol == corev1.ProtocolTCP || port.Protocol == "" {
				out = append(out, uint16(port.ContainerPort))
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func ports(all []uint16) string {
	var out []string
	for i, p := range all {
		if i == maxEndpoints {
			out = append(out, "others")
			break
		}
		out = append(out, fmt.Sprint(p))
	}
	return strings.Join(out, ", ")
}
