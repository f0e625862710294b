package explain

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"rivulet/offload/policy"
)

// unscheduled is for a pod without a node: why none of them takes it, the nearest first.
func (f Facts) unscheduled() (out []Reason) {
	p := f.Pod
	if len(p.Spec.SchedulingGates) > 0 {
		return []Reason{{NotScheduled, "it has a scheduling gate: " + p.Spec.SchedulingGates[0].Name, "remove it, or wait for who does"}}
	}
	if say := f.event("OffloadTooLate"); say != "" {
		what, cure, _ := strings.Cut(say, "; ")
		return []Reason{{TooLate, what, cure}}
	}
	for _, claim := range f.Missing {
		out = append(out, Reason{Claim, "its claim " + claim + " has no volume", "rivulet kubectl describe pvc -n " + p.Namespace + " " + claim})
	}
	if len(out) > 0 {
		return out
	}
	said := condition(p, corev1.PodScheduled)
	if said == nil || said.Status == corev1.ConditionTrue {
		return []Reason{{NotScheduled, "the scheduler has not looked at it yet", "rivulet status"}}
	}
	asked := resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{})
	free := f.free()
	var roomAway []string // that only the namespace's label keeps it from
	for i := range f.Nodes {
		n := &f.Nodes[i]
		if r, fits := f.against(n, asked, free[n.Name]); !fits {
			out = append(out, r)
		} else if r.Code == Taint {
			roomAway = append(roomAway, target(n))
		}
	}
	slices.SortStableFunc(out, func(x, y Reason) int { return rank(x.Code) - rank(y.Code) })
	if len(roomAway) > 0 {
		slices.Sort(roomAway)
		out = append([]Reason{{NoRoom, fmt.Sprintf("home has no room for %s, and its namespace may not go to %s, which has", words(asked), strings.Join(slices.Compact(roomAway), ", ")),
			"rivulet offload " + p.Namespace}}, out...)
	}
	if len(out) == 0 {
		out = []Reason{{NotScheduled, short(said.Message), "rivulet kubectl describe pod -n " + p.Namespace + " " + p.Name}}
	}
	return out
}

// rank has room, which is the usual reason, come first.
func rank(code string) int { return slices.Index([]string{NoRoom, Selector, Link, Taint}, code) }

// against says why a node does not take the pod. fits is true if only the taint of virtual nodes keeps
// it off, with Taint, or nothing that is known here.
func (f Facts) against(n *corev1.Node, asked corev1.ResourceList, free map[corev1.ResourceName]resource.Quantity) (r Reason, fits bool) {
	if n.Spec.Unschedulable {
		return Reason{Taint, n.Name + " takes no new pods (cordoned)", "rivulet uncordon " + n.Name}, false
	}
	if l := f.link(n); len(l) > 0 {
		return l[0], false
	}
	if ok, err := nodeaffinity.GetRequiredNodeAffinity(f.Pod).Match(n); err == nil && !ok {
		return Reason{Selector, n.Name + " is not what its nodeSelector or affinity asks for" + f.asks(n), "change that, or label the node"}, false
	}
	closed := false
	for i := range n.Spec.Taints {
		t := &n.Spec.Taints[i]
		if t.Effect == corev1.TaintEffectPreferNoSchedule || tolerated(f.Pod, t) {
			continue
		}
		switch t.Key {
		case policy.VirtualTaint:
			closed = true
			continue
		case policy.WithdrawnTaint:
			return Reason{Taint, target(n) + " lends nothing any more", "ask its owner, or choose another: rivulet peers"}, false
		}
		return Reason{Taint, fmt.Sprintf("%s has taint %s, which it does not tolerate", n.Name, t.ToString()), "add a toleration, or: rivulet kubectl taint node " + n.Name + " " + t.Key + "-"}, false
	}
	for name, want := range asked {
		if have := free[name]; want.Cmp(have) > 0 {
			return Reason{NoRoom, fmt.Sprintf("%s has %s of %s free, it requests %s", n.Name, have.String(), name, want.String()), "request less, free some, or add a device"}, false
		}
	}
	if left := free[corev1.ResourcePods]; left.Value() < 1 {
		return Reason{NoRoom, n.Name + " has as many pods as it takes", "delete some, or add a device"}, false
	}
	if closed {
		return Reason{Code: Taint}, true
	}
	return Reason{}, true
}

// asks names the platform that it wants, if it is another: the usual reason.
func (f Facts) asks(n *corev1.Node) string {
	if want := f.Pod.Spec.NodeSelector[corev1.LabelArchStable]; want != "" && want != n.Labels[corev1.LabelArchStable] {
		return " (" + want + ", this is " + n.Labels[corev1.LabelArchStable] + ")"
	}
	return ""
}

func tolerated(p *corev1.Pod, t *corev1.Taint) bool {
	return slices.ContainsFunc(p.Spec.Tolerations, func(x corev1.Toleration) bool {
		return (x.Effect == "" || x.Effect == t.Effect) && (x.Key == "" && x.Operator == corev1.TolerationOpExists || x.Key == t.Key) &&
			(x.Operator == corev1.TolerationOpExists || x.Value == t.Value)
	})
}

// free is what no pod has requested, by node.
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
		if !ok || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
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
