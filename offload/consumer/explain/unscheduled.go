package explain

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"rivulet/offload/consumer/pod/translate"
	"rivulet/offload/policy"
)

// unscheduled explains why no node accepts a pod, the nearest to fit first.
func (f Facts) unscheduled() (out []Reason) {
	p := f.Pod
	if len(p.Spec.SchedulingGates) > 0 {
		return []Reason{{Gated, "it has a scheduling gate: " + p.Spec.SchedulingGates[0].Name, "the queue or policy that added it removes it; or by hand: rivulet kubectl edit pod -n " + p.Namespace + " " + p.Name}}
	}
	if say := f.own("OffloadTooLate"); say != "" {
		what, cure, _ := strings.Cut(say, "; ")
		return []Reason{{TooLate, what, cure}}
	}
	if out = f.unbound(); len(out) > 0 {
		return out
	}
	said := condition(p, corev1.PodScheduled)
	if said == nil || said.Status == corev1.ConditionTrue {
		return []Reason{{NotScheduled, "the scheduler has not looked at it yet", "rivulet status"}}
	}
	held, claim := f.held()
	if claim != "" && len(held) == 0 {
		return []Reason{f.strayed(claim)}
	}
	asked := resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{})
	free := f.free()
	type obstacle struct {
		Reason
		rank
	}
	var found []obstacle
	var roomAway []string // on nodes that are excluded by the namespace only
	for i := range held {
		n := &held[i]
		r, why, closed := f.against(n, asked, free[n.Name])
		switch {
		case claim != "" && r.What != "":
			r.What = "its volume (claim " + claim + ") is on " + n.Name + ": " + r.What
			if why == closedNow && n.Spec.Unschedulable && n.Labels[policy.VirtualNodeLabel] != "" {
				r.Cure += "; or: rivulet move volume " + p.Namespace + "/" + claim + " home"
			}
			found = append(found, obstacle{r, why})
		case closed && r.What == "":
			roomAway = append(roomAway, target(n))
		case closed: // it would not go there in any case
		case r.What != "":
			found = append(found, obstacle{r, why})
		}
	}
	if len(roomAway) > 0 {
		slices.Sort(roomAway)
		there := strings.Join(slices.Compact(roomAway), ", ")
		what := there + " has room for " + words(asked)
		if slices.ContainsFunc(found, func(o obstacle) bool { return o.Code == NoRoom }) {
			what = "home has no room for " + words(asked) + ", and " + there + " has"
		}
		r, at := f.staysHome(what+", but "), staysHome
		if r.Code == Refused {
			at = noRoom // after what is missing at home, which is nearer
		}
		found = append(found, obstacle{r, at})
	}
	chosen := []string{p.Spec.NodeSelector[corev1.LabelHostname], p.Spec.NodeSelector[policy.TargetLabel], f.only()}
	for _, r := range f.lendNothing(func(name string) bool { return slices.Contains(chosen, name) }) {
		found = append(found, obstacle{r, closedNow})
	}
	slices.SortStableFunc(found, func(x, y obstacle) int { return int(x.rank - y.rank) })
	for _, o := range found {
		out = append(out, o.Reason)
	}
	if len(out) == 0 {
		out = []Reason{{NotScheduled, short(said.Message), "rivulet kubectl describe pod -n " + p.Namespace + " " + p.Name}}
	}
	return out
}

// held are the nodes that the pod's volumes allow, and a claim that excludes some; all nodes and "" if none does.
func (f Facts) held() (nodes []corev1.Node, claim string) {
	nodes = f.Nodes
	for _, name := range claimsOf(f.Pod) {
		c := f.claim(name)
		if c == nil {
			continue
		}
		v := f.volume(c.Spec.VolumeName)
		if v == nil || v.Spec.NodeAffinity == nil || v.Spec.NodeAffinity.Required == nil {
			continue
		}
		want, err := nodeaffinity.NewNodeSelector(v.Spec.NodeAffinity.Required)
		if err != nil {
			continue
		}
		claim = name
		nodes = slices.DeleteFunc(slices.Clone(nodes), func(n corev1.Node) bool { return !want.Match(&n) })
	}
	return nodes, claim
}

