package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// A provider's bounds on one pod: the expressions of its admission policies have a bounded cost.
const (
	MostContainers = 64  // initContainers and ephemeralContainers included
	MostImage      = 512 // characters of the name of an image
)

// Namespace is how one namespace is offloaded.
type Namespace struct {
	When When
	// To is the name of the only target; empty is all.
	To string
	// Prefer orders the nodes; empty is the order of When alone.
	Prefer Preference `json:",omitempty"`
	// Reflect are the kinds of objects that follow the pods, if not the default: see Mode.
	Reflect string `json:",omitempty"`
}

// Allows reports whether pods of the namespace may go to the named target.
func (n Namespace) Allows(target string) bool { return n.Sends() && (n.To == "" || n.To == target) }

// Sends reports whether pods of the namespace may leave home.
func (n Namespace) Sends() bool { return n.When == Burst || n.When == Remote || n.When == Any }

// Reflects reports whether objects of the namespace follow to the named target: it may have pods there, or its Services
// are for pods of other namespaces.
func (n Namespace) Reflects(target string) bool {
	return (n.Sends() || n.When == Services) && (n.To == "" || n.To == target)
}

// System reports whether a namespace is the cluster's own. Its pods serve this cluster and stay at home, whatever its
// labels are.
func System(namespace string) bool { return strings.HasPrefix(namespace, "kube-") }

// Preferences are the values of PreferLabel.
var Preferences = []Preference{Cheapest, Nearest, Spread}

var values = []string{string(Burst), string(Remote), string(Any), string(Services), string(Off)}

// Parse reads the labels of a namespace. It returns Off for one without a label, with off, or being deleted, and an
// error with the allowed values for an invalid label or annotation.
func Parse(ns *corev1.Namespace) (Namespace, error) {
	return parse(ns, Off)
}

// ParseAll is Parse for a home without nodes of its own: a namespace without a label is Remote, except the cluster's
// own. Ingresses follow unless the namespace excludes them, since nothing at home could serve them.
func ParseAll(ns *corev1.Namespace) (Namespace, error) {
	if System(ns.Name) {
		return Parse(ns)
	}
	n, err := parse(ns, Remote)
	if n.When != Off && !strings.Contains(n.Reflect, IngressKind+"=") {
		n.Reflect = strings.TrimPrefix(n.Reflect+","+IngressKind+"="+ReflectOn, ",")
	}
	return n, err
}

func parse(ns *corev1.Namespace, unlabelled When) (Namespace, error) {
	value, labelled := ns.Labels[NamespaceLabel]
	if !labelled && unlabelled != Off {
		value, labelled = string(unlabelled), true
	}
	if !labelled || ns.DeletionTimestamp != nil || ns.Status.Phase == corev1.NamespaceTerminating {
		return Namespace{When: Off}, nil
	}
	if !slices.Contains(values, value) {
		return Namespace{When: Off}, fmt.Errorf("label %s=%q is not understood and counts as off; use one of %s",
			NamespaceLabel, value, strings.Join(values, ", "))
	}
	if When(value) == Off {
		return Namespace{When: Off}, nil
	}
	if System(ns.Name) {
		return Namespace{When: Off}, fmt.Errorf("label %s counts as off: %s is the cluster's own namespace; offload one of your own", NamespaceLabel, ns.Name)
	}
	reflect, err := parseReflect(ns.Annotations[ReflectAnnotation])
	prefer := Preference(ns.Labels[PreferLabel])
	if prefer != "" && !slices.Contains(Preferences, prefer) {
		err = errors.Join(err, fmt.Errorf("label %s=%q is not understood and does not count; use one of %s, %s, %s", PreferLabel, prefer, Cheapest, Nearest, Spread))
		prefer = ""
	}
	return Namespace{When: When(value), To: ns.Labels[NamespaceToLabel], Prefer: prefer, Reflect: reflect}, err
}

// KeptHome reports whether the pod itself has NamespaceLabel with the value off: it runs at home, or on the host of its
// virtual cluster, whatever the mode of its namespace. Admission and the scheduler read the label when the pod is made
// and placed; a running pod stays where it is.
func KeptHome(p *corev1.Pod) bool { return p.Labels[NamespaceLabel] == string(Off) }
