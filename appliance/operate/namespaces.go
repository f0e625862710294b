package operate

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"rivulet/offload/consumer/drain"
	"rivulet/offload/policy"
)

// Namespace is one with its way of offloading.
type Namespace struct {
	Name string `json:"name"`
	// Mode is off, burst, remote, any or services.
	Mode policy.When `json:"mode"`
	// To is the only target; empty: all.
	To string `json:"to,omitempty"`
	// System: the cluster's own. Tenant: a twin of a consumer's namespace. Pods of both cannot be offloaded.
	System bool `json:"system,omitempty"`
	Tenant bool `json:"tenant,omitempty"`
	// Wrong is the mistake in its labels, with a cure.
	Wrong string `json:"wrong,omitempty"`
}

// Namespaces are those of the cluster, by name.
func (c Cluster) Namespaces(ctx context.Context) ([]Namespace, error) {
	client, err := c.Client()
	if err != nil {
		return nil, err
	}
	list, err := client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, fmt.Errorf("namespaces: %w; see: rivulet status", err)
	}
	out := make([]Namespace, 0, len(list.Items))
	for i := range list.Items {
		n := &list.Items[i]
		mode, err := policy.Parse(n)
		one := Namespace{Name: n.Name, Mode: mode.When, To: mode.To, System: policy.System(n.Name), Tenant: n.Labels[policy.OriginLabel] != ""}
		if err != nil {
			one.Wrong = err.Error()
		}
		out = append(out, one)
	}
	slices.SortFunc(out, func(x, y Namespace) int { return cmp.Compare(x.Name, y.Name) })
	return out, nil
}

// UnknownWhen is the error for a mode of offloading that there is not.
type UnknownWhen string

func (w UnknownWhen) Error() string {
	return fmt.Sprintf("when %s is not known; use burst (home first), remote (only away), any, or services (only its Services are there for pods away)", string(w))
}

// UnknownPreference is the error for a preference that there is not.
type UnknownPreference string

func (p UnknownPreference) Error() string {
	return fmt.Sprintf("prefer %.40q is not known; use cheapest, nearest, spread, or none", string(p))
}

// NoPreference removes the preference of a namespace; the empty one leaves it.
const NoPreference policy.Preference = "none"

// CheckOffload returns an error unless pods of a namespace can be offloaded in this way. A target need not answer now.
func (c Cluster) CheckOffload(ctx context.Context, namespace string, how policy.Namespace) error {
	switch how.When {
	case policy.Burst, policy.Remote, policy.Any, policy.Services:
	default:
		return UnknownWhen(how.When)
	}
	if how.Prefer != "" && how.Prefer != NoPreference && !slices.Contains(policy.Preferences, how.Prefer) {
		return UnknownPreference(how.Prefer)
	}
	if policy.System(namespace) {
		return fmt.Errorf("namespace %s is the cluster's own and stays at home; offload one of your own, for example: rivulet offload lab --create", namespace)
	}
	if how.To != "" {
		targets, err := c.Targets(ctx)
		if err != nil {
			return err
		}
		if !slices.Contains(targets, how.To) {
			return fmt.Errorf("there is no peer or burst target %s, only: %s; see: rivulet peers, rivulet burst list", how.To, cmp.Or(strings.Join(targets, ", "), "-"))
		}
	}
	client, err := c.Client()
	if err != nil {
		return err
	}
	switch ns, err := client.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{}); {
	case err == nil && ns.Labels[policy.OriginLabel] != "":
		return fmt.Errorf("namespace %s is another cluster's, and its pods stay here; offload one of your own, for example: rivulet offload lab --create", namespace)
	case err != nil && !apierrors.IsNotFound(err):
		return fmt.Errorf("namespace %s: %w; see: rivulet status", namespace, err)
	}
	return nil
}

// Targets are the names, sorted, of what pods can be sent to, now or once it answers.
func (c Cluster) Targets(ctx context.Context) (names []string, err error) {
	st, err := c.Status(ctx)
	if err != nil {
		return nil, err
	}
	for _, n := range st.VirtualNodes {
		names = append(names, n.Target)
	}
	for _, p := range Peers(st.Peers) {
		names = append(names, p.Name)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// Offload writes the labels of a namespace, which CheckOffload has accepted; without To it is all targets. With create
// it makes a namespace that is missing.
func (c Cluster) Offload(ctx context.Context, namespace string, how policy.Namespace, create bool) error {
	change := map[string]any{policy.NamespaceLabel: how.When, policy.NamespaceToLabel: nil}
	if how.To != "" {
		change[policy.NamespaceToLabel] = how.To
	}
	switch how.Prefer {
	case "":
	case NoPreference:
		change[policy.PreferLabel] = nil
	default:
		change[policy.PreferLabel] = how.Prefer
	}
	return c.label(ctx, namespace, change, create)
}

// Unoffload removes the labels: pods run at home only.
func (c Cluster) Unoffload(ctx context.Context, namespace string) error {
	return c.label(ctx, namespace, map[string]any{policy.NamespaceLabel: nil, policy.NamespaceToLabel: nil, policy.PreferLabel: nil}, false)
}

// NoNamespace is the error for a namespace that there is not: its name.
type NoNamespace string

func (n NoNamespace) Error() string {
	return fmt.Sprintf("there is no namespace %s; see: rivulet kubectl get namespaces", string(n))
}

func (c Cluster) label(ctx context.Context, ns string, change map[string]any, create bool) error {
	client, err := c.Client()
	if err != nil {
		return err
	}
	patch, err := labels(change)
	if err != nil {
		return err
	}
	namespaces := client.CoreV1().Namespaces()
	_, err = namespaces.Patch(ctx, ns, types.MergePatchType, patch, metav1.PatchOptions{})
	if create && apierrors.IsNotFound(err) {
		if _, err = namespaces.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{}); err == nil {
			_, err = namespaces.Patch(ctx, ns, types.MergePatchType, patch, metav1.PatchOptions{})
		}
	}
	if apierrors.IsNotFound(err) {
		return NoNamespace(ns)
	}
	return err
}

// PodsAway are the pods of a namespace that run on virtual nodes. Unoffload ends them; drain.Ends describes that.
func (c Cluster) PodsAway(ctx context.Context, namespace string) ([]corev1.Pod, error) {
	client, err := c.Client()
	if err != nil {
		return nil, err
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: policy.VirtualNodeLabel})
	if err != nil {
		return nil, fmt.Errorf("nodes: %w; see: rivulet status", err)
	}
	var names []string
	for i := range nodes.Items {
		names = append(names, nodes.Items[i].Name)
	}
	pods, err := drain.Pods(ctx, client, names)
	return slices.DeleteFunc(pods, func(p corev1.Pod) bool { return p.Namespace != namespace }), err
}
