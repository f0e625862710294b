package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/fabric/peer"
	"rivulet/offload/consumer/pod/translate"
	"rivulet/offload/policy"
)

// whereTo explains whether a target accepts pods of an offloaded namespace.
func (f Facts) whereTo(n *corev1.Namespace) (out []Reason) {
	ns, err := policy.Parse(n)
	if err != nil {
		what, cure, _ := strings.Cut(err.Error(), "; ")
		return []Reason{{Label, what, cmp.Or(cure, "rivulet offload "+n.Name)}}
	}
	if !ns.Sends() {
		return nil
	}
	known := false
	for i := range f.Nodes {
		node := &f.Nodes[i]
		if node.Labels[policy.VirtualNodeLabel] == "" || !ns.Allows(target(node)) {
			continue
		}
		known = true
		r := f.closed(node)
		if len(r) == 0 {
			return nil // one accepts them
		}
		out = append(out, r[0])
	}
	if nothing := f.lendNothing(ns.Allows); !known && len(nothing) > 0 {
		out = nothing
	} else if !known {
		return []Reason{{Link, "it is offloaded to " + cmp.Or(ns.To, "peers") + ", and there is none", "see which there are: rivulet peers; or: rivulet offload " + n.Name + " --when " + string(ns.When)}}
	}
	out[0].What = "it is offloaded, and none takes its pods: " + out[0].What
	return out
}

// wherePods is the text for a namespace without problems.
func (f Facts) wherePods(n *corev1.Namespace, all []corev1.Pod) string {
	pods := len(all)
	ns, _ := policy.Parse(n)
	if !ns.Sends() {
		return fmt.Sprintf("its %d pods run at home only; to let them go to peers: rivulet offload %s", pods, n.Name)
	}
	var to []string
	for i := range f.Nodes {
		if t := target(&f.Nodes[i]); f.Nodes[i].Labels[policy.VirtualNodeLabel] != "" && ns.Allows(t) && !slices.Contains(to, t) {
			to = append(to, t)
		}
	}
	old := 0
	for i := range all {
		if p := &all[i]; !tolerated(p, &corev1.Taint{Key: policy.VirtualTaint, Effect: corev1.TaintEffectNoSchedule}) && translate.Refuse(p) == nil && !strings.HasPrefix(Controller(p), "DaemonSet/") {
			old++
		}
	}
	text := fmt.Sprintf("its %d pods may go to %s (%s)", pods, strings.Join(to, ", "), ns.When)
	if old > 0 {
		text += fmt.Sprintf(", %d of them only when they are made again: rivulet kubectl rollout restart deployment -n %s", old, n.Name)
	}
	return text
}

// quotas are the namespace's exhausted quotas.
func (f Facts) quotas() (out []Reason) {
	for i := range f.Quotas {
		q := &f.Quotas[i]
		var full []string
		for name, hard := range q.Status.Hard {
			if used := q.Status.Used[name]; used.Cmp(hard) >= 0 && !hard.IsZero() {
				full = append(full, fmt.Sprintf("%s of %s %s", used.String(), hard.String(), name))
			}
		}
		if slices.Sort(full); len(full) > 0 {
			out = append(out, Reason{Quota, "quota " + q.Name + " is used up: " + strings.Join(full, ", "), "raise it, or delete pods that are not needed: rivulet kubectl describe quota -n " + q.Namespace + " " + q.Name})
		}
	}
	return out
}

// closed is why a node accepts no new pods at all.
func (f Facts) closed(n *corev1.Node) (out []Reason) {
	withdrawn := false
	for i := range n.Spec.Taints {
		t := &n.Spec.Taints[i]
		if t.Effect == corev1.TaintEffectPreferNoSchedule || t.Key == policy.VirtualTaint || t.Key == corev1.TaintNodeUnschedulable {
			continue
		}
		withdrawn = withdrawn || t.Key == policy.WithdrawnTaint
		if r, of := f.state(n, t); of {
			out = append(out, r)
		} else {
			out = append(out, Reason{Taint, n.Name + " has taint " + t.ToString() + ": only pods that tolerate it go there", "rivulet kubectl taint node " + n.Name + " " + t.Key + "-"})
		}
	}
	if !withdrawn {
		out = append(f.link(n), out...)
	}
	if n.Spec.Unschedulable {
		out = append(out, cordoned(n))
	}
	return slices.CompactFunc(out, func(x, y Reason) bool { return x == y })
}

