package explain

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"rivulet/offload/policy"
)

// The state of a node closes it for new pods: the system sets a taint, and removes it when the cause has ended. None of
// these is removed by hand.

// pressures are the conditions in which a kubelet refuses new pods and ends some, with the code of the device's own
// problem that has the reason, and a cure if there is none.
var pressures = []struct {
	condition         corev1.NodeConditionType
	taint, code, what string
	cure              string
}{
	{corev1.NodeDiskPressure, corev1.TaintNodeDiskPressure, "disk-space", "its disk is nearly full", "find what takes the room: rivulet doctor --only disk-space"},
	{corev1.NodeMemoryPressure, corev1.TaintNodeMemoryPressure, "memory", "it has little memory", "stop pods that are not needed, or add a device"},
	{corev1.NodePIDPressure, corev1.TaintNodePIDPressure, "", "it has nearly as many processes as it can", "stop pods that start many processes"},
}

// Problem is one problem of the device, as in `rivulet status`.
type Problem struct{ Code, Subject, Text, Cure string }

func (f Facts) problem(code, subject string) *Problem {
	for i := range f.Problems {
		if p := &f.Problems[i]; p.Code == code && p.Subject == subject {
			return p
		}
	}
	return nil
}

// pressed explains a condition of a node, with its cure.
func (f Facts) pressed(n *corev1.Node, kind corev1.NodeConditionType) Reason {
	for _, x := range pressures {
		if x.condition != kind {
			continue
		}
		r := Reason{Pressure, n.Name + " has " + string(kind) + ": " + x.what + ", and it takes no new pods", x.cure}
		switch p := f.problem(x.code, ""); {
		case n.Labels[policy.VirtualNodeLabel] != "":
			r.Cure = examine(n)
		case p != nil:
			r.What, r.Cure = r.What+" ("+p.Text+")", p.Cure
		case f.Running && kind == corev1.NodeDiskPressure:
			r.What, r.Cure = n.Name+" has "+string(kind)+": its disk was nearly full; enough is free again, and the kubelet takes pods within 5 minutes", ""
		}
		return r
	}
	return Reason{Pressure, n.Name + " has " + string(kind), "rivulet doctor"}
}

// lendAgain is the cure for the owner of a peer that lends nothing.
func lendAgain(name string) string {
	return "ask its owner to take share out of the configuration of " + name + ", and then, there: rivulet config reload; or: choose another: rivulet peers"
}

// state explains a taint of the system; of is false for a taint that a user has set.
func (f Facts) state(n *corev1.Node, t *corev1.Taint) (r Reason, of bool) {
	for _, x := range pressures {
		if t.Key == x.taint {
			return f.pressed(n, x.condition), true
		}
	}
	switch {
	case t.Key == policy.WithdrawnTaint:
		cure := lendAgain(target(n))
		if _, ok := campus(n); ok {
			cure = examine(n)
		}
		return Reason{Taint, target(n) + " lends nothing any more", cure}, true
	case t.Key == policy.UnchosenTaint:
		return unchosen(target(n)), true
	case t.Key == corev1.TaintNodeUnschedulable:
		return cordoned(n), true
	case strings.Contains(t.Key, "node.kubernetes.io/"), strings.Contains(t.Key, "node.cloudprovider.kubernetes.io/"), strings.HasPrefix(t.Key, "rivulet.dev/"):
		if l := f.link(n); len(l) > 0 {
			return l[0], true
		}
		cure := "it goes by itself; if it stays: rivulet doctor"
		if n.Labels[policy.VirtualNodeLabel] != "" {
			cure = "it goes by itself; if it stays: " + examine(n)
		}
		return Reason{Taint, n.Name + " has taint " + t.ToString() + ", which the system sets and takes off", cure}, true
	}
	return r, false
}

// lendNothing explains peers that lend nothing and have no node here.
func (f Facts) lendNothing(is func(name string) bool) (out []Reason) {
	for id, l := range f.Links {
		if l.LendsNothing && is(l.Name) && !slices.ContainsFunc(f.Nodes, func(n corev1.Node) bool { return n.Labels[policy.VirtualNodeLabel] == id }) {
			out = append(out, Reason{Link, l.Name + " lends nothing now", lendAgain(l.Name)})
		}
	}
	slices.SortFunc(out, func(x, y Reason) int { return strings.Compare(x.What, y.What) })
	return out
}

func unchosen(name string) Reason {
	return Reason{Taint, name + " gets no new pods: the configuration does not choose it", "rivulet config explain virtualNodes"}
}

func cordoned(n *corev1.Node) Reason {
	verb := "rivulet uncordon "
	if n.Labels[policy.VirtualNodeLabel] == "" {
		verb = "rivulet kubectl uncordon "
	}
	return Reason{Taint, n.Name + " takes no new pods (cordoned)", verb + n.Name}
}