// rank is the order of obstacles: those that a user can remove most easily come first.
type rank int

const (
	closedNow rank = iota // the node would accept it, except for its present state
	staysHome             // another node would accept it, but it stays at home
	noRoom                // resources that others use
	never                 // excluded by the pod's selectors or the node's taints
	other
)

// staysHome is why a pod does not go where there is capacity; what is the finding about capacity.
func (f Facts) staysHome(what string) Reason {
	p := f.Pod
	ns := policy.Namespace{When: policy.Off}
	if f.Namespace != nil {
		ns, _ = policy.Parse(f.Namespace)
	}
	switch refused := translate.Refuse(p); {
	case p.Labels[policy.OriginLabel] != "":
		return Reason{NoRoom, what + "pods of other clusters are not sent on", "request less, free some, or add a device"}
	case policy.System(p.Namespace):
		return Reason{NoRoom, what + "namespace " + p.Namespace + " stays at home", "request less, free some, or add a device"}
	case refused != nil:
		text, _, _ := strings.Cut(strings.TrimPrefix(refused.Error(), "offload: "), "; ")
		return Reason{Refused, what + text, "remove that field; or: request less, or free some at home"}
	case !ns.Sends():
		return Reason{NoRoom, what + "its namespace may not go there", "rivulet offload " + p.Namespace}
	case strings.HasPrefix(Controller(p), "DaemonSet/"):
		return Reason{NoRoom, what + "pods of a DaemonSet run on machines of this cluster only", "request less, free some, or add a device"}
	case Controller(p) != "":
		return Reason{TooLate, what + "it was made before its namespace was offloaded", "delete it, and its controller makes another: rivulet kubectl delete pod -n " + p.Namespace + " " + p.Name}
	}
	return Reason{TooLate, what + "it was made before its namespace was offloaded", "delete it, and make it again"}
}

// against is why a node does not accept the pod, with its rank; an empty text means unknown. Virtual is true if the
// taint of virtual nodes excludes it.
func (f Facts) against(n *corev1.Node, asked corev1.ResourceList, free map[corev1.ResourceName]resource.Quantity) (r Reason, why rank, virtual bool) {
	if n.Labels[policy.VirtualNodeLabel] != "" && policy.KeptHome(f.Pod) {
		return Reason{Selector, "its label " + policy.NamespaceLabel + "=off keeps it at home, and " + target(n) + " is another cluster",
			"request less, or free some at home; or: remove that label where its owner has its template"}, never, false
	}
	if ok, err := nodeaffinity.GetRequiredNodeAffinity(f.Pod).Match(n); err == nil && !ok {
		if to := f.only(); to != "" && n.Labels[policy.VirtualNodeLabel] != "" && to != target(n) {
			return Reason{Selector, "its namespace goes to " + to + " only, not to " + target(n), "rivulet offload " + f.Pod.Namespace}, never, false
		}
		shut := slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == policy.VirtualTaint && !tolerated(f.Pod, &t) })
		return mismatch(f.Pod, n), never, shut
	}
	var closed []Reason
	withdrawn := false
	for i := range n.Spec.Taints {
		t := &n.Spec.Taints[i]
		if t.Effect == corev1.TaintEffectPreferNoSchedule || tolerated(f.Pod, t) {
			continue
		}
		withdrawn = withdrawn || t.Key == policy.WithdrawnTaint
		if t.Key == policy.VirtualTaint {
			virtual = true
		} else if r, of := f.state(n, t); of {
			closed = append(closed, r)
		} else {
			return Reason{Taint, fmt.Sprintf("%s has taint %s, which it does not tolerate", n.Name, t.ToString()), "add a toleration; or: rivulet kubectl taint node " + n.Name + " " + t.Key + "-"}, never, virtual
		}
	}
	if r, full := f.full(n, asked, free); full && !withdrawn {
		return r, noRoom, virtual
	}
	if !withdrawn {
		closed = append(f.link(n), closed...)
	}
	if n.Spec.Unschedulable {
		closed = append(closed, cordoned(n))
	}
	if len(closed) > 0 {
		return closed[0], closedNow, virtual
	}
	return Reason{}, other, virtual
}