func (f Facts) nodeItself(n *corev1.Node) subject {
	state := "Ready"
	if len(f.link(n)) > 0 {
		state = "NotReady"
	}
	return subject{"Node", n.ObjectMeta, state, f.closed(n), "it is ready and takes pods"}
}

// peer explains whether another cluster is a peer and accepts pods.
func (f Facts) peer(v *peer.View) subject {
	name := cmp.Or(v.Name, v.ID.Short())
	s := subject{kind: "Peer", meta: metav1.ObjectMeta{Name: name}, state: string(v.State), fine: "it is connected and takes pods"}
	why, cure, _ := strings.Cut(short(v.Reason), "; ")
	// there is the cure for its owner: NAME is this cluster.
	there := func(cure, or string) string {
		if strings.Contains(cure, " NAME") {
			cure = "on " + name + cure[strings.LastIndex(cure, ": "):]
		}
		return strings.ReplaceAll(cmp.Or(cure, or), "NAME", cmp.Or(f.Here, "NAME"))
	}
	add := func(code, what, cure string) { s.reasons = append(s.reasons, Reason{code, what, cure}) }
	switch v.State {
	case peer.Waiting:
		if slices.ContainsFunc(f.Problems, func(p Problem) bool { return p.Code == "peer-waiting" && strings.Contains(p.Subject, v.ID.Short()) }) {
			add(Approval, "it wants to be a peer, and waits for approval here", "rivulet approve "+name+"; or: rivulet deny "+name)
		} else {
			add(Approval, cmp.Or(why, "it has not approved this cluster yet"), there(cure, "on "+name+": rivulet approve NAME"))
		}
	case peer.Denied:
		why, _, _ = strings.Cut(why, ": rivulet ") // the complete cure is below
		add(Approval, cmp.Or(why, "the peering was ended here"), "rivulet peer "+name)
	case peer.Lost, peer.Connecting:
		add(Link, "peer "+name+" is not reached: "+cmp.Or(why, "no answer yet"), comesBack(name))
	case peer.Discovered, peer.Refused:
		add(Link, "it is no peer: "+cmp.Or(why, "nothing has been exchanged with it yet"), there(cure, "rivulet doctor peer "+name))
	}
	apart := v.State.Apart()
	if v.Roles.NoConsume && !apart {
		add(Role, "this cluster sends it no pods", "rivulet peer "+name+" --consume=on")
	}
	if v.TheirRoles.NoProvide && !apart {
		add(Role, "it lends nothing to this cluster", there("", "on "+name+": rivulet peer NAME --provide=on"))
	}
	if v.State != peer.Connected {
		return s
	}
	if !v.Roles.NoConsume && !v.TheirRoles.NoProvide {
		nodes := 0
		for i := range f.Nodes {
			if n := &f.Nodes[i]; n.Labels[policy.VirtualNodeLabel] == string(v.ID) {
				nodes++
				s.reasons = append(s.reasons, f.closed(n)...)
			}
		}
		switch l := f.Links[string(v.ID)]; {
		case nodes == 0 && l.Unchosen:
			s.reasons = append(s.reasons, unchosen(name))
		case nodes == 0 && !l.LendsNothing:
			add(Starting, "its virtual node is being made", "")
		case nodes == 0:
			add(Link, name+" lends nothing now", "ask its owner what it shares; or: rivulet doctor peer "+name)
		}
	}
	if v.RTT > farAway || strings.HasPrefix(v.Path, "relay") {
		add(Slow, fmt.Sprintf("it is %s away (path: %s)", v.RTT.Round(time.Millisecond), cmp.Or(v.Path, "not known")), "rivulet doctor peer "+name)
	}
	return s
}