// only is the one target that the pod's namespace is offloaded to, "" for any.
func (f Facts) only() string {
	if f.Namespace == nil {
		return ""
	}
	ns, _ := policy.Parse(f.Namespace)
	return ns.To
}

// full are the resources that the node lacks.
func (f Facts) full(n *corev1.Node, asked corev1.ResourceList, free map[corev1.ResourceName]resource.Quantity) (Reason, bool) {
	for _, name := range slices.Sorted(maps.Keys(asked)) {
		want, have := asked[name], free[name]
		if want.Cmp(have) > 0 {
			return Reason{NoRoom, fmt.Sprintf("%s has %s of %s free, it requests %s", n.Name, have.String(), name, want.String()), "request less, free some, or add a device"}, true
		}
	}
	if left := free[corev1.ResourcePods]; left.Value() < 1 {
		return Reason{NoRoom, n.Name + " has as many pods as it takes", "delete some, or add a device"}, true
	}
	for i := range f.Pods {
		if p := &f.Pods[i]; p.Spec.NodeName == n.Name && p.UID != f.Pod.UID && !over(p) {
			if port := samePort(p, f.Pod); port != "" {
				return Reason{Port, fmt.Sprintf("port %s of %s is taken by pod %s/%s", port, n.Name, p.Namespace, p.Name), "give it another hostPort, or have a Service lead to it instead"}, true
			}
		}
	}
	return Reason{}, false
}

// samePort is a host port that both pods use.
func samePort(x, y *corev1.Pod) string {
	for _, a := range hostPorts(x) {
		for _, b := range hostPorts(y) {
			everywhere := a.HostIP == "" || b.HostIP == "" || a.HostIP == "0.0.0.0" || b.HostIP == "0.0.0.0"
			if a.HostPort == b.HostPort && a.Protocol == b.Protocol && (everywhere || a.HostIP == b.HostIP) {
				return fmt.Sprintf("%s %d", cmp.Or(a.Protocol, corev1.ProtocolTCP), a.HostPort)
			}
		}
	}
	return ""
}

func hostPorts(p *corev1.Pod) (out []corev1.ContainerPort) {
	for _, port := range declared([]corev1.Pod{*p}) {
		if port.HostPort != 0 {
			out = append(out, port)
		}
	}
	return out
}

func tolerated(p *corev1.Pod, t *corev1.Taint) bool {
	return slices.ContainsFunc(p.Spec.Tolerations, func(x corev1.Toleration) bool {
		return (x.Effect == "" || x.Effect == t.Effect) && (x.Key == "" && x.Operator == corev1.TolerationOpExists || x.Key == t.Key) &&
			(x.Operator == corev1.TolerationOpExists || x.Value == t.Value)
	})
}

// free are the unrequested resources, by node.
func (f Facts) free() map[string]map[corev1.ResourceName]resource.Quantity {
	out := map[string]map[corev1.ResourceName]resource.Quantity{}
	for i := range f.Nodes {
		left := map[corev1.ResourceName]resource.Quantity{}
		for name, q := range f.Nodes[i].Status.Allocatable {
			left[name] = q.DeepCopy()
		}
		out[f.Nodes[i].Name] = left
	}
	for i := range f.Pods {
		p := &f.Pods[i]
		left, ok := out[p.Spec.NodeName]
		if !ok || over(p) {
			continue
		}
		used := resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{})
		used[corev1.ResourcePods] = *resource.NewQuantity(1, resource.DecimalSI)
		for name, q := range used {
			have := left[name]
			have.Sub(q)
			left[name] = have
		}
	}
	return out
}

// over reports whether a pod has ended for good.
func over(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

func words(list corev1.ResourceList) string {
	var out []string
	for name, q := range list {
		out = append(out, q.String()+" "+string(name))
	}
	if slices.Sort(out); len(out) > 0 {
		return strings.Join(out, ", ")
	}
	return "one more pod"
}
